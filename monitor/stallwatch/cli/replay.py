"""`stallwatch replay`: an incident once more, through the detectors, diagnosis and outputs of this version."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from stallwatch.cli.analyze import here
from stallwatch.encoding import json_of

if TYPE_CHECKING:
    from stallwatch.replay.document import Replay


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML whose keys take the place of those that were in force; all others stay as recorded.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the replay as JSON.")
def command(bundle: Path, config_file: Path | None, as_json: bool) -> int:
    """Replay an incident: what detection decides, tick by tick, and who would have been told what, and when.

    BUNDLE is a folder that a daemon wrote, or the file that `stallwatch bundle export` has made of it. Its timeline
    goes through detectors and incident engine on its own clock; its looks at ranks are judged anew. Nothing is sent to
    anybody.
    """
    if as_json:
        click.echo(json_of(_replayed(bundle, config_file)))
        return 0
    from rich.console import Console, Group

    from stallwatch.cli.replay_view import replay_parts
    from stallwatch.cli.terminal import show

    with Console(stderr=True).status("replaying"):  # a terminal's alone
        said = _replayed(bundle, config_file)
    show(Group(*replay_parts(said)))
    return 0


def _replayed(bundle: Path, config_file: Path | None) -> "Replay":
    from stallwatch.replay.document import replay_bundle

    with contextlib.ExitStack() as fetched:
        said = replay_bundle(here(bundle, fetched), config_file)
        return replace(said, bundle=str(bundle))
