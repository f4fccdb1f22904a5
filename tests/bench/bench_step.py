"""What the hook costs a training job: `python tests/bench/bench_step.py`. Prints; asserts nothing.

The goal is step() at most 2.5 times an empty call and a clock read. `step()` is called as a job calls it, as an
attribute of what attach() returned, with the pulse running.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from pathlib import Path

CALLS = 1_000  # short, so that most repeats are not interrupted
REPEATS = 801
GOAL = 2.5
SOURCE_ROOT = str(Path(__file__).parents[2] / "monitor")
# A light job has loaded little; torch would have loaded all that attach() needs.
_ATTACH = """
import sys, time
sys.path.insert(0, {root!r})
{before}
began = time.perf_counter()
import stallwatch
imported = time.perf_counter()
stallwatch.attach()
print(imported - began, time.perf_counter() - imported)
"""


def step_ratio(beat: object) -> None:
    def empty() -> None:
        pass

    names: dict[str, object] = {"beat": beat, "empty": empty, "monotonic_ns": time.monotonic_ns}
    # Alternating, so that a busy machine slows both.
    rounds = [(timed("empty(); monotonic_ns()", names), timed("beat.step()", names)) for _ in range(REPEATS)]
    ratios = sorted(step / base for base, step in rounds)
    base, step = (statistics.median(values) for values in zip(*rounds, strict=True))
    print(
        f"step(): {step:.0f} ns; empty call and clock read: {base:.0f} ns; "
        f"ratio median {statistics.median(ratios):.2f}, worst tenth {ratios[REPEATS * 9 // 10]:.2f}, goal {GOAL}"
    )
    entering = timed("with phase('x'): pass", {"phase": beat.phase})  # type: ignore[attr-defined]
    print(f"phase(): {entering:.0f} ns for entering and leaving")


def timed(statement: str, names: dict[str, object]) -> float:
    return timeit.timeit(statement, globals=names, number=CALLS) / CALLS * 1e9


def attach_cost() -> None:
    loaded = "import json, pickle, re, signal, typing, weakref, threading"
    for label, before in (("nothing else loaded", ""), ("standard library loaded, as torch does", loaded)):
        took = []
        for _ in range(11):
            with tempfile.TemporaryDirectory() as directory:
                run = subprocess.run(
                    [sys.executable, "-I", "-S", "-c", _ATTACH.format(root=SOURCE_ROOT, before=before)],
                    env={"STALLWATCH_DIR": directory, "RANK": "0", "WORLD_SIZE": "1"},
                    capture_output=True,
                    text=True,
                    check=True,
                )
            took.append([float(number) * 1e3 for number in run.stdout.split()])
        imported, attached = (statistics.median(values) for values in zip(*took, strict=True))
        print(f"attach(), {label}: import {imported:.1f} ms, call {attached:.1f} ms (its own modules included)")


def pulse_cost(seconds: float = 10.0) -> None:
    """CPU of an idle attached process; the pulse is all that runs."""
    before = time.process_time()
    time.sleep(seconds)
    spent = time.process_time() - before
    print(f"pulse: {spent / seconds * 1e6:.0f} µs of CPU a second ({spent / seconds * 100:.3f} % of a core)")


def pauses(label: str, seconds: float = 5.0) -> None:
    """How long the job's thread stands still: gaps in a loop that only looks at the clock, the machine's own too."""
    gaps: list[float] = []
    last = time.perf_counter_ns()
    end = last + int(seconds * 1e9)
    while last < end:
        now = time.perf_counter_ns()
        if now - last > 20_000:
            gaps.append((now - last) / 1e3)
        last = now
    print(
        f"gaps over 20 µs in {seconds:.0f} s of a busy loop, {label}: {len(gaps)}, "
        f"worst {max(gaps, default=0.0):.0f} µs, together {sum(gaps) / 1e3:.2f} ms"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        pauses("without the hook")
        os.environ.update(STALLWATCH_DIR=directory, RANK="0", WORLD_SIZE="1")
        import stallwatch

        beat = stallwatch.attach()
        step_ratio(beat)
        pauses("with it")
        pulse_cost()
        attach_cost()


if __name__ == "__main__":
    main()
