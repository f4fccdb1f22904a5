"""What captures do to ranks: none may stay stopped, whatever ends a capture; what a look costs; how soon it has what.

    python -m tests.bench.bench_captures [--captures 1000] [--seed 7] [--no-torch] [--backend nccl]
    python -m tests.bench.bench_captures --sets 4 --captures 250        4 sets side by side, with seeds 7, 8, 9, 10

Prints figures, after SIGTERM those so far; exits 1 when a rank was left stopped or traced. Costs are CPU time of the
ranks, for wall time on a busy machine says nothing.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from stallwatch.captures.capture_run import CaptureRun
from stallwatch.config import Config
from stallwatch.config_sections import CaptureSection
from stallwatch.model.evidence import Attempt
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import RankSample
from stallwatch.node.heartbeat_file import prepare, read_heartbeat
from stallwatch.node.procfs import ProcessDirectory
from stallwatch.sensors.ranks import RanksSensor
from stallwatch.sensors.sensor import Options
from tests.bench.bench_footprint import has_gpu
from tests.bench.figures import Figure
from tests.programs.privileged import side_that_knows

ENDING = threading.Event()  # SIGTERM has come
_DUMPS = (".pickle", ".json")
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
STEPPER = """
import time
import stallwatch
beat = stallwatch.attach()
def forward():
    end = time.thread_time_ns() + 2_000_000
    while time.thread_time_ns() < end:
        pass
while True:
    forward()
    beat.step()
    time.sleep(0.003)
"""
RING = """
import os, sys, threading
import torch, torch.distributed as dist
import stallwatch
beat = stallwatch.attach()
rank, backend, device = int(os.environ["RANK"]), os.environ["BENCH_BACKEND"], "cpu"
if backend == "nccl":
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    if torch.cuda.device_count() < int(os.environ["WORLD_SIZE"]):
        os.environ["NCCL_HOSTID"] = f"node{rank}"
dist.init_process_group(backend)
torch.set_num_threads(1)
tensor = torch.ones(1, device=device)
# Ranks that share a GPU take turns on it: 2,100 calls of all took minutes. Each fills its ring by itself.
alone = [dist.new_group([each]) for each in range(dist.get_world_size())][rank] if "NCCL_HOSTID" in os.environ else None
def deep(level, count, group=None):
    if level:
        return deep(level - 1, count, group)
    for _ in range(count):
        dist.all_reduce(tensor, group=group)
        if backend == "nccl":
            torch.cuda.synchronize()
        beat.step()
deep(60, 10)
deep(60, 2_090, alone)
deep(60, 1)
if dist.get_rank() == 3:
    def forgotten():
        threading.Event().wait()
    forgotten()
deep(60, 1)
"""


@contextmanager
def ranks(program: str, count: int, folder: Path) -> Iterator[list[RankSample]]:
    """Start a job and yield its ranks as the daemon's sensor sees them."""
    prepare(folder)
    common = {**os.environ, "STALLWATCH_DIR": str(folder), "STALLWATCH_JOB": "bench", "WORLD_SIZE": str(count)}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(random.randint(20000, 30000)), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.DEVNULL,
        )
        for rank in range(count)
    ]
    sensor = RanksSensor(Options((str(folder),), discover_seconds=3600))
    try:
        deadline = time.monotonic() + 120
        while True:
            found = [rank for rank in sensor.read().ranks if rank.job.training_job == "bench"]
            if len(found) == count and all(isinstance(rank.process, Known) for rank in found):
                break
            if time.monotonic() > deadline:
                raise SystemExit("the job did not start")
            time.sleep(0.2)
        yield found
    finally:
        sensor.close()
        for process in processes:
            process.kill()
            process.wait()


def held(rank: RankSample) -> bool:
    """Whether a thread of the rank is stopped or traced."""
    with ProcessDirectory(rank.pid) as directory:
        if directory.status().tracer_pid:
            return True
        for tid in directory.names("task"):
            try:
                if directory.read(f"task/{tid}/stat").rpartition(b") ")[2][:1] in b"Tt":
                    return True
            except ProcessLookupError:
                continue
    return False


def work(rank: RankSample) -> tuple[float, int]:
    """CPU seconds and steps so far."""
    assert isinstance(rank.heartbeat, Known)
    with ProcessDirectory(rank.pid) as directory:
        cpu_ticks = directory.stat().cpu_ticks
    return cpu_ticks * TICK_SECONDS, read_heartbeat(Path(rank.heartbeat.value.path)).step or 0


