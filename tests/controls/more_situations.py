"""More jobs that look hung and are not: rhythms and disturbances of ordinary training. See situations.py.

Started as situations.py starts its own: `more_situations.py NAME`.
"""

import gc
import hashlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

import stallwatch

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEP_SECONDS = 0.05
beat = stallwatch.attach()


def busy(seconds: float) -> None:
    """Work on the CPU in Python."""
    until, digest = time.monotonic() + seconds, b""
    while time.monotonic() < until:
        digest = hashlib.sha256(digest * 64).digest()


def step(seconds: float = STEP_SECONDS) -> None:
    gradient = torch.ones(1024)
    time.sleep(seconds)
    dist.all_reduce(gradient)
    gradient.div_(WORLD)
    beat.step()


def alternating_evaluation() -> None:
    """Every twenty steps an evaluation without a phase, on all ranks, in which nothing is counted."""
    for _ in range(8):
        for _ in range(20):
            step()
        time.sleep(3.0)
        dist.all_reduce(torch.ones(1))


def rank0_logs() -> None:
    """Rank 0 writes its log to a slow disk now and then, the others wait a moment for it."""
    with tempfile.TemporaryFile() as file:
        for number in range(500):
            step()
            if RANK == 0 and number % 100 == 99:
                file.write(b"loss" * 1000)
                file.flush()
                time.sleep(0.25)


def loader_refills() -> None:
    """Every eighth batch is not there in time: each rank waits for its own workers, now longer, now shorter."""
    draw = random.Random(RANK)
    for number in range(200):
        if number % 8 == 7:
            time.sleep(draw.uniform(0.2, 1.2))
        step()


def two_step_times() -> None:
    """A GAN: a discriminator's step, then a generator's of ten times its length."""
    for number in range(60):
        step(0.6 if number % 2 else STEP_SECONDS)


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


def recompiles() -> None:
    """A shape that was not seen before: one rank compiles for longer than any limit, twice, the others wait."""
    for number in range(240):
        if number in (100, 180) and number % WORLD == RANK:
            busy(8.0)
        step()


def warm_then_cold_cache() -> None:
    """The page cache is used up: from one step to the next all ranks read from the disk, each as it can."""
    draw = random.Random(100 + RANK)
    for number in range(130):
        if number >= 100:
            time.sleep(draw.uniform(0.3, 1.5))
        step()


def learning_rate_finder() -> None:
    """Sweeps of thirty steps; between them every rank restores its state, which takes a while."""
    for sweep in range(4):
        for _ in range(30):
            step(STEP_SECONDS * (1 + sweep))
        busy(4.0)


def suspended() -> None:
    """A scheduler suspends the whole job and lets it go on (`scontrol suspend`); the runner sends the signals."""
    for _ in range(500):
        step()


SITUATIONS: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (
        alternating_evaluation,
        rank0_logs,
        loader_refills,
        two_step_times,
        garbage_collection,
        recompiles,
        warm_then_cold_cache,
        learning_rate_finder,
        suspended,
    )
}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    SITUATIONS[sys.argv[1]]()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
