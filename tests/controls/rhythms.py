"""More jobs that look hung and are not: rhythms and disturbances of ordinary training. See common.py.

Started as `rhythms.py NAME`.
"""

import contextlib
import gc
import random
import tempfile
import time

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

from tests.controls.common import DEVICE, RANK, STEP_SECONDS, WORLD, beat, busy, compute, main, situation, step


@situation
def alternating_evaluation() -> None:
    """Every twenty steps an evaluation without a phase, on all ranks, in which nothing is counted."""
    for _ in range(8):
        for _ in range(20):
            step()
        time.sleep(3.0)
        dist.all_reduce(torch.ones(1, device=DEVICE))


@situation
def rank0_logs() -> None:
    """Rank 0 writes its log to a slow disk now and then, the others wait a moment for it."""
    with tempfile.TemporaryFile() as file:
        for number in range(500):
            step()
            if RANK == 0 and number % 100 == 99:
                file.write(b"loss" * 1000)
                file.flush()
                time.sleep(0.25)


@situation
def loader_refills() -> None:
    """Every eighth batch is not there in time: each rank waits for its own workers, now longer, now shorter."""
    draw = random.Random(RANK)
    for number in range(200):
        if number % 8 == 7:
            time.sleep(draw.uniform(0.2, 1.2))
        step()


@situation
def two_step_times() -> None:
    """A GAN: a discriminator's step, then a generator's of ten times its length."""
    for number in range(60):
        step(0.6 if number % 2 else STEP_SECONDS)


@situation
def garbage_collection() -> None:
    """Pauses of a second or two, each time on another rank: a collection of millions of objects holds the GIL."""
    draw, garbage = random.Random(7), [[number] for number in range(400_000)]
    for number in range(300):
        if number % 40 == 39 and draw.randrange(WORLD) == RANK:
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                gc.collect()
        step()
    assert garbage


@situation
def recompiles() -> None:
    """A shape that was not seen before: one rank compiles for longer than any limit, twice, the others wait."""
    for number in range(240):
        if number in (100, 180) and number % WORLD == RANK:
            busy(8.0)
        step()


@situation
def warm_then_cold_cache() -> None:
    """The page cache is used up: from one step to the next all ranks read from the disk, each as it can."""
    draw = random.Random(100 + RANK)
    for number in range(130):
        if number >= 100:
            time.sleep(draw.uniform(0.3, 1.5))
        step()


@situation
def learning_rate_finder() -> None:
    """Sweeps of thirty steps; between them every rank restores its state, which takes a while."""
    for sweep in range(4):
        for _ in range(30):
            step(STEP_SECONDS * (1 + sweep))
        busy(4.0)


@situation
def suspended() -> None:
    """A scheduler suspends the whole job and lets it go on (`scontrol suspend`); the runner sends the signals."""
    for _ in range(500):
        step()


@situation
def frozen() -> None:
    """The whole job's control group is frozen for a while (a paused container); the runner does it."""
    for _ in range(500):
        step()


@situation
def dynamic_batches() -> None:
    """Batches by tokens and a heavy tail: most steps are short, some take thirty times as long, on all ranks alike."""
    draw = random.Random(11)
    for _ in range(150):
        step(min(STEP_SECONDS * draw.lognormvariate(0.5, 1.2), 4.0))


@situation
def accumulates_without_sync() -> None:
    """N13: DDP's no_sync for thirty-one micro steps of a quarter second; the thirty-second synchronises."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32).to(DEVICE))
    for _ in range(6):
        for number in range(32):
            time.sleep(0.25)
            synchronises = number == 31
            with contextlib.nullcontext() if synchronises else model.no_sync():
                model(torch.randn(4, 32, device=DEVICE)).sum().backward()
        beat.step()


@situation
def uneven_inputs() -> None:
    """Ranks have different numbers of batches and shadow each other's collectives (torch's Join)."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32).to(DEVICE))
    with model.join():
        for _ in range(80 + 60 * RANK):
            time.sleep(STEP_SECONDS)
            model(torch.randn(4, 32, device=DEVICE)).sum().backward()
            beat.step()


@situation
def generates_and_trains() -> None:
    """Reinforcement learning in one program: a long rollout of its own length on each rank, then some updates."""
    draw = random.Random(RANK)
    for _ in range(4):
        compute(draw.uniform(3.0, 9.0))
        for _ in range(15):
            step()


@situation
def clock_jumps() -> None:
    """The wall clock is set an hour ahead and two hours back (NTP after a long drift); only monotonic time is true."""
    began, real, real_ns = time.monotonic(), time.time, time.time_ns

    def off_seconds() -> int:
        age = time.monotonic() - began
        return 0 if age < 6 else 3600 if age < 14 else -3600

    time.time = lambda: real() + off_seconds()
    time.time_ns = lambda: real_ns() + off_seconds() * 1_000_000_000
    for _ in range(500):
        step()


if __name__ == "__main__":
    main()
