"""Jobs that look hung and are not: `situations.py NAME`, started as a rank. What each imitates is in its docstring."""

import contextlib
import os
import pickle
import queue
import tempfile
import threading
import time
from multiprocessing import get_context
from pathlib import Path

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

from tests.controls.common import (
    DEVICE,
    QUIET_SECONDS,
    RANK,
    ROUNDS,
    STEP_SECONDS,
    WARM_UP,
    WORLD,
    beat,
    before_rendezvous,
    busy,
    main,
    situation,
    train,
    write_slowly,
)


@situation
def checkpoint() -> None:
    """N01: rank 0 saves for long under a phase, the others stand in the barrier that follows."""
    train(100)
    with beat.phase("checkpoint"):
        if RANK == 0:
            write_slowly(QUIET_SECONDS)
        dist.barrier()
    train(60)


@situation
def checkpoint_unnamed() -> None:
    """N01 without a phase: nothing but evidence tells what rank 0 does."""
    train(100)
    if RANK == 0:
        write_slowly(QUIET_SECONDS)
    dist.barrier()
    train(60)


@situation
def background_upload() -> None:
    """N02: an upload in a thread stands still, the main loop goes on."""
    done = threading.Event()
    uploader = threading.Thread(target=done.wait, name="async-checkpoint", daemon=True)
    uploader.start()
    train(int(QUIET_SECONDS / STEP_SECONDS))
    done.set()


@situation
def first_step_compiles() -> None:
    """N03: one node has its kernels cached, another compiles them in child processes before the first step."""
    if RANK == 0:
        compilers = [get_context("spawn").Process(target=busy, args=(QUIET_SECONDS,)) for _ in range(2)]
        for compiler in compilers:
            compiler.start()
        for compiler in compilers:
            compiler.join()
    train(60)


@situation
def long_evaluation() -> None:
    """N05: one step in forty is two hundred times as long on every rank; the first such step is not foreseen."""
    for _ in range(2 * ROUNDS):
        train(40)
        busy(10.0)
    train(40)


@situation
def rank0_evaluates() -> None:
    """N05: rank 0 evaluates alone and without a phase, the others wait in a broadcast for its metric."""
    train(WARM_UP)
    if RANK == 0:
        busy(QUIET_SECONDS)
    dist.broadcast(torch.zeros(1, device=DEVICE), src=0)
    train(60)


@situation
def rank0_tokenises() -> None:
    """N06: before step 0, rank 0 maps the data set in a pool of workers; the others wait at the barrier."""
    if RANK == 0:
        with get_context("spawn").Pool(2) as pool:
            pool.map(busy, [QUIET_SECONDS / 4] * 8, chunksize=1)
    dist.barrier()
    train(60)


@situation
def rank0_builds_index() -> None:
    """N07: before step 0, rank 0 builds an index in native code."""
    if RANK == 0:
        until = time.monotonic() + QUIET_SECONDS
        values = torch.randn(400_000)
        while time.monotonic() < until:
            values = values[values.sort().indices.flip(0)]
    dist.barrier()
    train(60)


@situation
def gather_objects() -> None:
    """N09: rank 0 unpickles what all ranks gave it, on the CPU and for long (`gather_object` itself needs NumPy)."""
    train(WARM_UP)
    mine = torch.frombuffer(bytearray(pickle.dumps(list(range(300_000)))), dtype=torch.uint8).to(DEVICE)
    gathered = [torch.empty_like(mine) for _ in range(WORLD)] if RANK == 0 else None
    dist.gather(mine, gathered, dst=0)
    if RANK == 0:
        until, blob = time.monotonic() + QUIET_SECONDS, bytes(mine.tolist())
        while time.monotonic() < until:
            pickle.loads(blob)  # noqa: TID251  our own bytes
    dist.barrier()
    train(60)


@situation
def pipeline() -> None:
    """N11: four stages in a row, the first and the last idle for part of each step by design."""
    activation = torch.ones(256, device=DEVICE)
    for _ in range(int(QUIET_SECONDS / 0.3)):
        if RANK > 0:
            dist.recv(activation, RANK - 1)
        time.sleep(0.1 if RANK in (1, 2) else 0.02)
        if RANK < WORLD - 1:
            dist.send(activation, RANK + 1)
        beat.step()
    dist.barrier()


@situation
def gradient_accumulation() -> None:
    """N13: fifteen quiet micro steps, then one that synchronises; the loop counts optimizer steps alone."""
    for _ in range(4 * ROUNDS):
        busy(6.5)
        train(1)


@situation
def staggered_arrival() -> None:
    """N16 happens before this: the last rank comes late, as a node does that pulls its image."""
    train(60)


@before_rendezvous("staggered_arrival")
def _late() -> None:
    if RANK == WORLD - 1:
        time.sleep(QUIET_SECONDS)


@situation
def idle_server() -> None:
    """N18: an inference engine without requests: rank 0 polls its queue, the others wait for its broadcast."""
    train(WARM_UP)
    idle_until = time.monotonic() + QUIET_SECONDS
    word = torch.zeros(1, device=DEVICE)
    while word.item() == 0:
        if RANK == 0:
            time.sleep(0.5)
            word.fill_(float(time.monotonic() > idle_until))
        dist.broadcast(word, src=0)
    train(60)


@situation
def engine_polls_at_full_speed() -> None:
    """N18: as `idle_server`, but rank 0 looks for the next request without a pause."""
    train(WARM_UP)
    until, requests = time.monotonic() + QUIET_SECONDS, queue.Queue[int]()
    while RANK == 0 and time.monotonic() < until:
        with contextlib.suppress(queue.Empty):
            requests.get_nowait()
    dist.broadcast(torch.zeros(1, device=DEVICE), src=0)
    train(60)


@situation
def rollout() -> None:
    """N27: trainers idle while samplers elsewhere generate; a phase says so, no collective is outstanding."""
    for _ in range(2):
        train(60)
        with beat.phase("rollout"):
            time.sleep(QUIET_SECONDS / 2)
    train(60)


@situation
def storage_stall() -> None:
    """Storage that answers late: rank 1 stands in a read for longer than any limit, then goes on."""
    train(100)
    if RANK == 1:
        with tempfile.TemporaryDirectory() as folder:
            fifo = Path(folder) / "shard-00017.bin"
            os.mkfifo(fifo)
            threading.Thread(target=_answers_late, args=(fifo,), daemon=True).start()
            fifo.read_bytes()
    train(100)


def _answers_late(fifo: Path) -> None:
    with fifo.open("wb") as file:
        time.sleep(QUIET_SECONDS)
        file.write(b"\0" * 4096)


@situation
def final_save() -> None:
    """A planned end: all ranks leave with exit code 0, rank 0 after it has written the last checkpoint."""
    train(100)
    dist.barrier()
    dist.destroy_process_group()
    if RANK == 0:
        write_slowly(QUIET_SECONDS)
    os._exit(0)


@situation
def long_steps() -> None:
    """Steps of four seconds, of which the third is twice as long: nothing is learned of them yet."""
    for number in range(5 * ROUNDS):
        busy(8.0 if number == 2 else 4.0)
        train(1)


@situation
def drifting_steps() -> None:
    """Sequence lengths grow: steps become ten times as long within a minute."""
    for number in range(40):
        train(1, STEP_SECONDS * (1 + number / 3))


@situation
def debugged() -> None:
    """N25: somebody looks at rank 1 with a tool that holds it for seconds."""
    train(100)
    # The tool is started by the runner: see controls.py.
    train(int(QUIET_SECONDS / STEP_SECONDS))


if __name__ == "__main__":
    main()
