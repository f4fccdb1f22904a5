"""Trainings that pause for long by design: a child that copies, a job that is paused and continued, stores,
handlers, helpers that leave. Started as `training_with_long_pauses.py NAME`; see common.py."""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251
from torch.distributed.device_mesh import init_device_mesh  # noqa: TID251

from tests.controls.common import (
    DEVICE,
    QUIET_SECONDS,
    RANK,
    STEP_SECONDS,
    WARM_UP,
    WORLD,
    beat,
    main,
    one_rank_waits,
    situation,
    step,
    train,
    write_slowly,
)

_LOG = logging.getLogger("train")
# A copy of a mebibyte a second, as of `aws s3 cp` or rsync over a busy link: it takes hardly any CPU.
_COPIES = """
import sys, time
until = time.monotonic() + float(sys.argv[1])
with open(sys.argv[2], "wb") as file:
    while time.monotonic() < until:
        file.write(bytes(1 << 18))
        file.flush()
        file.seek(0)
        time.sleep(0.25)
"""


def evaluate(seconds: float) -> None:
    """Batches of a small model, in torch's own code and at many lines."""
    layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    norm, head = torch.nn.LayerNorm(32), torch.nn.Linear(32, 8)
    right, until = 0, time.monotonic() + seconds
    with torch.no_grad():
        while time.monotonic() < until:
            batch = torch.randn(16, 24, 32)
            hidden = norm(layer(batch))
            scores = torch.softmax(head(hidden), dim=-1)
            right += int((scores.argmax(-1) == 3).sum())


@one_rank_waits
def child_copies_at_a_megabyte_a_second(seconds: float) -> None:
    """`aws s3 cp`, rsync, curl: a child process whose bytes flow, and which uses hardly any CPU."""
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run([sys.executable, "-c", _COPIES, str(seconds), file.name], check=True)


@situation
def continued_one_rank_after_the_other() -> None:
    """An operator's script stops all ranks, and later continues them over ssh, one every few seconds."""
    train(WARM_UP)
    pids = [torch.zeros(1, dtype=torch.int64, device=DEVICE) for _ in range(WORLD)]
    dist.all_gather(pids, torch.tensor([os.getpid()], device=DEVICE))
    ranks = [int(pid.item()) for pid in pids]
    if RANK == 0 and os.fork() == 0:
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(QUIET_SECONDS)
        for pid in reversed(ranks):
            os.kill(pid, signal.SIGCONT)
            time.sleep(3)
        os._exit(0)
    train(200)


@situation
def overflows_skip_every_step() -> None:
    """Gradients overflow for a while: steps are skipped by all and counted by none, and collectives go on."""
    train(WARM_UP)
    for _ in range(int(min(QUIET_SECONDS, 90.0) / STEP_SECONDS)):
        time.sleep(STEP_SECONDS)
        dist.all_reduce(torch.ones(1024, device=DEVICE))
    train(60)


@situation
def handles_an_error_for_long() -> None:
    """Rank 1 runs out of memory, logs its traceback, and in the handler goes through the batch in small pieces."""
    train(WARM_UP)
    try:
        if RANK == 1:
            raise RuntimeError("out of memory. Tried to allocate 20.00 GiB")
    except RuntimeError:
        _LOG.exception("the batch is too large: split")
        evaluate(QUIET_SECONDS)
    train(60)


@situation
def helper_leaves_before_the_others() -> None:
    """Rank 3 prepares data, and leaves with exit code 0; the others train on in a group of their own, where rank 1
    evaluates later."""
    trainers = dist.new_group(list(range(WORLD - 1)))
    train(WARM_UP)
    if RANK == WORLD - 1:
        os._exit(0)
    for number in range(900):
        time.sleep(STEP_SECONDS)
        dist.all_reduce(torch.ones(16, device=DEVICE), group=trainers)
        beat.step()
        if RANK == 1 and number == 800:
            evaluate(QUIET_SECONDS)
    dist.barrier(group=trainers)
    os._exit(0)


@situation
def shard_s_owner_evaluates_in_a_mesh() -> None:
    """Two replicas of two shards; the owner of one evaluates: others wait for it, or for who waits for it, and their
    reductions over the other dimension are pending."""
    mesh = init_device_mesh(DEVICE.type, (2, WORLD // 2), mesh_dim_names=("replicas", "shards"))
    replicas, shards = mesh.get_group("replicas"), mesh.get_group("shards")
    for number in range(160):
        work = dist.all_reduce(torch.ones(64, device=DEVICE), group=replicas, async_op=True)
        time.sleep(STEP_SECONDS)
        if number == 100 and RANK == WORLD - 1:
            evaluate(QUIET_SECONDS)
        dist.all_reduce(torch.ones(64, device=DEVICE), group=shards)
        assert work is not None
        work.wait()
        beat.step()


@situation
def each_rank_has_something_of_its_own() -> None:
    """Between two steps one rank after the other is busy, by another kind of work, and the others are in barriers."""
    train(WARM_UP)
    for rank, work in enumerate((evaluate, write_slowly, _runs_a_program, time.sleep)):
        if rank == RANK:
            work(QUIET_SECONDS / 2)
        dist.barrier()
    train(60)


def _runs_a_program(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", _COPIES, str(seconds), str(Path(folder) / "copy")], check=True)


@situation
def server_of_parameters_waits_in_the_store() -> None:
    """Asynchronous SGD by the store: workers write gradients there, and rank 0 waits for the next key; the others are
    done when rank 2 evaluates between two of its."""
    store = dist.distributed_c10d._get_default_store()
    train(WARM_UP)
    for number in range(40 * (WORLD - 1) if RANK == 0 else 40):
        if RANK == 0:
            store.wait([f"gradient-{number}"])
            store.set("parameters", bytes(64))
        else:
            step_seconds = STEP_SECONDS * RANK
            time.sleep(step_seconds)
            if RANK == 2 and number == 30:
                evaluate(QUIET_SECONDS)
            store.set(f"gradient-{store.add('gradients', 1) - 1}", bytes(64))
        beat.step()
    step()


if __name__ == "__main__":
    main()
