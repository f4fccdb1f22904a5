"""`stallwatch analyze`: a verdict from a bundle, dumps or logs. Needs no GPU, no torch, no daemon."""

import gc
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from stallwatch.errors import EXIT_OK, EXIT_SLOW_OR_WAITING, EXIT_UNDECIDED, EXIT_VERDICT
from stallwatch.model.verdict import Report

_EXIT_CODES = {
    "healthy": EXIT_OK,
    "job_ended": EXIT_OK,
    "undecided": EXIT_UNDECIDED,
    "slow_rank": EXIT_SLOW_OR_WAITING,
    "waiting": EXIT_SLOW_OR_WAITING,
}


def _report(paths: Sequence[Path]) -> Report:
    from stallwatch.bundle.reader import load
    from stallwatch.bundle.report import make_report

    # Evidence is a tree without cycles that lives until the end: collecting only walks it again and again.
    gc.disable()
    try:
        return make_report(load(paths))
    finally:
        gc.enable()


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH…")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(paths: tuple[Path, ...], as_json: bool) -> int:
    """Say what hung: from an incident bundle, a folder of dumps, dumps, logs, or several node folders of one incident.

    Exit code: 0 healthy or over, 10 a verdict, 11 undecided, 12 slow or waiting; 65 when nothing could be read.
    """
    if as_json:
        report = _report(paths)
        click.echo(msgspec.json.encode(report))
    else:
        from rich.console import Console, Group

        from stallwatch.cli.report_view import report_parts
        from stallwatch.cli.terminal import show

        with Console(stderr=True).status("reading the evidence"):  # a terminal's alone
            report = _report(paths)
        show(Group(*report_parts(report)))
    return _EXIT_CODES.get(report.verdicts[0].cause, EXIT_VERDICT)
