"""From fault to suspicion and to verdict: every fault at steps of 50 ms, four at 500 ms, two at 5 s.

    python tests/bench/bench_latency.py [--runs 3] [--steps 0.05] [--fault lock] [--lane 0/6] [--json latency.json]
    python tests/bench/bench_latency.py --merge latency-0.json latency-1.json …

Ranks are forked (tests/bench/jobs.py), the daemon is a real one in its default configuration. The machine's load is
printed beside each figure: a verdict is made by children that share its cores. A lane is a part of the runs, to be
measured beside the others where there are cores enough; `--merge` makes one table of them. Exit code 0 when every goal
was kept.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec

# Started as a script, perhaps where nothing is installed: neither root is on the path yet.
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "monitor"))

from stallwatch.demo.catalogue import FAULTS, Fault, find
from stallwatch.demo.outcome import DemoOutcome
from stallwatch.demo.play import play
from stallwatch.errors import StallwatchError
from tests.bench import jobs
from tests.bench.bench_footprint import has_gpu
from tests.bench.busy import busy
from tests.bench.figures import Figure
from tests.bench.lanes import own_processes

AT_ONCE = ("killed", "stopped")
OTHER_STEPS = {0.5: ("lock", "dataloader", "skip", "killed"), 5.0: ("sleep", "stopped")}
GOALS = {0.05: 9.0, 0.5: 15.0, 5.0: 30.0}  # seconds to the verdict, 95th percentile
GOAL_AT_ONCE = 1.5
RANKS = 4
# Of NCCL each rank that waits keeps a core busy, and the daemon and its children want some too.
CORES_OF_A_LANE = 6
# A job of four ranks that step each 50 ms, its daemon and what that starts are one more.
BUSY_CORES, BUSY_PROCESSES = 2, 7
# Long steps take long to be a rhythm; a limit is learned from six of them.
FAULT_STEPS = {0.05: 100, 0.5: 24, 5.0: 10}


class Measured(msgspec.Struct, frozen=True):
    fault: str
    step_seconds: float
    suspected_seconds: float | None
    verdict_seconds: float | None
    agrees: bool
    load: float
    said: str


def main() -> int:
    options = _options()
    if options.merge:
        measured = [
            one for path in options.merge for one in msgspec.json.decode(path.read_bytes(), type=list[Measured])
        ]
    else:
        measured = _all(options)
    print(table(measured))
    steps = dict.fromkeys(one.step_seconds for one in measured)
    kept = [_summary(measured, step_seconds, at_once) for step_seconds in steps for at_once in (False, True)]
    return 0 if all(kept) else 1


def figures(quick: bool) -> list[Figure]:
    """Every fault of the demo at steps of 50 ms, twice; of NCCL where there is a GPU, side by side where cores are."""
    backend = "nccl" if has_gpu() else "gloo"
    arguments = ["--steps", "0.05", "--runs", "1" if quick else "2", "--backend", backend]
    lanes = len(os.sched_getaffinity(0)) // CORES_OF_A_LANE
    return _figures(_in_lanes(arguments, lanes) if lanes > 1 else _all(_options(arguments)), backend)


def loaded(quick: bool) -> list[Figure]:
    """The same under gloo, while other programs want the cores: two of them with a load of some 8."""
    arguments = ["--steps", "0.05", "--runs", "1", *(["--fault", "lock", "--fault", "killed"] if quick else [])]
    cores = sorted(os.sched_getaffinity(0))[:BUSY_CORES]
    os.sched_setaffinity(0, cores)  # what we start as well
    with busy(BUSY_PROCESSES):
        measured = _all(_options(arguments))
    load = max(one.load for one in measured)  # of the last minute: of the first runs less than there is
    return _figures(measured, f"gloo; {BUSY_PROCESSES} busy beside it on {len(cores)} cores, load up to {load:.0f}")


def _figures(measured: list[Measured], where: str) -> list[Figure]:
    print(table(measured))
    found = []
    for what, at_once in (("stalls", False), ("deaths and stops", True)):
        mine = [one for one in measured if (one.fault in AT_ONCE) == at_once]
        verdicts = [one.verdict_seconds for one in mine if one.verdict_seconds is not None]
        if not verdicts:
            continue
        spread = f"{where}; p50 {statistics.median(verdicts):.1f}, worst {max(verdicts):.1f} s of {len(mine)}"
        found.append(Figure(f"{what}: p95", _p95(verdicts), "s", detail=spread))
    wrong = [f"{one.fault}: {one.said}" for one in measured if not one.agrees]
    return [*found, Figure("right", 1 - len(wrong) / len(measured), "share", detail="; ".join(wrong))]


def _in_lanes(arguments: list[str], lanes: int) -> list[Measured]:
    """Return the runs of so many lanes, each with its own cores and processes. Raise if one of them ends early."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="latency-") as folder, ExitStack() as running:
        paths = [Path(folder) / f"{number}.json" for number in range(lanes)]
        begun_with = own_processes()
        for number, path in enumerate(paths):
            share = ",".join(map(str, cores[number::lanes]))
            command = ["taskset", "-c", share, sys.executable, "-m", "tests.bench.bench_latency", *arguments]
            lane = subprocess.Popen([*begun_with, *command, "--lane", f"{number}/{lanes}", "--json", str(path)])
            running.enter_context(lane)
        running.close()  # waits for each
        return [one for path in paths for one in msgspec.json.decode(path.read_bytes(), type=list[Measured])]


