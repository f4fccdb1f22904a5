"""How commands write for people: colour and the window's width in a terminal, plain and uncut in a pipe."""

from datetime import UTC, datetime

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stallwatch.formats.outside_text import text_of

_PIPE_WIDTH = 10_000  # nothing is cut or wrapped for a program that reads us

STATE_STYLES = {
    "stepping": "green",
    "phase": "cyan",
    "starting": "cyan",
    "waiting": "yellow",
    "suspect": "bold yellow",  # nobody is told; who is to blame says so beside it in red
    "stopped": "bold red",
    "gone": "dim",  # a culprit that is gone says so beside it
    "ending": "dim",
    "unknown": "magenta",
}
SEVERITY_STYLES = {"none": "dim", "warning": "yellow", "critical": "bold red"}


def console() -> Console:
    """Where tables go: the terminal's width, or a wide one for a pipe."""
    probe = Console(highlight=False)
    return probe if probe.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)


def show(view: RenderableType) -> None:
    """Print a view; in a pipe without the blanks that fill a terminal's lines."""
    screen = console()
    if screen.is_terminal:
        screen.print(view)
        return
    with screen.capture() as capture:
        screen.print(view)
    for line in capture.get().splitlines():
        click.echo(line.rstrip())


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """A table, in a terminal with a rule below its head; the columns named in `right` hold numbers."""
    box, gap = (SIMPLE_HEAD, 1) if console().is_terminal else (None, 2)
    grid = Table(box=box, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        grid.add_column(column, justify="right" if column in right else "left", no_wrap=column in right)
    return grid


def indented(text: str, style: str = "") -> Padding:
    """A line beneath a heading, which is indented where it goes on, too."""
    return Padding(Text(safe(text), style=style), (0, 0, 0, 2), expand=False)


def safe(text: str) -> str:
    """A job's own words as they may be shown: they must not drive the terminal."""
    return text_of(text)


def styled(text: str, styles: dict[str, str]) -> Text:
    """Text of a job made safe for a terminal, in the style of its word."""
    return Text(safe(text), style=styles.get(text, ""))


def lasting(value: float) -> str:
    """A span that somebody asked for, as he would say it: "1 min", "1 h 30 min", "2 days"."""
    said, left = [], round(value)
    for size, unit in ((86_400, "day"), (3600, "h"), (60, "min"), (1, "s")):
        count, left = divmod(left, size)
        if count:
            said.append(f"{count} {unit}{'s' if unit == 'day' and count > 1 else ''}")
    return " ".join(said[:2]) or f"{value:g} s"


def seconds(value: float | None) -> str:
    """A duration to three digits; "?" is unknown."""
    if value is None:
        return "?"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h"


def severity_word(severity: str) -> str:
    """A severity in words."""
    return "nobody told" if severity == "none" else severity


def local_time(iso: str | None) -> str:
    """ISO 8601 as the clock on the wall shows it here, with its zone."""
    if not iso:
        return ""
    return datetime.fromisoformat(iso).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def time_and_distance(iso: str | None, now: datetime | None = None) -> str:
    """The same with how far it is from now: "2026-11-28 18:01:12 UTC (in 29 min)"."""
    if not iso:
        return ""
    ahead = (datetime.fromisoformat(iso) - (now or datetime.now(UTC))).total_seconds()
    distance = f"in {_rough(ahead)}" if ahead >= 0 else f"{_rough(-ahead)} ago"
    return f"{local_time(iso)} ({distance})"


def _rough(value: float) -> str:
    """A duration as a person says it."""
    if value < 120:
        return f"{value:.0f} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.0f} h" if value < 172_800 else f"{value / 86_400:.0f} days"
