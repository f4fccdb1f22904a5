"""bench_slow_ranks on a large machine: lanes side by side, each with cores, a daemon and directories of its own.

    python tests/bench/bench_slow_lanes.py --lanes 12 --cores 0-47 --time-limit 560 --lines $OUT/slow.jsonl
        [--gpus 4] -- --backend gloo --by sleep cpu loader beside --extra 0.2 0.3 1 --step-seconds 0.05 0.2 1
        --ranks 4 --runs 10 --seconds 45

What follows `--` is bench_slow_ranks' own. All its runs are dealt out to the lanes in an order drawn by chance, so that
what a time limit leaves is a part of every kind; the table at the end is of all that were played. `--gpus`: lane n sees
GPU n % gpus alone. Exit code 0 when every run was right.
"""

import argparse
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "monitor"))

from tests.bench import bench_slow_ranks

BENCH = Path(__file__).with_name("bench_slow_ranks.py")
_END_SECONDS = 30.0  # a lane that is asked to end ends its jobs and its daemon


def main() -> int:
    """Return 0 when every run was right."""
    own, passed = _options()
    kinds = list(
        itertools.product(passed.by, passed.extra, passed.step_seconds, passed.ranks, range(passed.runs))
    )  # fmt: skip
    random.Random(own.seed).shuffle(kinds)
    cores = sorted(bench_slow_ranks.cores_of(own.cores)) if own.cores else sorted(os.sched_getaffinity(0))
    each = max(1, len(cores) // own.lanes)
    until = time.monotonic() + own.time_limit
    with tempfile.TemporaryDirectory(prefix="stallwatch-lanes-") as folder:
        lanes = [
            _lane(lane, kinds[lane :: own.lanes], cores[lane * each :][:each], Path(folder), own)
            for lane in range(own.lanes)
            if kinds[lane :: own.lanes]
        ]
        try:
            for lane in lanes:
                lane.wait(max(1.0, until + _END_SECONDS - time.monotonic()))
        except subprocess.TimeoutExpired:
            print("a lane did not end in time")
        finally:
            for lane in lanes:
                lane.terminate()
            for lane in lanes:
                lane.wait()
            right = _gather(Path(folder), own)
    return 0 if right else 1


def _lane(
    lane: int, kinds: list[tuple[str, float, float, int, int]], cores: list[int], folder: Path, own: argparse.Namespace
) -> "subprocess.Popen[bytes]":
    plan = folder / f"plan-{lane}.json"
    plan.write_bytes(msgspec.json.encode(kinds))
    environment = dict(os.environ)
    if own.gpus:
        environment["CUDA_VISIBLE_DEVICES"] = str(lane % own.gpus)
    command = [
        sys.executable, str(BENCH), *own.passed, "--plan", str(plan), "--lines", str(folder / f"lane-{lane}.jsonl"),
        "--time-limit", str(own.time_limit), *(["--cores", ",".join(map(str, cores))] if cores else []),
    ]  # fmt: skip
    with (folder / f"lane-{lane}.log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=BENCH.parents[2])


def _gather(folder: Path, own: argparse.Namespace) -> bool:
    lines = b"".join(path.read_bytes() for path in sorted(folder.glob("lane-*.jsonl")))
    if own.lines:
        own.lines.write_bytes(lines)
    outcomes = [msgspec.json.decode(line, type=bench_slow_ranks.Outcome) for line in lines.splitlines()]
    for log in sorted(folder.glob("lane-*.log")):
        text = log.read_text(errors="replace")
        if own.logs:
            own.logs.mkdir(parents=True, exist_ok=True)
            (own.logs / log.name).write_text(text)
        if "Traceback" in text:
            print(f"{log.name}:\n{text[-2000:]}")
    for one in outcomes:
        if not one.right:
            print(f"WRONG {one.backend} {one.by} +{one.extra:.0%} {one.step_seconds:g} s, {one.ranks} ranks: "
                  f"suspected {one.suspected_after}, told {one.told}, over after {one.over_after}, "
                  f"exit code {one.exit_code}, load {one.load:.1f}")  # fmt: skip
    print(bench_slow_ranks.table(sorted(outcomes, key=lambda one: (one.by, one.ranks, one.step_seconds, one.extra))))
    print(f"right {sum(one.right for one in outcomes)}/{len(outcomes)}; load {os.getloadavg()[0]:.1f}")
    return bool(outcomes) and all(one.right for one in outcomes)


def _options() -> tuple[argparse.Namespace, argparse.Namespace]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--cores", help="CPUs that are divided among the lanes: 0-47; default: all")
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--time-limit", type=float, default=540.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lines", type=Path)
    parser.add_argument("--logs", type=Path, help="a folder for what each lane prints")
    parser.add_argument("passed", nargs=argparse.REMAINDER, help="-- and bench_slow_ranks' own options")
    own = parser.parse_args()
    own.passed = own.passed[1:] if own.passed[:1] == ["--"] else own.passed
    return own, bench_slow_ranks.parser().parse_args(own.passed)


if __name__ == "__main__":
    sys.exit(main())
