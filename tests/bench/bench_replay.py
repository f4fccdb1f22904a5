"""A thousand job-hours of generated healthy behaviour, and the same kind of jobs with a fault: who was told what.

    python tests/bench/bench_replay.py [--hours 1000] [--faults 200] [--processes 2] [--seed 0] [--json replay.json]
    python tests/bench/bench_replay.py --long --hours 5000 --faults 0 --processes 30 [--seconds 480]

`--long`: nothing but what takes long, starts, saves, evaluations, one rank alone, one after the other, and the quiet
stepping between cut to a minute (tests/replay/long_events.py); the middle of what stays the same is seen every ten
seconds. Each generator says where its numbers come from (tests/replay/healthy.py). A simulated clock: no figure here
depends on the machine. Exit code 0 when nobody was told in health, no rank was called slow, and every fault was found.
"""

import argparse
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path

import msgspec

# Started as a script, perhaps where nothing is installed: neither root is on the path yet.
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "monitor"))

from tests.replay import long_events
from tests.replay.healthy import moments
from tests.replay.replaying import Played, play

JOB_HOURS = 4.0
LONG_HOURS = 8.0
FAULTY_HOURS = 1.0


def main() -> int:
    options = _options()
    hours_each, healthy_job = (LONG_HOURS, _long) if options.long else (JOB_HOURS, _healthy)
    jobs = max(1, round(options.hours / hours_each))
    healthy = range(options.seed, options.seed + jobs)
    faulty = range(options.seed + jobs, options.seed + jobs + options.faults)
    until = time.monotonic() + options.seconds
    with ProcessPoolExecutor(options.processes) as pool:
        quiet = {}
        for seed, played in _until(pool, healthy_job, healthy, until):
            quiet[seed] = played
            if len(quiet) % 25 == 0:
                so_far, said = sum(p.hours for p in quiet.values()), sum(len(p.told) for p in quiet.values())
                print(
                    f"{so_far:.0f} job-hours, told {said}, slow {sum(len(p.slow) for p in quiet.values())}", flush=True
                )
        struck = {seed: played for seed, played in zip(faulty, pool.map(_faulty, faulty), strict=True) if played.fault}
    told = [(seed, one) for seed, played in quiet.items() for one in played.told]
    slow = [(seed, reason) for seed, played in quiet.items() for reason in played.slow]
    missed = [(seed, played.fault) for seed, played in struck.items() if played.told_after_seconds is None]
    early = [(seed, one) for seed, played in struck.items() for one in played.told]
    for what, ones in (("told", told), ("called slow", slow), ("MISSED", missed), ("told before the fault", early)):
        for seed, one in ones:
            print(f"{what}: seed {seed}: {one}")
    hours = sum(played.hours for played in quiet.values())
    suspicions = sum(played.suspicions for played in quiet.values())
    looks = sum(played.looks for played in quiet.values())
    events = [event for played in quiet.values() for event in played.events]
    print(
        f"healthy: {hours:.0f} job-hours with {len(events)} stretches that were no steps, told {len(told)}, "
        f"called slow {len(slow)}, suspected {suspicions} times, {looks} looks ({looks / max(hours, 0.1):.2f} an hour)"
    )
    for what in sorted({what for what, _ in events}):
        seconds = [lasted for one, lasted in events if one == what]
        print(f"{what:28}: {len(seconds)}, p50 {statistics.median(seconds):.0f} s, longest {max(seconds):.0f} s")
    for doing in ("hang", "death", "stop"):
        _line(doing, [played for played in struck.values() if played.fault and played.fault.doing == doing])
    if options.json:
        options.json.write_bytes(msgspec.json.encode({"healthy": quiet, "faulty": struck}))
    return 0 if not (told or slow or missed or early) else 1


def _until(
    pool: Executor, job: Callable[[int], Played], seeds: Iterable[int], until: float
) -> Iterator[tuple[int, Played]]:
    """Each seed's job in its order, of those that were begun before it was time to end."""
    running: deque[tuple[int, Future[Played]]] = deque()
    for seed in seeds:
        if time.monotonic() > until:
            break
        running.append((seed, pool.submit(job, seed)))
        if len(running) > 2 * (os.cpu_count() or 1):
            first, done = running.popleft()
            yield first, done.result()
    for seed, done in running:
        if time.monotonic() < until or not done.cancel():
            yield seed, done.result()


def _healthy(seed: int) -> Played:
    return play(moments(seed, JOB_HOURS))


def _long(seed: int) -> Played:
    return play(long_events.moments(seed, LONG_HOURS))


def _faulty(seed: int) -> Played:
    return play(moments(seed, FAULTY_HOURS, with_fault=True))


def _line(doing: str, played: list[Played]) -> None:
    verdicts = [one.found_after_seconds for one in played if one.found_after_seconds is not None]
    if len(verdicts) > 1:
        p95 = statistics.quantiles(verdicts, n=20, method="inclusive")[-1]
        spread = f"p50 {statistics.median(verdicts):.0f}, p95 {p95:.0f}, max {max(verdicts):.0f} s"
        found = sum(one.told_after_seconds is not None for one in played)
        print(f"{doing:6}: {found} of {len(played)} told; fault to verdict (all step lengths) {spread}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=1000.0, help="job-hours of health")
    parser.add_argument("--faults", type=int, default=200, help="jobs with a fault")
    parser.add_argument("--long", action="store_true", help="what takes long, one event after the other")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no job of health after that")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
