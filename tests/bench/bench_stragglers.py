"""Slow ranks by detection alone, on a simulated clock: time to alert, precision, recall; and jobs that only look so.

    python tests/bench/bench_stragglers.py [--jobs 10] [--minutes 20] [--json stragglers.json]

One rank of 4 and of 8 is slower by 10 %, 30 % and 100 %, by sleep, contention for the CPU, or its data loader; controls
are a steady pipeline, experts whose load changes, and jobs with nothing wrong. tests/replay/stragglers.py says how.
"""

import argparse
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

# Started as a script: the repository's root is not on the path yet.
sys.path.insert(0, str(Path(__file__).parents[2]))

from stallwatch.config import Config
from stallwatch.detectors.replay import replay
from tests.replay.stragglers import By, Job, play

ONSET_SECONDS = 120.0
SLOW: tuple[By, ...] = ("sleep", "cpu contention", "data loader")
CONTROLS: tuple[By, ...] = ("nothing", "pipeline", "experts")
EXPLAINED = {"cpu contention": "CPU core", "data loader": "data loaders", "sleep": "nothing that can be seen"}


class Result(msgspec.Struct, frozen=True):
    by: str
    ranks: int
    slowdown: float
    right_after_seconds: float | None  # from the onset to a confirmed finding that names the rank
    wrong: int  # confirmed findings of ranks that are not slow
    explained: bool
    cost_seconds: float


def main() -> int:
    options = _options()
    cases = [
        (by, ranks, slowdown, seed, options.minutes)
        for ranks in (4, 8)
        for by, slowdown in [*((by, s) for by in SLOW for s in (0.1, 0.3, 1.0)), *((by, 0.0) for by in CONTROLS)]
        for seed in range(options.jobs)
    ]
    with ProcessPoolExecutor(options.processes) as pool:
        results = list(pool.map(_run, cases, chunksize=2))
    print("| by | ranks | slower | found | p50 | p95 | wrong | explained | costs |\n|" + " --- |" * 9)
    for by, ranks, slowdown in dict.fromkeys((r.by, r.ranks, r.slowdown) for r in results):
        _line([r for r in results if (r.by, r.ranks, r.slowdown) == (by, ranks, slowdown)])
    slow = [r for r in results if r.by in SLOW]
    found, wrong = sum(r.right_after_seconds is not None for r in slow), sum(r.wrong for r in results)
    print(f"recall {found / len(slow):.3f}, precision {found / max(found + wrong, 1):.3f}")
    if options.json:
        options.json.write_bytes(msgspec.json.encode(results))
    return 0 if found == len(slow) and not wrong else 1


def _run(case: tuple[By, int, float, int, float]) -> Result:
    by, ranks, slowdown, seed, minutes = case
    job = Job(by, ranks, slowdown, seed % ranks, ONSET_SECONDS)
    after, wrong, explained, cost = None, set(), False, 0.0
    for snapshot, detected in replay(Config(), play(job, minutes * 60, seed)):
        assert not detected.errors, detected.errors
        for finding in detected.findings:
            if finding.detector != "slow" or finding.stage != "confirmed":
                continue
            if by not in SLOW or finding.ranks != (job.slow_rank,):
                wrong.add(finding.ranks)
            elif after is None:
                after = snapshot.tick - ONSET_SECONDS
                explained, cost = EXPLAINED[by] in finding.reason, finding.cost_seconds
        if after is not None:
            break
    return Result(by, ranks, slowdown, after, len(wrong), explained, cost)


def _line(mine: list[Result]) -> None:
    seconds = [r.right_after_seconds for r in mine if r.right_after_seconds is not None]
    p95 = statistics.quantiles(seconds, n=20, method="inclusive")[-1] if len(seconds) > 1 else max(seconds or [0])
    spread = f"{statistics.median(seconds):.0f} s | {p95:.0f} s" if seconds else " | "
    explained = f"{sum(r.explained for r in mine)}/{len(seconds)}" if seconds else ""
    cost = f"{statistics.median(r.cost_seconds for r in mine):.3f} s" if seconds else ""
    print(
        f"| {mine[0].by} | {mine[0].ranks} | {mine[0].slowdown:.0%} | {len(seconds)}/{len(mine)} | {spread} "
        f"| {sum(r.wrong for r in mine)} | {explained} | {cost} |"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10, help="of each kind")
    parser.add_argument("--minutes", type=float, default=20.0, help="how long each is watched")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