def _all(options: argparse.Namespace) -> list[Measured]:
    lane, lanes = map(int, options.lane.split("/"))
    wanted = [
        (fault, step_seconds, number)
        # The longest first: lanes end at about the same time.
        for step_seconds in sorted(options.steps, reverse=True)
        for fault in _faults(options.fault, step_seconds)
        for number in range(options.runs)
    ][lane::lanes]
    measured = []
    with jobs.server() as server:
        for fault, step_seconds, number in wanted:
            one = _measure(fault, step_seconds, number, server, options.backend)
            print(
                f"{one.fault:12} {one.step_seconds:5} s steps: suspected {_show(one.suspected_seconds)}, "
                f"verdict {_show(one.verdict_seconds)}, load {one.load:.1f} | {one.said}",
                flush=True,
            )
            measured.append(one)
            if options.json:
                options.json.write_bytes(msgspec.json.format(msgspec.json.encode(measured)))
    return measured


def table(measured: list[Measured]) -> str:
    """One line per fault and step length, in Markdown."""
    head = ("steps", "fault", "right", "suspected p50", "verdict p50", "max", "load", "said when wrong")
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for step_seconds, fault in dict.fromkeys((one.step_seconds, one.fault) for one in measured):
        mine = [one for one in measured if (one.step_seconds, one.fault) == (step_seconds, fault)]
        verdicts = [one.verdict_seconds for one in mine if one.verdict_seconds is not None]
        suspected = [one.suspected_seconds for one in mine if one.suspected_seconds is not None]
        lines.append(
            f"| {step_seconds} s | {fault} | {sum(one.agrees for one in mine)}/{len(mine)} "
            f"| {_show(statistics.median(suspected) if suspected else None)} "
            f"| {_show(statistics.median(verdicts) if verdicts else None)} | {_show(max(verdicts, default=None))} "
            f"| {max(one.load for one in mine):.0f} | {'; '.join(o.said for o in mine if not o.agrees)} |"
        )
    return "\n".join(lines)


def _faults(names: list[str], step_seconds: float) -> list[Fault]:
    # A job that is slow or healthy is no hang, and one that never starts has no steps.
    if names:
        return [find(name) for name in names]
    if step_seconds in OTHER_STEPS:
        return [find(name) for name in OTHER_STEPS[step_seconds]]
    return [fault for fault in FAULTS if fault.name not in ("slow", "none", "absent")]


def _measure(fault: Fault, step_seconds: float, number: int, server: jobs.Server, backend: str) -> Measured:
    load = os.getloadavg()[0]
    suspected: list[float] = []
    arguments = ["--step-seconds", str(step_seconds), "--fault-step", str(FAULT_STEPS[step_seconds])]
    launch = partial(_with_arguments, server, arguments)
    try:
        outcome = play(fault, RANKS, number, lambda text: None, launch=launch, backend=backend, environment=os.environ)
    except StallwatchError as error:
        return Measured(fault.name, step_seconds, None, None, False, load, str(error))
    suspected = _suspected(outcome)
    verdict = outcome.verdict
    said = f"{verdict.cause} {list(verdict.culprits)}" if verdict else "nothing"
    return Measured(
        fault.name,
        step_seconds,
        suspected[0] if suspected else None,
        outcome.seconds_to_verdict,
        outcome.agrees,
        load,
        said if outcome.agrees else f"WRONG: {said}",
    )


def _with_arguments(
    server: jobs.Server,
    more: list[str],
    program: Path,
    arguments: list[str],
    ranks: int,
    environment: dict[str, str],
    log: Path,
) -> jobs.ForkedJob:
    return server.launch(program, [*arguments, *more], ranks, environment, log)


def _suspected(outcome: DemoOutcome) -> list[float]:
    """When it was suspected, in seconds after the fault: back from the verdict, by the incident's own events."""
    if outcome.incident is None or outcome.seconds_to_verdict is None:
        return []
    times = {event.what.split(":")[0]: datetime.fromisoformat(event.at) for event in reversed(outcome.incident.events)}
    verdict = next((times[what] for what in times if what.startswith("verdict")), None)
    if verdict is None or "suspected" not in times:
        return []
    return [outcome.seconds_to_verdict - (verdict - times["suspected"]).total_seconds()]


def _summary(measured: list[Measured], step_seconds: float, at_once: bool) -> bool:
    mine = [m for m in measured if m.step_seconds == step_seconds and (m.fault in AT_ONCE) == at_once]
    verdicts = sorted(m.verdict_seconds for m in mine if m.verdict_seconds is not None)
    if not mine:
        return True
    goal = GOAL_AT_ONCE if at_once else GOALS[step_seconds]
    right = sum(m.agrees for m in mine)
    p95 = _p95(verdicts)
    spread = f"p50 {statistics.median(verdicts or [0]):.1f}, p95 {p95:.1f}, max {max(verdicts or [0]):.1f} s"
    what = "deaths and stops" if at_once else "stalls"
    print(f"{what:16} at {step_seconds} s steps: right {right}/{len(mine)}; verdict {spread}; goal {goal} s")
    return right == len(mine) and len(verdicts) == len(mine) and p95 <= goal


def _p95(verdicts: list[float]) -> float:
    return statistics.quantiles(verdicts, n=20, method="inclusive")[-1] if len(verdicts) > 1 else max(verdicts or [0])


def _show(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f} s"


def _options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=float, action="append", default=[], help="step lengths: 0.05, 0.5, 5")
    parser.add_argument("--fault", action="append", default=[], help="may be given several times; default: all")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--lane", default="0/1", help="which part of the runs: I/N")
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="results of lanes: no run, one table")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    options.steps = options.steps or list(GOALS)
    return options


if __name__ == "__main__":
    sys.exit(main())
