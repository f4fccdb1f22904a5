"""One rank of a real job becomes slow, and fast again, beside a daemon in its default configuration: when is it told?

    python tests/bench/bench_slow_ranks.py [--by sleep …] [--extra 0.3 …] [--step-seconds 0.2 …] [--ranks 4] [--runs 1]
                                           [--backend gloo] [--seconds 60] [--at-once 1] [--jitter 0.3] [--slow-rank 2]
                                           [--json F]

Prints a line a run: seconds from the first slow step until it is told, whom, whether it was taken back while it lasted,
seconds until it is over after the last slow step, what it is said to cost and what it does, and the lines that are
named as the place where the time goes. Extra 0 is a calm job: exit code 0 when nobody was told of one, and every slow
rank was told once and rightly.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

# Started as a script, perhaps where nothing is installed: neither root is on the path yet.
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "monitor"))

from stallwatch.demo.daemon_child import DaemonChild
from stallwatch.model.verdict import Verdict
from stallwatch.outputs.client import DaemonUnreachable
from stallwatch.outputs.documents import IncidentDocument
from tests.bench import jobs

PROGRAM = Path(__file__).parents[1] / "programs" / "slow_rank.py"
SOURCE = str(Path(__file__).parents[2] / "monitor")
POLL_SECONDS = 0.25


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

    @property
    def is_right(self) -> bool:
        if not self.extra:
            return not self.told
        told_rightly = len(self.told) == 1 and self.told[0][1] == self.slow_ranks
        return told_rightly and self.over_after is not None and self.over_after > 0


def main() -> int:
    options = _options()
    kinds = itertools.product(options.by, options.extra, options.step_seconds, range(options.runs))
    runs = [
        Run(by, extra, step, options.ranks, run, options.seconds, slow_ranks=sorted(options.slow_rank))
        for by, extra, step, run in kinds
    ]
    with tempfile.TemporaryDirectory(prefix="stallwatch-slow-") as folder, jobs.server() as server:
        daemon = DaemonChild(Path(folder), dict(os.environ))
        daemon.start()
        try:
            with ThreadPoolExecutor(options.at_once) as pool:
                for run in pool.map(lambda run: _play(run, daemon, server, Path(folder), options), runs):
                    print(_line(run), flush=True)
        finally:
            daemon.stop()
            if options.keep:
                shutil.copytree(Path(folder), options.keep, ignore=_without_sockets)
            if options.log:
                print((Path(folder) / "daemon.log").read_text()[-20_000:])
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(runs)))
    _table(runs)
    right = sum(run.is_right for run in runs)
    print(f"right {right}/{len(runs)}; load {os.getloadavg()[0]:.1f}")
    return 0 if right == len(runs) else 1


def _play(run: Run, daemon: DaemonChild, server: jobs.Server, folder: Path, options: argparse.Namespace) -> Run:
    name = f"slow-{run.by}-{run.extra:g}-{run.step_seconds:g}-{run.run}"
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
    run.exit_code = job.exit_code()
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


def _line(run: Run) -> str:
    outcome = "right" if run.is_right else "WRONG"
    return (
        f"{outcome}: {run.by} +{run.extra:.0%} of {run.step_seconds:g} s, {run.ranks} ranks, run {run.run + 1}: "
        f"suspected {run.first_suspected}, told {run.told or 'nobody'}, over after {run.over_after}, "
        f"cost {_number(run.cost_seconds)} (true {_number(run.true_cost_seconds)}), step "
        f"{_number(run.told_step_seconds)} (true {_number(run.true_step_seconds)}), lines {run.lines}\n  {run.sentence}"
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _table(runs: list[Run]) -> None:
    print("| by | slower | step | ranks | right | told, median | worst | over after, median |")
    print("|" + " --- |" * 8)
    for kind in dict.fromkeys((r.by, r.extra, r.step_seconds, r.ranks) for r in runs):
        mine = [r for r in runs if (r.by, r.extra, r.step_seconds, r.ranks) == kind]
        told = [r.told[0][0] for r in mine if r.told]
        over = [r.over_after for r in mine if r.over_after is not None]
        cells = (
            kind[0], f"+{kind[1]:.0%}", f"{kind[2]:g} s", str(kind[3]), f"{sum(r.is_right for r in mine)}/{len(mine)}",
            f"{statistics.median(told):.1f}" if told else "–", f"{max(told):.1f}" if told else "–",
            f"{statistics.median(over):.1f}" if over else "–",
        )  # fmt: skip
        print("| " + " | ".join(cells) + " |")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--by", nargs="+", default=["sleep"])
    parser.add_argument("--extra", nargs="+", type=float, default=[0.3])
    parser.add_argument("--step-seconds", nargs="+", type=float, default=[0.2])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--slow-rank", nargs="+", type=int, default=[2])
    parser.add_argument("--jitter", type=float, default=0.0)
    parser.add_argument("--heavy", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--healthy-seconds", type=float, default=15.0)
    parser.add_argument("--after-seconds", type=float, default=30.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="a folder that is made: the daemon's, with the evidence")
    parser.add_argument("--log", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
