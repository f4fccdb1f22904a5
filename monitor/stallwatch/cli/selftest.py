"""`stallwatch selftest`: which collective works on this node, which does not, and what makes it pass."""

import re
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click
import msgspec

from stallwatch.cli.numbers import Number, WholeNumber
from stallwatch.config import current_environment
from stallwatch.encoding import json_of
from stallwatch.errors import EXIT_CRASH, EXIT_OK, EXIT_VERDICT

if TYPE_CHECKING:
    from stallwatch.selftest.result import NodeFinding, SelfTestReport

_SIZE = re.compile(r"([0-9]+)\s*([KMG]?)(i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class SizeType(click.ParamType[int]):
    """A number of bytes: 4096, 64K, 256M."""

    name = "SIZE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Given "4096", "64K" or "256M", return bytes; fail as click does for what is no size from 8 bytes on."""
        match = _SIZE.fullmatch(str(value))
        size = int(match[1]) * _UNITS[match[2].upper()] if match else 0
        if size < 8:
            self.fail(f"{value!r} is no size from 8 bytes on; write 4096, 64K or 256M", param, ctx)
        return size


@click.command()
@click.option("--python", metavar="PATH", help="Training interpreter. Default: ours or PATH's, if it has torch.")
@click.option("--ranks", type=WholeNumber(1, 64), help="Processes. Default: one a GPU; 4 on the CPU.")
@click.option("--backend", type=click.Choice(("auto", "nccl", "gloo")), default="auto", show_default=True)
@click.option("--most-bytes", type=SizeType(), help="Largest size. Default: 256M; 4M with gloo.")
@click.option("--step-seconds", type=Number(1, 3600), default=30.0, show_default=True, help="Deadline of a step.")
@click.option(
    "--start-seconds", type=Number(1, 3600), default=120.0, show_default=True,
    help="Deadline of Python's and torch's start.",
)  # fmt: skip
@click.option("--bisect", is_flag=True, help="On failure repeat the step with fewer ranks, each pair, and paths off.")
@click.option("--bisect-seconds", type=Number(1), default=600.0, show_default=True, help="Time for --bisect.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep logs, reports and evidence in this new folder.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of --json.")
@click.option("--rank-program", hidden=True, help="Runs in place of the ranks' own program.")
def command(
    python: str | None,
    ranks: int | None,
    backend: str,
    most_bytes: int | None,
    step_seconds: float,
    start_seconds: float,
    bisect: bool,
    bisect_seconds: float,
    keep: Path | None,
    as_json: bool,
    schema: bool,
    rank_program: str | None,
) -> int:
    """Run every collective and transfer on this node, check each result, and say at which step it fails, and why.

    Exit code, for a Slurm prolog: 0 all right, 10 the node is not, 64 wrong usage (no torch found), 70 the test itself
    did not work, which says nothing about the node. Several nodes: `torchrun … -m stallwatch.selftest.rank` on each.
    """
    from stallwatch.selftest.result import SelfTestReport
    from stallwatch.selftest.self_test import SelfTest, SelfTestOptions
    from stallwatch.selftest.words import lines

    if schema:
        click.echo(json_of(msgspec.json.schema(SelfTestReport)))
        return EXIT_OK
    signal.signal(signal.SIGTERM, _interrupted)
    began = time.monotonic()

    def tell(text: str) -> None:
        if sys.stderr.isatty() or not as_json:
            click.echo(f"{time.monotonic() - began:6.1f} s  {text}", err=True)

    options = SelfTestOptions(
        python=python,
        ranks=ranks,
        backend=backend,
        most_bytes=most_bytes,
        step_seconds=step_seconds,
        start_seconds=start_seconds,
        bisect=bisect,
        bisect_seconds=bisect_seconds,
        keep=keep,
        program=rank_program,
    )
    report = SelfTest(options, current_environment(), tell).run()
    if report.failed_at_start:
        tell("the start failed: looking at the node")
        report = msgspec.structs.replace(report, node_findings=_node_findings(report, ranks))
    if as_json:
        click.echo(json_of(report))
    else:
        click.echo("\n".join(lines(report)))
    if report.ok is None:
        return EXIT_CRASH
    return EXIT_OK if report.ok else EXIT_VERDICT


def _node_findings(report: "SelfTestReport", ranks: int | None) -> "tuple[NodeFinding, ...]":
    """Errors and warnings of `doctor`'s checks of this node, the worst first; some seconds at most."""
    from stallwatch.clock import SystemClock
    from stallwatch.doctor.checks import CHECKS
    from stallwatch.doctor.examine import examine
    from stallwatch.doctor.live.survey import survey
    from stallwatch.doctor.surroundings import Question
    from stallwatch.selftest.advice import of_import
    from stallwatch.selftest.result import NodeFinding

    checks = [check for check in CHECKS if check.area in ("gpu", "network", "host", "environment", "frameworks")]
    # The test's own ranks meet at the loopback address, whatever this shell is told.
    environment = {name: value for name, value in current_environment().items() if not name.startswith("MASTER_")}
    around = survey(Question(local_ranks=ranks, nodes=1), environment, (), report.python)
    found = [
        NodeFinding(one.check, one.severity, one.subject, one.seen, one.why, one.remedy)
        for one in examine(checks, around, SystemClock()).findings
        if one.severity != "info"
    ]
    errors = sum(one.severity == "error" for one in found)  # they come first, and may be why torch does not load
    imported = of_import(report.problem, report.python)
    return (*found[:errors], *((imported,) if imported else ()), *found[errors:])


def _interrupted(signal_number: int, frame: FrameType | None) -> None:
    """Once: the ranks are being ended then."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt
