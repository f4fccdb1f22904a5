"""One rank of a real job becomes slow, and fast again, beside a daemon in its default configuration: when is it told?

    python tests/bench/bench_slow_ranks.py [--by sleep …] [--extra 0.3 …] [--step-seconds 0.2 …] [--ranks 4] [--runs 1]
                                           [--backend gloo] [--slow-seconds 60] [--at-once 1] [--jitter 0.3]
                                           [--slow-rank 2] [--cores 0-3] [--seconds 540] [--json F]
    python -m tests.bench.lanes --lanes 12 --cores 0-47 --seconds 560 --out FOLDER -- tests.bench.bench_slow_ranks …
    python tests/bench/bench_slow_ranks.py --table FOLDER

Prints a line a run: seconds from the first slow step until it is told, whom, whether it was taken back while it
lasted, seconds until it is over after the last slow step, what it is said to cost and what it does, and the lines
that are named as the place where the time goes. Extra 0 is a calm job, and so is what is uneven by design: exit code
0 when nobody was told of one, and every slow rank was told once and rightly. In lanes side by side (tests/bench/
lanes.py) runs are dealt out in an order drawn by chance, so that what a time limit leaves is a part of every kind;
`--table` prints the table of what all lanes have played.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec

# Started as a script, perhaps where nothing is installed: neither root is on the path yet.
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "monitor"))

from stallwatch.demo.daemon_child import DaemonChild
from stallwatch.model.verdict import Verdict
from stallwatch.outputs.client import DaemonUnreachable
from stallwatch.outputs.documents import IncidentDocument
from tests.bench import jobs, lanes

BY_DESIGN = ("logs", "evaluates", "saves", "uneven", "experts", "wander", "surge")  # as the program has it

PROGRAM = Path(__file__).parents[1] / "programs" / "slow_rank.py"
SOURCE = str(Path(__file__).parents[2] / "monitor")
POLL_SECONDS = 0.25
_START_SECONDS = 10.0


class Run(msgspec.Struct):
    by: str
    extra: float
    step_seconds: float
    ranks: int
    run: int
    seconds: float  # how long it is slow
    told: list[tuple[float, list[int], str]] = msgspec.field(default_factory=list)  # (after, whom, sentence)
    first_suspected: float | None = None
    resolved: list[float] = msgspec.field(default_factory=list)  # after the onset
    over_after: float | None = None  # after the last slow step
    slow_ranks: list[int] = msgspec.field(default_factory=lambda: [2])
    cost_seconds: float | None = None  # as it was told last while it lasted, and the step
    told_step_seconds: float | None = None
    true_cost_seconds: float | None = None  # by the steps of the job itself
    true_step_seconds: float | None = None
    lines: list[tuple[float, str]] = msgspec.field(default_factory=list)  # (after, the place that is named)
    sentence: str = ""
    steps: list[str] = msgspec.field(default_factory=list)
    exit_code: int | None = None
    backend: str = "gloo"
    load: float = 0.0  # when it ended

    @property
    def taken_back(self) -> bool:
        return any(after < self.seconds for after in self.resolved)

    @property
    def is_right(self) -> bool:
        if not self.extra or self.by in BY_DESIGN:
            return not self.told
        told_rightly = len(self.told) == 1 and self.told[0][1] == self.slow_ranks
        return told_rightly and self.over_after is not None and self.over_after > 0

    @property
    def line_right(self) -> bool | None:
        """None: no line is named."""
        line = next((line for _, line in reversed(self.lines) if line), "")
        return line in _places(self.by) if line else None


class Outcome(msgspec.Struct):
    """What a line of a file says of a run."""

    backend: str
    by: str
    extra: float
    step_seconds: float
    ranks: int
    run: int
    right: bool
    found: bool
    rank_right: bool
    told_once: bool
    taken_back: bool
    suspected_after: float | None
    told_after: float | None
    over_after: float | None
    cost_true: float | None
    cost_told: float | None
    step_true: float | None
    step_told: float | None
    line_right: bool | None
    lines: list[tuple[float, str]]
    told: list[tuple[float, list[int], str]]
    sentence: str
    exit_code: int | None
    load: float


def outcome(run: Run) -> Outcome:
    return Outcome(
        run.backend, run.by, run.extra, run.step_seconds, run.ranks, run.run, run.is_right,
        bool(run.told), bool(run.told) and all(whom == run.slow_ranks for _, whom, _ in run.told), len(run.told) == 1,
        run.taken_back, run.first_suspected, run.told[0][0] if run.told else None, run.over_after,
        run.true_cost_seconds, run.cost_seconds, run.true_step_seconds, run.told_step_seconds, run.line_right,
        run.lines, run.told, run.sentence, run.exit_code, run.load,
    )  # fmt: skip


def main() -> int:
    options = _parser().parse_args()
    if options.table:
        _, lines = lanes.read_lines(sorted(options.table.glob("lane-*.jsonl")))
        outcomes = [msgspec.json.decode(line.detail, type=Outcome) for line in lines]
        print(table(sorted(outcomes, key=lambda one: (one.by, one.ranks, one.step_seconds, one.extra))))
        return 0
    if options.cores:
        os.sched_setaffinity(0, lanes.cores_of(options.cores))  # the daemon's and the ranks', too
    wanted = _wanted(options)
    lines_file = lanes.Lines(options.lines, [_name(run) for run in wanted])
    began = time.monotonic()
    played: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="stallwatch-slow-") as folder, jobs.server() as server:
        daemon = DaemonChild(Path(folder), dict(os.environ))
        daemon.start()
        try:
            with ThreadPoolExecutor(options.at_once) as pool:
                # Not even begun when it would not end in time.
                due = began + options.seconds - _seconds_of_run(options)
                play = partial(_play, daemon=daemon, server=server, folder=Path(folder), options=options, due=due)
                for run in filter(None, pool.map(play, wanted)):
                    played.append(run)
                    print(f"{'right' if run.is_right else 'WRONG'}: {_line(run)}", flush=True)
                    lines_file.add(
                        _name(run),
                        right=run.is_right,
                        said=_line(run),
                        seconds_to_verdict=run.told[0][0] if run.told else None,
                        detail=outcome(run),
                    )
        finally:
            daemon.stop()
            if options.keep:
                shutil.copytree(Path(folder), options.keep, ignore=_without_sockets)
            if options.log:
                print((Path(folder) / "daemon.log").read_text()[-20_000:])
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(played)))
    print(table([outcome(run) for run in played]))
    right = sum(run.is_right for run in played)
    print(f"right {right}/{len(played)}; load {os.getloadavg()[0]:.1f}")
    return 0 if played and right == len(played) else 1


def _wanted(options: argparse.Namespace) -> list[Run]:
    every = itertools.product(options.by, options.extra, options.step_seconds, options.ranks, range(options.runs))
    kinds = list(every)
    if options.lane != "0/1":
        random.Random(0).shuffle(kinds)
    slow, who, backend = options.slow_seconds, sorted(options.slow_rank), options.backend
    return [
        Run(by, extra, step, ranks, run, slow, slow_ranks=who, backend=backend)
        for by, extra, step, ranks, run in lanes.part_of(kinds, options.lane)
    ]


def _seconds_of_run(options: argparse.Namespace) -> float:
    return float(options.healthy_seconds + options.slow_seconds + options.after_seconds) + _START_SECONDS


def _places(by: str) -> set[str]:
    """Where the program spends the time that the other ranks do not, as an incident words it."""
    lines = PROGRAM.read_text().splitlines()
    found = [number for number, line in enumerate(lines, 1) if line.rstrip().endswith(f"# slow: {by}")]
    inside = {"cpu": "compute", "beside": "consume"}.get(by)
    named = {f"{PROGRAM.name}:{number} main" for number in found}
    if inside is not None:
        begins = lines.index(next(line for line in lines if line.startswith(f"def {inside}(")))
        named |= {f"{PROGRAM.name}:{begins + more} {inside}" for more in range(2, 6)}
    return named


def _play(
    run: Run, daemon: DaemonChild, server: jobs.Server, folder: Path, options: argparse.Namespace, due: float
) -> Run | None:
    if time.monotonic() > due:
        return None
    name = f"slow-{os.getpid()}-{run.by}-{run.extra:g}-{run.step_seconds:g}-{run.ranks}-{run.run}"
    log = folder / f"{name}.log"
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, (SOURCE, os.environ.get("PYTHONPATH", "")))),
        "STALLWATCH_DIR": str(daemon.rank_directory),
        "STALLWATCH_JOB": name,
    }
    arguments = [
        f"--by={run.by}", f"--extra={run.extra}", f"--step-seconds={run.step_seconds}", f"--seconds={run.seconds}",
        f"--jitter={options.jitter}", f"--backend={options.backend}", f"--after-seconds={options.after_seconds}",
        f"--healthy-seconds={options.healthy_seconds}", *(["--heavy"] if options.heavy else []),
        "--slow-rank", *map(str, run.slow_ranks),
    ]  # fmt: skip
    job = server.launch(PROGRAM, arguments, run.ranks, environment, log)
    told: dict[str, IncidentDocument] = {}
    while job.exit_code() is None:
        time.sleep(POLL_SECONDS)
        marks = _marks(log)
        try:
            incidents = [one for one in daemon.client.incidents().incidents if one.training_job == name]
        except DaemonUnreachable:
            continue
        now = time.monotonic()
        began = marks["slow"][0] if "slow" in marks else None
        for incident in incidents:
            if options.verbose and incident.incident_id not in told:
                print(f"    {name} {incident.state} {incident.severity} {[v.summary for v in incident.verdicts][:1]}")
            if began is not None and run.first_suspected is None:
                run.first_suspected = round(now - began, 1)
            if incident.severity != "none" and incident.incident_id not in told:
                told[incident.incident_id] = incident
                verdict = incident.verdicts[0] if incident.verdicts else None
                after = now - began if began is not None else -1.0
                whom = list(verdict.culprits) if verdict else []
                run.told.append((round(after, 1), whom, verdict.summary if verdict else "no verdict"))
            if began is not None and "over" not in marks and incident.incident_id in told and incident.verdicts:
                _shown(run, incident.verdicts[0], round(now - began, 1))
            known = told.get(incident.incident_id)
            if known is not None and incident.state == "resolved" and known.state != "resolved":
                told[incident.incident_id] = incident
                run.resolved.append(round(now - (began or now), 1))
                if (ended := marks.get("over")) is not None:
                    run.over_after = round(now - ended[0], 1)
                else:
                    run.over_after = -1.0  # taken back while it lasted
    _measure(run, _marks(log))
    run.exit_code, run.load = job.exit_code(), os.getloadavg()[0]
    if run.exit_code:
        print(log.read_text(errors="replace")[-3000:])
    return run


def _without_sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not ((path := Path(folder) / name).is_file() or path.is_dir())]


def _shown(run: Run, verdict: Verdict, after: float) -> None:
    """What a person sees of it now."""
    frame = verdict.culprit_processes[0].frame if verdict.culprit_processes else None
    line = f"{frame.file.rpartition('/')[2]}:{frame.line} {frame.function}" if frame else ""
    if not run.lines or run.lines[-1][1] != line:
        run.lines.append((after, line))
    run.sentence, run.steps = verdict.summary, list(verdict.next_steps)
    if verdict.slowness is not None:
        run.cost_seconds, run.told_step_seconds = verdict.slowness.cost_seconds, verdict.slowness.step_seconds


def _measure(run: Run, marks: dict[str, tuple[float, int]]) -> None:
    """The truth: how long a step took before it became slow, and since."""
    if "slow" not in marks or "over" not in marks:
        return
    (began, first), (ended, last) = marks["slow"], marks["over"]
    run.true_step_seconds = (ended - began) / max(1, last - first)
    if "settled" in marks and first > marks["settled"][1]:
        settled, step = marks["settled"]
        run.true_cost_seconds = run.true_step_seconds - (began - settled) / (first - step)


def _marks(log: Path) -> dict[str, tuple[float, int]]:
    """(time, step) when it had settled, became slow, and was over."""
    found = {}
    for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
        if line.startswith(('{"slow"', '{"settled"')) and line.endswith("}"):
            mark = json.loads(line)
            name = "settled" if "settled" in mark else "slow" if mark["slow"] else "over"
            found[name] = (mark["at"], mark["step"])
    return found


def _name(run: Run) -> str:
    return f"{run.by} +{run.extra:.0%} of {run.step_seconds:g} s, {run.ranks} ranks, run {run.run + 1}"


def _line(run: Run) -> str:
    return (
        f"{_name(run)}: "
        f"suspected {run.first_suspected}, told {run.told or 'nobody'}, over after {run.over_after}, "
        f"cost {_number(run.cost_seconds)} (true {_number(run.true_cost_seconds)}), step "
        f"{_number(run.told_step_seconds)} (true {_number(run.true_step_seconds)}), lines {run.lines}\n  {run.sentence}"
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def table(outcomes: Sequence[Outcome]) -> str:
    """A line of Markdown for each kind of run."""
    names = (
        "backend", "by", "slower", "step", "ranks", "right", "rank right", "once", "taken back", "told, median",
        "worst", "over after, median", "worst", "cost within 15 %", "line right",
    )  # fmt: skip
    rows = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    for kind in dict.fromkeys(map(_kind, outcomes)):
        mine = [one for one in outcomes if _kind(one) == kind]
        told = [one.told_after for one in mine if one.told_after is not None]
        over = [one.over_after for one in mine if one.over_after is not None and one.over_after > 0]
        costs = [abs(one.cost_told / one.cost_true - 1) for one in mine if one.cost_told and one.cost_true]
        cells = (
            kind[0], kind[1], f"+{kind[2]:.0%}", f"{kind[3]:g} s", str(kind[4]),
            f"{sum(one.right for one in mine)}/{len(mine)}", str(sum(one.rank_right for one in mine)),
            str(sum(one.told_once for one in mine)), str(sum(one.taken_back for one in mine)), *_middle_and_worst(told),
            *_middle_and_worst(over), f"{sum(error <= 0.15 for error in costs)}/{len(costs)}",
            f"{sum(one.line_right is True for one in mine)}/{sum(one.line_right is not None for one in mine)}",
        )  # fmt: skip
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _kind(one: Outcome) -> tuple[str, str, float, float, int]:
    return one.backend, one.by, one.extra, one.step_seconds, one.ranks


def _middle_and_worst(seconds: Sequence[float]) -> tuple[str, str]:
    return (f"{statistics.median(seconds):.1f}", f"{max(seconds):.1f}") if seconds else ("–", "–")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--by", nargs="+", default=["sleep"])
    parser.add_argument("--extra", nargs="+", type=float, default=[0.3])
    parser.add_argument("--step-seconds", nargs="+", type=float, default=[0.2])
    parser.add_argument("--ranks", nargs="+", type=int, default=[4])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--slow-rank", nargs="+", type=int, default=[2])
    parser.add_argument("--jitter", type=float, default=0.0)
    parser.add_argument("--heavy", action="store_true")
    parser.add_argument("--slow-seconds", type=float, default=60.0, help="how long a rank is slow")
    parser.add_argument("--healthy-seconds", type=float, default=15.0)
    parser.add_argument("--after-seconds", type=float, default=30.0)
    parser.add_argument("--cores", help="CPUs of the daemon and of the ranks: 0-3,8")
    lanes.add_options(parser)
    parser.add_argument("--table", type=Path, help="the folder of lanes: print what they have played, and play nothing")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="a folder that is made: the daemon's, with the evidence")
    parser.add_argument("--log", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