def cost_of_a_step(samples: list[RankSample], begin: list[tuple[float, int]]) -> float:
    """Microseconds of CPU a step since `begin`, over all ranks."""
    now = [work(rank) for rank in samples]
    cpu = sum(after[0] - before[0] for before, after in zip(begin, now, strict=True))
    return cpu / max(1, sum(after[1] - before[1] for before, after in zip(begin, now, strict=True))) * 1e6


class Figures(msgspec.Struct):
    """What one set of captures came to; `line` of a set is for the process that started several."""

    asked: int
    taken: int = 0
    ended_midway: int = 0
    left_stopped: int = 0
    failed: int = 0  # of those that were not ended
    seconds: float = 0.0
    own_cpu_seconds: float = 0.0
    step_microseconds_alone: float = 0.0
    step_microseconds_captured: float = 0.0

    def show(self) -> None:
        of = "" if self.taken == self.asked else f" (of {self.asked}: it was ended)"
        print(
            f"{self.taken} captures{of} of 2 ranks in {self.seconds:.0f} s, {self.ended_midway} ended midway; "
            f"{self.left_stopped} left a rank stopped"
        )
        cost = self.own_cpu_seconds / max(1, self.taken)
        print(f"{self.failed} of the others failed; a capture costs us {cost:.2f} s of CPU")
        print(
            f"CPU a step: {self.step_microseconds_alone:.0f} us alone, {self.step_microseconds_captured:.0f} us while "
            "captured all the time",
            flush=True,
        )


def many(count: int, folder: Path, seed: int) -> Figures:
    """Take captures, end every third midway, and look whether every rank ran on after each."""
    config = Config(capture=CaptureSection(dump_seconds=2.0, stack_seconds=5.0, nccl_ras="off"))
    rng = random.Random(seed)
    figures = Figures(count)
    with ranks(STEPPER, 2, folder / "ranks") as samples, side_that_knows(*samples, config=config) as side:
        begin = [work(rank) for rank in samples]
        ENDING.wait(10)
        figures.step_microseconds_alone = cost_of_a_step(samples, begin)
        begin, began, children = [work(rank) for rank in samples], time.monotonic(), os.times()
        for number in range(count):
            if ENDING.is_set():
                break
            run = CaptureRun(folder / "bundle", samples, 1 + number % 3, config, node="node0", side=side)
            end_at = time.monotonic() + rng.uniform(0.0, 1.2) if number % 3 == 0 else None
            hard = number % 2 == 0
            while not (state := run.poll()).done:
                if end_at is not None and time.monotonic() >= end_at:
                    figures.ended_midway += 1
                    end_at = None
                    if hard:
                        os.kill(run._looking.pid, signal.SIGKILL)  # as the kernel would for memory: no handler runs
                    else:
                        run.cancel()
                time.sleep(0.01)
            figures.failed += bool(state.problem) and number % 3 != 0
            deadline = time.monotonic() + 1.0
            while any(held(rank) for rank in samples):
                if time.monotonic() > deadline:
                    figures.left_stopped += 1
                    break
                time.sleep(0.005)
            figures.taken += 1
        spent = os.times()
        figures.step_microseconds_captured = cost_of_a_step(samples, begin)
        figures.seconds = time.monotonic() - began
    figures.own_cpu_seconds = (
        spent.children_user + spent.children_system - children.children_user - children.children_system
    )
    return figures


def side_by_side(sets: int, captures: int, seed: int) -> Figures:
    """Several processes, each with its own ranks and seed, and what they came to together."""
    command = [sys.executable, "-m", "tests.bench.bench_captures", "--no-torch", "--figures"]
    children = [
        subprocess.Popen(
            [*command, "--captures", str(captures), "--seed", str(seed + number)], stdout=subprocess.PIPE, text=True
        )
        for number in range(sets)
    ]
    while any(child.poll() is None for child in children):
        if ENDING.wait(0.2):
            for child in children:
                child.terminate()
            break
    together = Figures(0)
    for child in children:
        said = child.communicate()[0]
        try:
            one = msgspec.json.decode(said.splitlines()[-1], type=Figures)
        except (msgspec.MsgspecError, IndexError):
            raise SystemExit(f"a set failed: {said}") from None
        for name in Figures.__struct_fields__:
            setattr(together, name, getattr(together, name) + getattr(one, name))
    together.seconds /= sets
    together.step_microseconds_alone /= sets
    together.step_microseconds_captured /= sets
    return together


