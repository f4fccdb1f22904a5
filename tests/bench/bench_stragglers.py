"""Slow ranks by detection alone, on a simulated clock: time to alert, precision, recall; and jobs that only look so.

    python tests/bench/bench_stragglers.py [--jobs 10] [--minutes 20] [--json stragglers.json]
    python tests/bench/bench_stragglers.py --calm 5000 [--seed 0] [--minutes 5] [--seconds 500]

One rank of 4 and of 8 is slower by 10 %, 30 % and 100 %, by sleep, contention for the CPU, or its data loader, under
gloo and under NCCL as torch's counters show it (host in step with its device, and running ahead); controls are a steady
pipeline, experts whose load changes, logging that the device's queue hides, and jobs with nothing wrong. `--calm`: jobs
drawn by chance in which no rank is slow, with jitter of 10, 30 and 60 %, normal and heavy-tailed, and what is uneven by
design; exit code 0 when nobody is told in any: a suspicion leads to a look, a rank that is called slow and costs less
than people want to know of is shown; both are counted apart.
tests/replay/stragglers.py says how.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

# Started as a script, perhaps where nothing is installed: neither root is on the path yet.
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "monitor"))

from stallwatch.config import Config
from stallwatch.detectors.history import advance
from stallwatch.detectors.slow import SlowDetector
from stallwatch.incidents import slowness
from stallwatch.model.finding import Finding
from stallwatch.model.incident import Incident
from stallwatch.model.verdict import Verdict
from tests.replay.stragglers import SLOW_SECONDS, Backend, By, Design, Job, play, slow_whiles

ONSET_SECONDS = 120.0
SLOW: tuple[By, ...] = ("sleep", "cpu contention", "data loader")
CONTROLS: tuple[By, ...] = ("nothing", "pipeline", "experts")
BACKENDS: tuple[Backend, ...] = ("gloo", "nccl", "nccl ahead")
EXPLAINED = {"cpu contention": "CPU core", "data loader": "data loaders", "sleep": "nothing that can be seen"}


DESIGNS: tuple[Design, ...] = ("even", "even", "experts", "routed", "lengths", "wanders", "evaluates", "saves")
JITTERS = (0.1, 0.3, 0.6)


class Calm(msgspec.Struct, frozen=True):
    seed: int
    kind: str
    job: str
    suspected: int  # ticks at which somebody was
    called: bool  # whether any was confirmed
    told: str  # what was said of the first that people were told of
    in_while: str = ""  # the same of one that was slow then: a design that is drawn gave it more for so long


class Result(msgspec.Struct, frozen=True):
    backend: str
    by: str
    ranks: int
    slowdown: float
    right_after_seconds: float | None  # from the onset to a confirmed finding that names the rank
    suspected_after_seconds: float | None  # to the first finding that does: a look at the ranks may settle it then
    wrong: int  # confirmed findings of ranks that are not slow
    explained: bool
    cost_seconds: float


def main() -> int:
    options = _options()
    if options.calm:
        return _calm(options)
    cases = [
        (Job(by, ranks, slowdown, seed % ranks, ONSET_SECONDS, backend), seed, options.minutes)
        for backend in options.backend or BACKENDS
        for ranks in (4, 8)
        for by, slowdown in [
            *((by, s) for by in SLOW for s in (0.1, 0.3, 1.0)),
            *((by, 0.0) for by in (*CONTROLS, *(("logging",) if backend == "nccl ahead" else ()))),
        ]
        for seed in range(options.jobs)
    ]
    with ProcessPoolExecutor(options.processes) as pool:
        results = list(pool.map(_run, cases, chunksize=2))
    print("| backend | by | ranks | slower | found | suspected, p50 | p50 | p95 | wrong | explained | costs |")
    print("|" + " --- |" * 11)
    for kind in dict.fromkeys(map(_kind, results)):
        _line([result for result in results if _kind(result) == kind])
    slow = [r for r in results if r.by in SLOW]
    found, wrong = sum(r.right_after_seconds is not None for r in slow), sum(r.wrong for r in results)
    print(f"recall {found / len(slow):.3f}, precision {found / max(found + wrong, 1):.3f}")
    if options.json:
        options.json.write_bytes(msgspec.json.encode(results))
    return 0 if found == len(slow) and not wrong else 1


def calm_job(seed: int) -> tuple[str, Job]:
    """Return (kind, job) of a job in which no rank is slow."""
    draw = random.Random(f"calm {seed}")
    backend, ranks = draw.choice(BACKENDS), draw.choice((2, 4, 8))
    by: By = draw.choice(("nothing", "nothing", "nothing", "pipeline", "experts"))
    design: Design = draw.choice(DESIGNS) if by == "nothing" else "even"
    jitter, heavy = draw.choice(JITTERS), draw.random() < 0.5
    if (by, design, backend) == ("nothing", "even", "nccl ahead") and draw.random() < 0.2:
        by = "logging"
    job = Job(
        by, ranks, 0.0, 0, 0.0, backend,
        step_scale=draw.choice((0.25, 1.0, 5.0)), design=design, spread=draw.choice((0.2, 0.5, 1.0)),
        rhythm_seconds=draw.choice((2.0, 5.0, 15.0)), design_seed=seed, jitter=jitter, heavy=heavy,
    )  # fmt: skip
    return f"{by} {design}, jitter {jitter:.0%}{' heavy-tailed' if heavy else ''}", job


def _run_calm(case: tuple[int, float, float]) -> Calm | None:
    seed, minutes, until = case
    if time.time() > until:
        return None
    kind, job = calm_job(seed)
    suspected, called, told, in_while = 0, False, "", ""
    whiles, before = slow_whiles(job, minutes * 60), set[tuple[int, ...]]()
    for tick, found in _findings(job, minutes, seed):
        suspected += bool(found)
        called |= any(finding.stage == "confirmed" for finding in found)
        tells = {finding.ranks: finding.reason for finding in found if _is_told(finding)}
        for ranks in tells.keys() - before:
            said = f"after {tick} s: {tells[ranks]}"
            if any(ranks == (rank,) and begins < tick <= ends + 5 for rank, begins, ends in whiles):
                in_while = in_while or said
            else:
                told = told or said
        before = set(tells)
    return Calm(seed, kind, str(job), suspected, called, told, in_while)


def _is_told(finding: Finding) -> bool:
    """By the rule of incidents, if a look shows nothing else."""
    if finding.stage != "confirmed":
        return False
    incident = Incident("", finding.job, "node0", "open", "none", 0, finding.since_ns, (finding,), None, "")
    verdict = slowness.measured(incident, (Verdict("undecided", (), "possible", ""),))
    return not slowness.untold(incident, verdict, Config().slow.cost_share)


def _findings(job: Job, minutes: float, seed: int) -> Iterator[tuple[int, tuple[Finding, ...]]]:
    """Yield each tick of a job, and what the detector of slow ranks, alone, finds in it."""
    detector, seen = SlowDetector(Config().slow), None
    state = detector.start()
    for snapshot in play(job, minutes * 60, seed):
        seen = advance(seen, snapshot)
        state, found = detector.step(state, seen)
        yield snapshot.tick, found


def _calm(options: argparse.Namespace) -> int:
    until = time.time() + options.seconds
    cases = [(seed, options.minutes, until) for seed in range(options.seed, options.seed + options.calm)]
    with ProcessPoolExecutor(options.processes) as pool:
        played = [one for one in pool.map(_run_calm, cases, chunksize=4) if one is not None]
    told = [one for one in played if one.told]
    for one in told:
        print(f"TOLD: seed {one.seed}, {one.kind}: {one.told}; {one.job}")
    print("| kind | jobs | told | called slow | jobs with a suspicion |\n| --- | --- | --- | --- | --- |")
    for kind in sorted({one.kind for one in played}):
        mine = [one for one in played if one.kind == kind]
        counts = (sum(map(bool, of)) for of in zip(*((m.told, m.called, m.suspected) for m in mine), strict=True))
        print(f"| {kind} | {len(mine)} | {' | '.join(map(str, counts))} |")
    hours = len(played) * options.minutes / 60
    truly = sum(bool(one.in_while) and not one.told for one in played)
    print(
        f"{len(told)} of {len(played)} calm jobs told, {sum(one.called for one in played)} called slow, {hours:.0f} "
        f"job-hours; of {truly} others a rank that a draw kept slow for {SLOW_SECONDS:g} s or more"
    )
    if options.json:
        options.json.write_bytes(msgspec.json.encode(played))
    return 0 if played and not told else 1


def _kind(result: Result) -> tuple[str, str, int, float]:
    return result.backend, result.by, result.ranks, result.slowdown


def _run(case: tuple[Job, int, float]) -> Result:
    job, seed, minutes = case
    after, suspected, wrong, explained, cost = None, None, set(), False, 0.0
    for tick, found in _findings(job, minutes, seed):
        for finding in found:
            right = job.by in SLOW and finding.ranks == (job.slow_rank,)
            if right and suspected is None:
                suspected = tick - ONSET_SECONDS
            if finding.stage != "confirmed":
                continue
            if not right:
                wrong.add(finding.ranks)
            elif after is None:
                after = tick - ONSET_SECONDS
                explained = EXPLAINED[job.by] in finding.reason
                cost = finding.slowness.cost_seconds if finding.slowness else 0.0
        if after is not None:
            break
    return Result(job.backend, job.by, job.ranks, job.slowdown, after, suspected, len(wrong), explained, cost)


def _line(mine: list[Result]) -> None:
    seconds = [r.right_after_seconds for r in mine if r.right_after_seconds is not None]
    p95 = statistics.quantiles(seconds, n=20, method="inclusive")[-1] if len(seconds) > 1 else max(seconds or [0])
    spread = f"{statistics.median(seconds):.0f} s | {p95:.0f} s" if seconds else " | "
    early = [r.suspected_after_seconds for r in mine if r.suspected_after_seconds is not None]
    suspected = f"{len(early)}: {statistics.median(early):.0f} s" if early else ""
    explained = f"{sum(r.explained for r in mine)}/{len(seconds)}" if seconds else ""
    cost = f"{statistics.median(r.cost_seconds for r in mine):.3f} s" if seconds else ""
    print(
        f"| {mine[0].backend} | {mine[0].by} | {mine[0].ranks} | {mine[0].slowdown:.0%} | {len(seconds)}/{len(mine)} "
        f"| {suspected} | {spread} "
        f"| {sum(r.wrong for r in mine)} | {explained} | {cost} |"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10, help="of each kind")
    parser.add_argument("--calm", type=int, default=0, help="so many jobs in which no rank is slow")
    parser.add_argument("--seed", type=int, default=0, help="of the first of these")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of these, begin none after so long")
    parser.add_argument("--minutes", type=float, default=20.0, help="how long each is watched")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="may be given several times; default: all")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
