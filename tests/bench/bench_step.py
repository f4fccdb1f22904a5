"""What the hook costs a training job: `python -m tests.bench.bench_step`. Prints; asserts nothing.

The goal is step() at most 1.8 times an empty call and a clock read. `step()` is called as a job calls it, as an
attribute of what attach() returned, with the pulse running. Both are counted in time of the processor and in turns, so
that a busy machine slows both. The peer is the heartbeat of NVIDIA's resiliency extension, which asks its rank monitor
server and waits for the answer: both are counted in plain time, each by its least of many rounds.
"""

import contextlib
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from tests.bench.figures import Figure, median_of

CALLS = 1_000  # short, so that most repeats are not interrupted
REPEATS = 801
BEATS, BEAT_ROUNDS = 50, 40
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


def step_ratio(beat: object, repeats: int = REPEATS) -> Figure:
    def empty() -> None:
        pass

    names: dict[str, object] = {"beat": beat, "empty": empty, "monotonic_ns": time.monotonic_ns}
    timed("beat.step()", names)
    rounds = [(timed("empty(); monotonic_ns()", names), timed("beat.step()", names)) for _ in range(repeats)]
    base, step = (statistics.median(values) for values in zip(*rounds, strict=True))
    detail = f"{step:.0f} ns against {base:.0f} ns"
    return median_of("step()", [step / base for base, step in rounds], "×", detail)


def phase_cost(beat: object) -> Figure:
    entering = [timed("with phase('x'): pass", {"phase": beat.phase}) for _ in range(101)]  # type: ignore[attr-defined]
    return median_of("phase(), entered and left", entering, "ns")


def timed(
    statement: str, names: dict[str, object], calls: int = CALLS, timer: Callable[[], float] = time.thread_time
) -> float:
    """Nanoseconds of a statement, of the processor where no other timer is named."""
    return timeit.timeit(statement, globals=names, number=calls, timer=timer) / calls * 1e9


@contextlib.contextmanager
def heartbeat(folder: Path) -> Iterator[Callable[[], None]]:
    """The peer's heartbeat, connected to its own server in a process of its own, both as it documents them."""
    import torch.multiprocessing  # noqa: TID251

    fault_tolerance = importlib.import_module("nvidia_resiliency_ext.fault_tolerance")
    os.environ["FT_RANK_MONITOR_IPC_SOCKET"] = str(folder / "rank-monitor.socket")
    os.environ["LOCAL_RANK"] = "0"
    server = fault_tolerance.RankMonitorServer.run_in_subprocess(
        fault_tolerance.FaultToleranceConfig(),
        os.environ["FT_RANK_MONITOR_IPC_SOCKET"],
        mp_ctx=torch.multiprocessing.get_context("spawn"),
    )
    client = fault_tolerance.RankMonitorClient()
    try:
        client.init_workload_monitoring()
        yield client.send_heartbeat
        client.shutdown_workload_monitoring()
    finally:
        server.kill()
        server.join()


def against_heartbeat(beat: object, folder: Path) -> Figure:
    with heartbeat(folder) as send:
        names: dict[str, object] = {"beat": beat, "send": send}
        rounds = [
            (timed("beat.step()", names, CALLS, time.perf_counter), timed("send()", names, BEATS, time.perf_counter))
            for _ in range(BEAT_ROUNDS)
        ]
    step, sent = (min(values) for values in zip(*rounds, strict=True))
    return Figure(
        "NVRx send_heartbeat against step()", sent / step, "×", detail=f"{sent / 1e3:.1f} µs against {step:.0f} ns"
    )


def attach_cost(times: int = 11) -> list[Figure]:
    found = []
    loaded = "import json, pickle, re, signal, typing, weakref, threading"
    for label, before in (("nothing else loaded", ""), ("standard library loaded, as torch does", loaded)):
        took = []
        for _ in range(times):
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
        detail = f"import {imported:.1f} ms, its own modules included"
        found.append(Figure(f"attach(), {label}", attached, "ms", detail=detail))
    return found


def pulse_cost(seconds: float = 10.0) -> Figure:
    """CPU of an idle attached process; the pulse is all that runs."""
    before = time.process_time()
    time.sleep(seconds)
    return Figure("pulse", (time.process_time() - before) / seconds * 100, "% of a core", detail="an idle process")


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


def figures(quick: bool) -> list[Figure]:
    """Of a process that is attached as a rank is."""
    with tempfile.TemporaryDirectory() as directory:
        os.environ.update(STALLWATCH_DIR=directory, RANK="0", WORLD_SIZE="1")
        import stallwatch

        beat = stallwatch.attach()
        found = [step_ratio(beat, 101 if quick else REPEATS), phase_cost(beat), pulse_cost(3.0 if quick else 10.0)]
        if find_spec("nvidia_resiliency_ext"):
            found.append(against_heartbeat(beat, Path(directory)))
        return [*found, *attach_cost(3 if quick else 11)]


def main() -> None:
    pauses("without the hook")
    for figure in figures(quick=False):
        print(figure)
    pauses("with it")


if __name__ == "__main__":
    main()
