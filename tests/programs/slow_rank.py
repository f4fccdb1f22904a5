"""A training job in which some ranks need longer for each step, from one step to another: gloo or NCCL.

    torchrun --nproc-per-node 4 slow_rank.py --by sleep --step-seconds 0.2 --extra 0.3 --slow-rank 2 --seconds 60

By sleep, CPU work, a call that holds the GIL, the GPU, a data loader whose worker needs longer, another process on the
rank's only CPU (beside), one that stops it and lets it go on again and again (stops), or by little more and more
(creep). Or it is uneven by design.

Prints a JSON line when it has settled, when ranks become slow, when they are as fast as the others again, and at its
end, with CLOCK_MONOTONIC and the step. "fast" or "end" in the file --control has the next of these be now.
"""

import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251
from torch import nn  # noqa: TID251
from torch.nn.parallel import DistributedDataParallel  # noqa: TID251

# Started by path: the root of the tests is not on it.
sys.path.insert(0, str(Path(__file__).parents[2]))

import stallwatch
from stallwatch.demo.training import choose_device
from tests.programs.slow_ways import BY, BY_DESIGN

SETTLED = 8  # steps
AGREE_SECONDS = 2.0  # how often, by steps of their usual length
LOGGING = 0.05  # of a step
_LIBC_WITH_THE_GIL = ctypes.PyDLL(None)
MICROBATCHES = 4
PREFETCHED = 2  # batches of a loader's worker
TURN_STEPS, TURN_SECONDS = 7, 8.0  # at most: who is slow for 20 s is a slow rank, whoever is so afterwards


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--by", default="sleep", choices=BY + BY_DESIGN)
    parser.add_argument("--step-seconds", type=float, default=0.2)
    parser.add_argument("--extra", type=float, default=0.3, help="share of a step by which the slow rank is slower")
    parser.add_argument("--jitter", type=float, default=0.0, help="share by which each rank's steps vary, by chance")
    parser.add_argument("--heavy", action="store_true", help="jitter of a heavy-tailed kind")
    parser.add_argument("--draw", default="", help="what is drawn by chance: another text, other draws")
    parser.add_argument("--slow-rank", type=int, nargs="+", default=[2])
    parser.add_argument("--healthy-seconds", type=float, default=15.0)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long it is slow")
    parser.add_argument("--after-seconds", type=float, default=30.0, help="how long the job goes on after that")
    parser.add_argument("--control", type=Path, help="a file that somebody may write while it runs")
    return parser.parse_args()


class Plan:
    """When ranks are slow and when the job ends: rank 0's clock, and what is written for it."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self._chosen = chosen
        self._began = time.monotonic()
        self._over: float | None = None

    def now(self) -> tuple[float, float]:
        """Return how far into its slowness the job is, as a part of it (below 0: not yet; above 1: not any more), and
        whether it ends."""
        age = time.monotonic() - self._began - self._chosen.healthy_seconds
        told = self._chosen.control.read_text() if self._chosen.control and self._chosen.control.exists() else ""
        if self._over is None and age > 0 and (told or age > self._chosen.seconds):
            self._over = age
        ends = self._over is not None and (told == "end" or age > self._over + self._chosen.after_seconds)
        return (2.0 if self._over is not None else age / self._chosen.seconds), float(ends)


def compute(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(200))


def consume(seconds: float) -> None:
    """As much CPU time, however long that takes."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(200))


def spin_gpu(seconds: float) -> None:
    torch.cuda._sleep(int(seconds * 1.7e9))


class Beside:
    """Another process on the CPU that this rank is bound to, while it is slow."""

    def __init__(self, cpu: int) -> None:
        os.sched_setaffinity(0, {cpu})
        self._other: subprocess.Popen[bytes] | None = None

    def be(self, there: bool) -> None:
        if there and self._other is None:
            self._other = subprocess.Popen([sys.executable, "-c", "while True: pass"])  # it inherits the CPU
        elif not there and self._other is not None:
            self._other.kill()
            self._other.wait()
            self._other = None


