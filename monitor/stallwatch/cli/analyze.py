"""`stallwatch analyze`: a verdict from a bundle, dumps or logs. Needs no GPU, no torch, no daemon."""

from pathlib import Path

import click


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH…")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(paths: tuple[Path, ...], as_json: bool) -> int:
    """Say what hung: from an incident bundle, a folder of dumps, dumps, logs, or several node folders of one incident.

    Exit code: 0 healthy, 10 a verdict, 11 undecided, 12 slow or waiting.
    """
    raise NotImplementedError
