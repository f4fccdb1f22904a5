"""`stallwatch analyze`: a verdict from a bundle, dumps or logs. Needs no GPU, no torch, no daemon."""

import contextlib
import gc
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from stallwatch.encoding import json_of, msgpack_of
from stallwatch.errors import EXIT_OK, EXIT_SLOW_OR_WAITING, EXIT_UNDECIDED, EXIT_VERDICT
from stallwatch.incidents.afterwards import report_afterwards
from stallwatch.model.causes import State
from stallwatch.model.incident import OVER
from stallwatch.model.verdict import Report

_TELL_THE_END = ("incident.json", "bundle.json")  # the second where it was scrubbed
_MOST_BYTES = 64 << 20
SUMMARY_DETAILS = ("none", "functions", "lines")

_EXIT_CODES: dict[State, int] = {
    "at_once": EXIT_VERDICT,
    "stuck": EXIT_VERDICT,
    "undecided": EXIT_UNDECIDED,
    "waits": EXIT_SLOW_OR_WAITING,
    "slow": EXIT_SLOW_OR_WAITING,
    "well": EXIT_OK,
    "over": EXIT_OK,
}


def _report(paths: Sequence[Path]) -> Report:
    return _with_summary(paths, "")[0]


def _with_summary(paths: Sequence[Path], detail: str) -> tuple[Report, bytes]:
    """The report, and with a `detail` what other nodes are told of the same evidence."""
    from stallwatch import diagnosis
    from stallwatch.bundle.reader import load

    # Evidence is a tree without cycles that lives until the end: collecting only walks it again and again.
    gc.disable()
    try:
        evidence = load(paths)
        judgement = diagnosis.judge(evidence)
        from stallwatch.bundle.report import report_of

        report = report_of(evidence, judgement)
        if not detail:
            return report, b""
        from stallwatch.diagnosis.node_summary import as_detail, redacted, summarise_node

        try:
            said = redacted(summarise_node(evidence, judgement), as_detail(detail))
        except Exception as error:  # noqa: BLE001 - what is for other nodes must not cost this one its verdict
            click.echo(f"no summary for other nodes: {type(error).__name__}: {error}", err=True)
            return report, b""
        return report, msgpack_of(said)
    finally:
        gc.enable()


@click.command()
@click.argument("given", nargs=-1, required=True, metavar="PATH|URL…")
@click.option(
    "--options-file",
    type=click.Path(path_type=Path),
    help="JSON file with what a URL's storage needs (incidents.archive_options_file).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option(
    "--summary", type=click.Choice(SUMMARY_DETAILS), hidden=True, help="With --json: a node summary below it."
)
def command(given: tuple[str, ...], options_file: Path | None, as_json: bool, summary: str | None) -> int:
    """Say what hung: from an incident bundle, a folder of dumps, dumps, logs, or several node folders of one incident.

    A bundle may be a folder, or the file that `stallwatch bundle export` has made of it.

    A URL (s3://bucket/…), or a path, names an archived bundle, or an incident's folder of them: all its nodes' bundles.

    Exit code: 0 healthy or over, 10 a verdict, 11 undecided, 12 slow or waiting; 65 when nothing could be read.
    """
    with contextlib.ExitStack() as fetched:
        return _analyze(_here(given, options_file, fetched), as_json, summary)


def _here(given: Sequence[str], options_file: Path | None, fetched: contextlib.ExitStack) -> list[Path]:
    """Return paths of this node: of a URL, and of a bundle that is one file, the folders of what was fetched or
    unpacked, which are gone when `fetched` is closed."""
    paths: list[Path] = []
    for one in given:
        if "://" not in one:
            paths += [here(path, fetched) for path in _archived(Path(one))]
            continue
        from stallwatch.bundle.archive_storage import fetch

        options = msgspec.json.decode(options_file.read_bytes(), type=dict[str, Any]) if options_file else {}
        folder = fetched.enter_context(tempfile.TemporaryDirectory(prefix="stallwatch-"))
        paths += fetch(one, options, Path(folder))
    return paths


def _archived(path: Path) -> list[Path]:
    """Given an incident's folder of an archive, return its nodes' bundles; of another path the path."""
    from stallwatch.bundle.packed import is_packed

    inside = sorted(path.iterdir()) if path.is_dir() else []
    bundles = [one for one in inside if one.name.endswith(".tar.gz") and is_packed(one)]
    return bundles if bundles and len(bundles) == len(inside) else [path]


def here(path: Path, fetched: contextlib.ExitStack) -> Path:
    """Return a path as it is; of a bundle that is one file the folder to which it was unpacked."""
    from stallwatch.bundle.packed import is_packed, unpacked

    if not is_packed(path):
        return path
    return unpacked(path, Path(fetched.enter_context(tempfile.TemporaryDirectory(prefix="stallwatch-"))))


class _Life(msgspec.Struct):
    """What a bundle says of how its incident ended, and nothing else of it."""

    state: str = ""


def how_it_ended(paths: Sequence[Path]) -> str:
    """Return "ended" or "resolved" where a given bundle says that its incident is over; else ""."""
    for path in paths:
        for name in _TELL_THE_END:
            file = path / name
            try:
                if not file.is_file() or file.stat().st_size > _MOST_BYTES:
                    continue
                state = msgspec.json.decode(file.read_bytes(), type=_Life).state
            except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
                continue
            if state in OVER:
                return state
    return ""


def _as_it_is(report: Report, ended: str) -> Report:
    return report_afterwards(report, "", ended=ended == "ended") if ended else report


def _analyze(paths: Sequence[Path], as_json: bool, summary: str | None) -> int:
    if as_json:
        report, for_others = _with_summary(paths, summary or "")
        click.echo(json_of(_as_it_is(report, how_it_ended(paths))))
        if summary:
            sys.stdout.buffer.write(for_others)
    else:
        from rich.console import Console, Group

        from stallwatch.cli.report_view import report_parts
        from stallwatch.cli.terminal import show

        with Console(stderr=True).status("reading the evidence"):  # a terminal's alone
            report = _report(paths)
        ended = how_it_ended(paths)
        show(Group(*report_parts(_as_it_is(report, ended), over=bool(ended))))
    return _EXIT_CODES[report.verdicts[0].traits.state]