class Stops:
    """Another process that stops this rank for half of each tenth of a second, while it is slow: as cpulimit does."""

    def __init__(self) -> None:
        self._other: subprocess.Popen[bytes] | None = None

    def be(self, there: bool) -> None:
        if there and self._other is None:
            self._other = subprocess.Popen([sys.executable, "-c", _STOPS, str(os.getpid())], stdin=subprocess.PIPE)
        elif not there and self._other is not None:
            self._other.communicate()  # it lets this rank go on before it ends
            self._other = None


_STOPS = """
import os, select, signal, sys, time
while not select.select([0], [], [], 0.05)[0]:
    os.kill(int(sys.argv[1]), signal.SIGSTOP)
    time.sleep(0.05)
    os.kill(int(sys.argv[1]), signal.SIGCONT)
"""


class Slowly(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """A loader's worker that decodes as long as the file at `path` says."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self):  # type: ignore[no-untyped-def]
        while True:
            compute(float(self._path.read_text() or 0))
            yield torch.randn(32, 64)


def effect_steps(chosen: argparse.Namespace, slow: bool) -> int:
    """After how many steps what has changed by now is felt. A worker that needs longer first uses up its lead: its
    batch k since then is wanted k + PREFETCHED - 1 steps later, and late when k batches take longer than so many steps.
    One that is fast again has a batch in work."""
    if chosen.by != "loader" or not chosen.extra:
        return 0
    return int((PREFETCHED - 1) / chosen.extra) + PREFETCHED if slow else 1


def main() -> None:
    chosen = options()
    if chosen.by in ("jitter", "heavy"):
        chosen.jitter, chosen.heavy = chosen.extra, chosen.by == "heavy"
    beat = stallwatch.attach()
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    draw, drawn_by_all, wanders = random.Random(f"{chosen.draw} {rank}"), random.Random(chosen.draw), 0
    turn = max(1, min(TURN_STEPS, round(TURN_SECONDS / chosen.step_seconds)))
    device = torch.device("cpu")
    if chosen.backend == "nccl":
        _, device = choose_device("nccl")
    dist.init_process_group(chosen.backend)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pace = Path(tempfile.mkstemp(prefix="pace-")[1])  # lanes have process numbers of their own: these come twice
    pace.write_text("0")
    loader = iter(torch.utils.data.DataLoader(Slowly(pace), batch_size=None, num_workers=1, prefetch_factor=PREFETCHED))
    decodes = chosen.by == "loader"
    cpus = sorted(os.sched_getaffinity(0))
    own = cpus[(rank + int(os.environ["MASTER_PORT"])) % len(cpus)]  # another one in each job that runs beside this one
    beside: Beside | Stops | None = None
    if rank in chosen.slow_rank:
        beside = Beside(own) if chosen.by == "beside" else None
        beside = Stops() if chosen.by == "stops" else beside
    plan, slow, felt, step, agreed = Plan(chosen), False, -1, 0, torch.zeros(2)
    settled = (time.monotonic(), 0)
    share = -1.0  # of the time in which it is slow
    while True:
        if step == SETTLED:
            settled = mark(rank, "settled", step)
        # All leave at the same step, and see the same clock: rank 0's.
        if step % max(1, round(AGREE_SECONDS / chosen.step_seconds)) == 0:
            agreed[:] = torch.tensor(plan.now())
            clock = agreed.to(device)
            dist.broadcast(clock, 0)
            share, ends = clock.tolist()
            if ends:
                break
        work = chosen.step_seconds
        now_slow = 0 < share <= 1
        if chosen.by == "wander" and step % turn == 0:  # the same draw on all ranks
            wanders = (wanders + 1 + drawn_by_all.randrange(dist.get_world_size() - 1)) % dist.get_world_size()
        culprits = [wanders] if chosen.by == "wander" else chosen.slow_rank
        mine = rank in culprits
        if now_slow != slow:
            slow = now_slow
            felt = step + effect_steps(chosen, slow)
            if decodes and mine:
                # Its worker decodes while the rank talks to the others: to be slow it must need longer than a step.
                usual = (time.monotonic() - settled[0]) / (step - settled[1]) if step > settled[1] else work
                pace.write_text(str(usual * (1 + chosen.extra) if slow else 0))
            if beside is not None:
                beside.be(slow)
        if step == felt:
            mark(rank, "slow" if slow else "over", step)
        if chosen.jitter:
            by = draw.paretovariate(2.5) - 1.67 if chosen.heavy else draw.gauss(0, 1)
            work = max(0.2 * work, work * (1 + chosen.jitter * by))
        work += by_design(chosen, rank, step, draw) * chosen.step_seconds
        if chosen.by == "surge" and slow and not mine:
            others = dist.get_world_size() - len(chosen.slow_rank)
            work = max(0.0, work - chosen.step_seconds * chosen.extra * len(chosen.slow_rank) / others)
        extra = chosen.step_seconds * chosen.extra if slow and mine else 0.0
        if chosen.by == "creep":
            extra *= share
        if chosen.by in ("beside", "stops"):
            # All compute as much; whose CPU is shared, or who is stopped for half of the time, needs twice as long.
            extra, work = chosen.step_seconds * chosen.extra, work * (1 - chosen.extra)
        if decodes:
            until = time.monotonic() + work
            batch = next(loader)  # slow: loader
            time.sleep(max(0.0, until - time.monotonic()))
        elif chosen.by == "pipeline":
            batch = pipeline(work, device)
        elif chosen.by == "surge":
            batch = torch.randn(32, 64)
            time.sleep(work + extra)  # more of the same
        else:
            batch = torch.randn(32, 64)
            time.sleep(work)
            if chosen.by in ("sleep", "creep", "wander"):
                time.sleep(extra)  # slow: sleep
            elif chosen.by == "logs" and not rank and step >= SETTLED:
                time.sleep(chosen.step_seconds * (chosen.extra or LOGGING))
            elif chosen.by == "cpu":
                compute(extra)  # slow: cpu
            elif chosen.by in ("beside", "stops"):
                consume(extra)  # slow: beside
            elif chosen.by == "gil":
                _LIBC_WITH_THE_GIL.usleep(round(extra * 1e6))  # slow: gil
            elif chosen.by == "gpu":
                spin_gpu(extra)
        loss = model(batch.to(device)).square().mean()  # slow: gpu
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        beat.step()
        step += 1
    mark(rank, "ended", step)
    if beside is not None:
        beside.be(False)
    dist.barrier()
    dist.destroy_process_group()
    pace.unlink()


def mark(rank: int, what: str, step: int) -> tuple[float, int]:
    """Tell whoever watches, once for all ranks, that this step is the first of something."""
    at = time.monotonic()
    if rank == 0:
        print(json.dumps({"mark": what, "at": at, "step": step}), flush=True)
    return at, step


def pipeline(work: float, device: torch.device) -> torch.Tensor:
    """One step of this rank's stage: what it gets it hands on, a part of the batch at a time."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    batch = torch.randn(32, 64, device=device)
    for _ in range(MICROBATCHES):
        if rank:
            dist.recv(batch, rank - 1)
        time.sleep(work * (0.5 if rank in (0, last) else 1.0) / MICROBATCHES)
        if rank < last:
            dist.send(batch, rank + 1)
    return batch


def by_design(chosen: argparse.Namespace, rank: int, step: int, draw: random.Random) -> float:
    """What a rank does beside its usual work, in steps."""
    kind = chosen.by
    if kind == "uneven":  # lengths of sequences
        return min(draw.lognormvariate(-1.2, 0.8), 3.0)
    if kind == "experts":  # each rank's own load, which changes with the data
        return 0.5 * random.Random(f"{chosen.draw} {rank} {step // 20}").random() + 0.1 * draw.random()
    if kind == "warmup" and step < 2 * SETTLED:
        return 2.0 + (4.0 if rank == 1 else 0.0)
    if rank or step < SETTLED:
        return 0.0
    if kind == "evaluates":
        return 10.0 if step % 50 == 0 else 0.0
    return 5.0 if kind == "saves" and step % 40 == 0 else 0.0


if __name__ == "__main__":
    main()
