"""`stallwatch top`: the node, live."""

import itertools
import time
from collections.abc import Iterator

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from stallwatch.cli.daemon_access import asks_daemon
from stallwatch.cli.numbers import Number, WholeNumber
from stallwatch.cli.status import status_document, status_view
from stallwatch.cli.terminal import console
from stallwatch.encoding import json_of
from stallwatch.errors import UsageError
from stallwatch.outputs.client import Client, DaemonUnreachable

_OTHER_LINES = 14  # of a screen: head, sensors, and the incidents, which must not be pushed off it


@click.command()
@click.option("--interval", type=Number(0.1, 60), default=1.0, show_default=True, help="In seconds.")
@click.option("--count", type=WholeNumber(1), help="Stop after so many looks.")
@asks_daemon
def command(client: Client, as_json: bool, interval: float, count: int | None) -> None:
    """Show ranks and incidents, refreshed every second, until Ctrl-C; with --json a document a line."""
    screen = console()
    if not as_json and not screen.is_terminal:
        raise UsageError("top draws on a terminal", "Use `stallwatch status`, or `stallwatch top --json` for a stream.")
    try:
        if as_json:
            _stream(client, interval, count)
        else:
            _draw(client, interval, count)
    except KeyboardInterrupt:
        pass  # how people leave it


def _stream(client: Client, interval: float, count: int | None) -> None:
    for _ in _paced(interval, count):
        document = status_document(client.ranks(), client.incidents())
        click.echo(json_of(document).decode())


def _draw(client: Client, interval: float, count: int | None) -> None:
    view: RenderableType = Text("…")
    screen = console()
    with Live(view, console=screen, screen=True, auto_refresh=False) as live:
        for look in _paced(interval, count):
            try:
                view = shown = status_view(client.ranks(), client.incidents(), screen.height - _OTHER_LINES)
            except DaemonUnreachable as error:
                if look == 0:
                    raise
                shown = Group(Text(f"{error} (what follows is old)", style="bold red"), view)
            live.update(shown, refresh=True)


def _paced(interval: float, count: int | None) -> Iterator[int]:
    for look in itertools.count():
        if look == count:
            return
        if look:
            time.sleep(interval)
        yield look
