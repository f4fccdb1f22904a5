"""How healthy jobs begin, begin again, and end. See common.py. Started as `starts_and_ends.py NAME`."""

import fcntl
import os
import signal
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

from tests.controls.common import (
    BACKEND,
    DEVICE,
    QUIET_SECONDS,
    RANK,
    WORLD,
    before_rendezvous,
    busy,
    compute,
    main,
    situation,
    step,
    train,
    write_slowly,
)

_LOCK = Path(tempfile.gettempdir()) / f"stallwatch-control-{os.environ.get('STALLWATCH_JOB', '')}.lock"


@situation
def dataset_download() -> None:
    """Rank 0 downloads the data set before anything else; the others wait for its key in the store."""
    store = dist.distributed_c10d._get_default_store()
    if RANK == 0:
        write_slowly(QUIET_SECONDS)
        store.set("downloaded", "1")
    store.wait(["downloaded"], timedelta(seconds=300))
    train(60)


@situation
def tokenizer_cache() -> None:
    """One rank builds the tokenizer's cache under a file lock, the others try the lock again and again (filelock)."""
    with _LOCK.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.05)
        if not _LOCK.with_suffix(".built").exists():
            busy(QUIET_SECONDS)
            _LOCK.with_suffix(".built").touch()
    dist.barrier()
    _LOCK.with_suffix(".built").unlink(missing_ok=True)
    _LOCK.unlink(missing_ok=True)
    train(60)


@situation
def torch_compiles() -> None:
    """N03: torch.compile of many functions on rank 0 (the others have them cached), before the first step."""
    if RANK == 0:
        until, number = time.monotonic() + QUIET_SECONDS, 0
        while time.monotonic() < until:
            number += 1
            compiled = torch.compile(_layer(number), backend="aot_eager")
            compiled(torch.randn(8, number))
            torch._dynamo.reset()
    dist.barrier()
    train(60)


def _layer(width: int) -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(12)))


@situation
def model_loads_before_rendezvous() -> None:
    """Every rank reads its weights before it joins, each as long as its storage takes."""
    train(60)


@before_rendezvous("model_loads_before_rendezvous")
def _load() -> None:
    compute(QUIET_SECONDS / 2 * (1 + RANK / WORLD))


@situation
def loader_workers_start() -> None:
    """An epoch begins: every rank starts its workers anew, and they need long for the first batch."""
    for _ in range(2):
        train(60)
        loader = torch.utils.data.DataLoader(_SlowStart(), batch_size=None, num_workers=1)
        for _ in loader:
            step()


class _SlowStart(torch.utils.data.IterableDataset):  # type: ignore[misc,type-arg,unused-ignore]
    def __iter__(self):  # type: ignore[no-untyped-def]
        time.sleep(QUIET_SECONDS / 1.5)
        yield from torch.ones(20, 4)


@situation
def sweep() -> None:
    """A sweep in one process: the process group is destroyed and made again for each trial."""
    for trial in range(3):
        train(60)
        dist.barrier()
        dist.destroy_process_group()
        busy(QUIET_SECONDS / 3)
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1 + trial)
        dist.init_process_group(BACKEND, store=_store(trial), rank=RANK, world_size=WORLD)
    train(60)


def _store(trial: int) -> dist.FileStore:
    return dist.FileStore(f"{_LOCK}.store{trial}", WORLD)


@situation
def early_stopping() -> None:
    """Rank 0 decides that training is over; all leave, and only rank 0 has something left to do."""
    stop = torch.zeros(1, device=DEVICE)
    for number in range(120):
        step()
        stop.fill_(float(RANK == 0 and number == 100))
        dist.broadcast(stop, 0)
        if stop.item():
            break
    dist.barrier()
    dist.destroy_process_group()
    if RANK == 0:
        compute(QUIET_SECONDS)


@situation
def export_in_barrier() -> None:
    """The end: rank 0 exports the model, the others wait in the last barrier for it."""
    train(100)
    if RANK == 0:
        compute(QUIET_SECONDS / 2)
        write_slowly(QUIET_SECONDS / 2)
    dist.barrier()


@situation
def export_after_the_others() -> None:
    """The end: every rank is done and leaves, rank 0 exports for longer than a job gets to end."""
    train(100)
    dist.barrier()
    if RANK != 0:
        _leave()
    write_slowly(max(45.0, QUIET_SECONDS))
    _leave()


@situation
def upload_after_the_others() -> None:
    """The end: every rank leaves, rank 0 waits for its last upload, in a thread of its own, without any work."""
    train(100)
    dist.barrier()
    dist.destroy_process_group()
    if RANK != 0:
        _leave()
    uploader = threading.Thread(target=time.sleep, args=(max(45.0, QUIET_SECONDS),))
    uploader.start()
    uploader.join()
    _leave()


def _leave() -> NoReturn:
    """Without a word to the process group, as most scripts do."""
    sys.exit(0)


@situation
def preempted() -> None:
    """The scheduler sends SIGTERM; the job takes note, saves at the next step, and ends with exit code 0."""
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    flag = torch.zeros(1, device=DEVICE)
    while True:
        step()
        flag.fill_(float(asked.is_set()))
        dist.all_reduce(flag)
        if flag.item():
            break
    if RANK == 0:
        write_slowly(QUIET_SECONDS)
    dist.barrier()


@situation
def preempted_by_usr1() -> None:
    """The scheduler warns by SIGUSR1 with a grace; the job saves, and goes on until it is ended in order."""
    asked = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: asked.set())
    flag = torch.zeros(1, device=DEVICE)
    while not flag.item():
        step()
        flag.fill_(float(asked.is_set()))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    if RANK == 0:
        write_slowly(QUIET_SECONDS)
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(0)


@situation
def resumes_in_process() -> None:
    """The loss jumped: every rank loads an older checkpoint, without a phase, and goes on with other data."""
    train(80)
    busy(2.0 + RANK)
    time.sleep(QUIET_SECONDS / 2)
    train(80)


@situation
def restarts_itself() -> None:
    """Torchrun's restarts and changes of membership are done to this one from outside; it only trains."""
    train(400)


if __name__ == "__main__":
    main()
