"""`stallwatch doctor`: what is misconfigured on this node, before or after a run."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stallwatch import config
from stallwatch.cli.numbers import WholeNumber
from stallwatch.errors import EXIT_OK, EXIT_VERDICT, StallwatchError, UnusableInput, UsageError

if TYPE_CHECKING:
    from stallwatch.doctor.surroundings import DaemonFacts, MeetingTrial
    from stallwatch.model.evidence import Evidence
    from stallwatch.model.verdict import Report

_DAEMON_SECONDS = 0.5
_LEAST_SECONDS = 2.0  # the checks' own, whatever came before
_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("more_logs", nargs=-1, type=_PATH, metavar="[FILE…]")
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=_PATH,
    help="Log of a run that failed, or a folder of logs; several may follow.",
)
@click.option("--deepspeed", multiple=True, type=_PATH, metavar="FILE", help="DeepSpeed's JSON configuration.")
@click.option(
    "--script",
    "scripts",
    multiple=True,
    type=_PATH,
    metavar="PATH",
    help="Launch or training script, guide, or a folder of them, to read for what hangs and for bad advice.",
)
@click.option("--python", default="", metavar="EXE", help="The training interpreter; else a running rank's, else ours.")
@click.option("--pid", type=WholeNumber(1), help="Read the environment of this running rank only.")
@click.option("--job", default="", help="Read the incidents of this training job; else those of the last day.")
@click.option("--workers", type=WholeNumber(0), help="Data-loader workers per rank, for memory, files and CPUs.")
@click.option("--ranks", type=WholeNumber(1), help="Ranks on this node.")
@click.option("--nodes", type=WholeNumber(1), help="Nodes of the job.")
@click.option(
    "--config", "config_file", type=click.Path(dir_okay=False),
    help="The daemon's configuration file, if not the installed one.",
)  # fmt: skip
@click.option(
    "--fail-on", type=click.Choice(["error", "warning"]), default="warning", show_default=True,
    help="Exit 10 from this severity on.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the examination as JSON.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of --json.")
@click.option("--list", "as_table", is_flag=True, help="Print all checks as a Markdown table.")
@click.option("-v", "--verbose", is_flag=True, help="Show every check, also those that found nothing.")
def command(
    more_logs: tuple[Path, ...],
    logs: tuple[Path, ...],
    deepspeed: tuple[Path, ...],
    scripts: tuple[Path, ...],
    python: str,
    pid: int | None,
    job: str,
    workers: int | None,
    ranks: int | None,
    nodes: int | None,
    config_file: str | None,
    fail_on: str,
    as_json: bool,
    schema: bool,
    as_table: bool,
    verbose: bool,
) -> int:
    """Say what is misconfigured on this node and what to do: environment, GPUs, network, host, frameworks, scripts.

    It changes nothing. With --log it tells the first cause of a run that failed. Exit code: 0 nothing to mend,
    10 findings; 65 when a named file cannot be read.
    """
    from stallwatch.cli import doctor_view

    if schema or as_table:
        doctor_view.print_schema() if schema else doctor_view.print_table()
        return EXIT_OK
    if more_logs and not logs:
        raise UsageError(f"{more_logs[0]}: a file of what?", "Logs of a failed run follow --log; scripts --script.")
    from dataclasses import replace

    from stallwatch.cli.daemon_access import control_socket
    from stallwatch.clock import SystemClock
    from stallwatch.doctor.checks import CHECKS
    from stallwatch.doctor.examine import examine
    from stallwatch.doctor.frameworks.deepspeed import read_config
    from stallwatch.doctor.live.meeting_probe import hidden_meeting, meeting_of
    from stallwatch.doctor.live.survey import survey
    from stallwatch.doctor.surroundings import Question
    from stallwatch.node import gpu_release
    from stallwatch.node.heartbeat_file import rank_directories

    environment = config.current_environment()
    config_file = config_file or config.installed()
    settings, _ = config.load(config_file, environment)
    all_logs = (*logs, *more_logs)
    evidence, report = _read_logs(all_logs) if all_logs else (None, None)
    question = Question(
        logs=all_logs,
        evidence=evidence,
        report=report,
        deepspeed=deepspeed,
        scripts=scripts,
        incidents=Path(settings.daemon.state_directory) / "incidents",
        job=job,
        workers=workers,
        local_ranks=ranks,
        nodes=nodes,
        python_given=bool(python),
    )
    # What a person named must be readable: that is an error of the command, not a finding.
    for path in deepspeed:
        _must_be_file(path)
    for path in scripts:
        if not path.is_dir():
            _must_be_file(path)
    for path in deepspeed:
        read_config(path)
    began = time.monotonic()
    around = survey(
        question,
        environment,
        rank_directories(settings.daemon.rank_directory),
        python,
        pid,
        release_file=Path(settings.daemon.run_directory) / gpu_release.FILE,
    )
    if pid is not None and not around.ranks and not around.ranks_unknown:
        raise UnusableInput(
            f"No rank with pid {pid} runs here.",
            "A rank has RANK or SLURM_PROCID in its environment and torch loaded; `stallwatch status` lists them.",
        )
    daemon = _daemon(control_socket(config_file))
    meeting: MeetingTrial | None = meeting_of(settings.fleet, config.node_of(settings))
    if config_file is None and daemon is None:
        meeting = meeting or hidden_meeting(config.INSTALLED)
    around = replace(around, daemon=daemon, meeting=meeting)
    examination = examine(CHECKS, around, SystemClock(), seconds_left(time.monotonic() - began))
    if as_json:
        doctor_view.print_json(examination)
    elif report is not None:
        doctor_view.print_report(report)
        doctor_view.print_examination(examination, verbose)
    else:
        doctor_view.print_examination(examination, verbose)
    worst = examination.worst()
    failed = worst == "error" or (worst == "warning" and fail_on == "warning")
    return EXIT_VERDICT if failed else EXIT_OK


def seconds_left(spent: float) -> float:
    """Of the time that all of it may take, what the checks have: looking at who runs here has taken `spent` of it."""
    from stallwatch.doctor.examine import DEADLINE_SECONDS

    return max(_LEAST_SECONDS, DEADLINE_SECONDS - spent)


def _daemon(socket_path: Path) -> "DaemonFacts | None":
    """What the daemon says of itself, where one answers at once."""
    from stallwatch.doctor.surroundings import DaemonFacts
    from stallwatch.outputs.client import Client

    try:
        sensors = Client(socket_path, _DAEMON_SECONDS).ranks().sensors
        up, down = ({one.sensor: one.reason for one in sensors if one.up is is_up} for is_up in (True, False))
        return DaemonFacts(socket_path.stat().st_uid, up, down)
    except (StallwatchError, OSError):
        return None


def _read_logs(paths: tuple[Path, ...]) -> "tuple[Evidence, Report | None]":
    """What stands in the logs, and the report that `analyze` makes of it; none where they tell nothing."""
    from stallwatch.bundle.reader import read, tells_something
    from stallwatch.bundle.report import make_report

    for path in paths:
        if not path.exists():
            raise UnusableInput(f"{path}: no such file", "Name log files of the run, or their folder.")
    evidence, files = read(paths)
    told = tells_something(evidence)
    if evidence.caveats and not told and not files - len(evidence.caveats):
        raise UnusableInput("; ".join(evidence.caveats[:5]), "Name log files of the run, or their folder.")
    if not files:
        raise UnusableInput(
            f"{paths[0]}: no file whose name ends in .log, .out, .err or .txt",
            "Name log files of the run, or their folder.",
        )
    return evidence, make_report(evidence) if told else None


def _must_be_file(path: Path) -> None:
    if not path.is_file():
        raise UnusableInput(f"{path}: no such file", "Check the path.")