class Looked(NamedTuple):
    """When a look had what, in seconds after it was begun."""

    first_stack: float
    complete: float
    done: float


def full_rings(folder: Path, backend: str = "gloo") -> list[Looked]:
    """8 ranks whose rings are full of entries with 60-frame stacks, one of them not in the collective: three looks."""
    looked = []
    os.environ["BENCH_BACKEND"] = backend
    with ranks(RING, 8, folder / "rings") as samples, side_that_knows(*samples) as side:
        deadline = time.monotonic() + 300
        while min(work(rank)[1] for rank in samples) < 2_101:
            if ENDING.is_set():
                return []
            if time.monotonic() > deadline:
                raise SystemExit("the rings did not fill")
            time.sleep(0.5)
        time.sleep(3)
        for look in (1, 2, 3):
            bundle, began_ns = folder / "bundle8", time.monotonic_ns()
            run = CaptureRun(bundle, samples, look, Config(), node="node0", side=side)
            first = complete = None
            while not (state := run.poll()).done:
                now = (time.monotonic_ns() - began_ns) / 1e9
                if first is None and any(bundle.glob(f"ranks/*/stacks{'' if look == 1 else f'-{look}'}.json")):
                    first = now
                if complete is None and state.evidence_complete:
                    complete = now
                time.sleep(0.01)
            done = (time.monotonic_ns() - began_ns) / 1e9
            # torch's own pickle, or its JSON where it has one for this recorder (gloo's).
            dumps = [path.stat().st_size for path in bundle.glob("ranks/*/flight_recorder*") if path.suffix in _DUMPS]
            print(
                f"look {look} of 8 full rings: first stack {first or done:.1f} s, evidence complete "
                f"{complete or done:.1f} s, all {done:.1f} s; {len(dumps)} dumps, largest {max(dumps, default=0)} "
                f"bytes; missing: {state.missing}"
            )
            slowest: dict[str, float] = {}
            for path in bundle.glob("ranks/*/attempts.json"):
                known = [a for a in msgspec.json.decode(path.read_bytes(), type=list[Attempt]) if a.look == look]
                for attempt in known:
                    asked = ((attempt.asked_at_ns or began_ns) - began_ns) / 1e9
                    name = f"{attempt.what} {attempt.detail.split(':')[0]}"
                    slowest[name] = max(slowest.get(name, 0.0), asked)
            print("  asked at most this late: " + "; ".join(f"{name} {at:.1f} s" for name, at in slowest.items()))
            looked.append(Looked(first or done, complete or done, done))
    return looked


def figures(quick: bool) -> list[Figure]:
    """Full rings, of NCCL where there is a GPU."""
    backend = "nccl" if has_gpu() else "gloo"
    with tempfile.TemporaryDirectory() as name:
        first, *others = full_rings(Path(name), backend)
    return [
        Figure("first stack", first.first_stack, "s", detail=f"8 {backend} ranks"),
        Figure("evidence complete", first.complete, "s"),
        Figure("stacks of the whole ring", max(one.done for one in others), "s", detail="at the third look"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--captures", type=int, default=1000, help="of each set")
    parser.add_argument("--sets", type=int, default=1, help="side by side, each with ranks of its own")
    parser.add_argument("--seed", type=int, default=7, help="of the first set: when captures are ended")
    parser.add_argument("--no-torch", action="store_true", help="without the full rings")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo", help="of the full rings")
    parser.add_argument("--figures", action="store_true", help="print the set's figures as JSON")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: ENDING.set())
    with tempfile.TemporaryDirectory() as name:
        if not arguments.no_torch:
            full_rings(Path(name), arguments.backend)
        if not arguments.captures:
            return 0
        if arguments.sets > 1:
            figures = side_by_side(arguments.sets, arguments.captures, arguments.seed)
        else:
            figures = many(arguments.captures, Path(name), arguments.seed)
    if arguments.figures:
        print(msgspec.json.encode(figures).decode(), flush=True)
    else:
        figures.show()
    return 1 if figures.left_stopped else 0


if __name__ == "__main__":
    sys.exit(main())
