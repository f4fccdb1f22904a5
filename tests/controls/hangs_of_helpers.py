"""Real hangs of what works beside a rank: its databases, event loops, fork servers, trackers, logs, checkpointing
processes; and of shards and schedules. Started as `hangs_of_helpers.py NAME`. What must be said is in the decorator;
see common.py."""

import asyncio
import ctypes
import fcntl
import logging
import logging.handlers
import multiprocessing
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing import forkserver, resource_tracker, shared_memory
from pathlib import Path

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251
from torch.utils.data import DataLoader, Dataset  # noqa: TID251

from tests.controls.common import (
    DEVICE,
    FOR_EVER,
    JOB_FOLDER,
    RANK,
    STEP_SECONDS,
    WARM_UP,
    WORLD,
    beat,
    hang,
    main,
    stands,
    step,
    stop,
    train,
    train_counted_by_a_thread,
)

_LIBC = ctypes.CDLL(None, use_errno=True)
_FORK = multiprocessing.get_context("fork")


def _in_parallel() -> None:
    torch.set_num_threads(2)
    (torch.ones(1 << 22) * 2).sum()


@stands()
def forked_child_has_no_threads_of_openmp() -> None:
    """A child was forked after its parent had computed in parallel: OpenMP waits there for threads that only the parent
    has (tokenizers, NumPy with MKL, torch itself)."""
    _in_parallel()
    child = _FORK.Process(target=_in_parallel)
    child.start()
    child.join()  # here


@stands(where=("lock", "filesystem", "user_code"))
def database_stays_locked() -> None:
    """Another program died over a transaction of the experiment's SQLite file, and its child still holds it; the client
    was given a time-out of days."""
    file = Path(tempfile.mkdtemp(), "runs.db")
    sqlite3.connect(file).execute("CREATE TABLE runs (loss REAL)")
    ours, theirs = os.pipe()
    if os.fork() == 0:
        held = sqlite3.connect(file, isolation_level=None)
        held.execute("BEGIN EXCLUSIVE")
        os.write(theirs, b"1")
        time.sleep(FOR_EVER)
    os.read(ours, 1)
    with sqlite3.connect(file, timeout=600_000) as runs:
        runs.execute("INSERT INTO runs VALUES (0.5)")  # here


@hang(causes=("collective_mismatch", "data_exhausted", "not_entered"), culprits=(2,))
def evaluates_a_batch_less_with_shards() -> None:
    """FSDP2: rank 2's part of the validation set is a batch shorter, and each forward pass gathers from all."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: TID251
    from torch.distributed.fsdp import fully_shard  # noqa: TID251

    mesh = init_device_mesh(DEVICE.type, (WORLD,))
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3))).to(DEVICE)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for number in range(WARM_UP + 60):
        if number == WARM_UP:
            with torch.no_grad():
                for _ in range(9 if RANK == 2 else 10):
                    model(torch.randn(4, 64, device=DEVICE))
        time.sleep(STEP_SECONDS)
        model(torch.randn(4, 64, device=DEVICE)).sum().backward()
        beat.step()


@hang(culprits=(1, 3), where=("user_code", "filesystem"))
def two_wait_for_each_other_s_file() -> None:
    """A hand-made exchange over a shared folder: each of two ranks writes its file once it has read the other's."""
    train(WARM_UP)
    if RANK in (1, 3):
        while not (JOB_FOLDER / f"statistics-{4 - RANK}").exists():
            time.sleep(1.0)  # here
    train(60)


@stands()
def tracker_of_resources_is_stopped() -> None:
    """multiprocessing's own process that tracks shared memory was stopped: its pipe is full, and new segments wait."""
    shared_memory.SharedMemory(create=True, size=64).unlink()
    assert resource_tracker._resource_tracker._pid  # type: ignore[attr-defined,unused-ignore]
    stop(resource_tracker._resource_tracker._pid)  # type: ignore[attr-defined,unused-ignore]
    while True:
        segment = shared_memory.SharedMemory(create=True, size=64)  # here
        segment.close()
        segment.unlink()  # here


@hang(causes=("p2p_unmatched",), culprits=())
def schedule_of_one_stage_has_a_batch_less() -> None:
    """torch's GPipe: stage 1 was given three micro-batches where the others have four. It waits for a gradient, stage 2
    for an activation; gloo records neither."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe  # noqa: TID251

    batch = torch.randn(16, 32, device=DEVICE)
    layer = torch.nn.Linear(32, 32).to(DEVICE)

    def steps(batches: int, number: int) -> None:
        stage = PipelineStage(layer, RANK, WORLD, DEVICE, input_args=batch[:4])
        schedule = ScheduleGPipe(stage, batches, loss_fn=lambda output, target: (output - target).pow(2).mean())
        for _ in range(number):
            time.sleep(0.01)
            if RANK == 0:
                schedule.step(batch)
            elif RANK == WORLD - 1:
                schedule.step(target=batch)
            else:
                schedule.step()
            beat.step()

    steps(4, WARM_UP)
    steps(3 if RANK == 1 else 4, 60)


@stands()
def loop_of_events_is_blocked() -> None:
    """The tracker's event loop runs in a thread, and a callback there reads from a pipe without a time-out: what the
    training thread has handed over never begins."""
    loop, silent = asyncio.new_event_loop(), os.pipe()[0]
    threading.Thread(target=loop.run_forever, daemon=True).start()
    loop.call_soon_threadsafe(lambda: os.read(silent, 1))  # here
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()  # here


@stands()
def crash_s_handler_stands() -> None:
    """A library's handler of SIGSEGV writes its report, and takes a lock for it that the crash has left behind."""
    _LIBC.signal(signal.SIGSEGV, _LIBC.pause)
    _LIBC.strlen(None)  # here


def _spin() -> None:
    while True:
        pass


@hang(culprits=(2,), where=("gil", "busy_loop", "user_code", "lock"))
def another_thread_never_gives_way() -> None:
    """`sys.setswitchinterval` was raised for throughput: from a thread that spins the training thread gets no turn."""
    train(WARM_UP)
    if RANK == 2:
        sys.setswitchinterval(1e5)
        threading.Thread(target=_spin, daemon=True).start()
    train(60)


@hang(culprits=(2,), where=("lock",))
def steps_are_counted_by_another_thread() -> None:
    """A thread of metrics takes each loss from a queue and counts the step; the training thread of rank 2 stands."""

    def stand() -> None:
        if RANK == 2:
            threading.Event().wait()  # here

    train_counted_by_a_thread(stand)


@stands()
def listener_of_the_log_has_died() -> None:
    """Records go into a bounded queue, and the thread that wrote them is gone."""

    class Blocking(logging.handlers.QueueHandler):
        def enqueue(self, record: logging.LogRecord) -> None:
            self.queue.put(record)  # type: ignore[attr-defined,unused-ignore]  # here

    log = logging.getLogger("training")
    log.addHandler(Blocking(queue.Queue(64)))
    while True:
        log.warning("loss %s", 0.5)  # here


@stands()
def fork_server_is_stopped() -> None:
    """Workers are started by multiprocessing's fork server, which somebody has stopped."""
    context = multiprocessing.get_context("forkserver")
    first = context.Process(target=os.getpid)
    first.start()
    first.join()
    assert forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined,unused-ignore]
    stop(forkserver._forkserver._forkserver_pid)  # type: ignore[attr-defined,unused-ignore]
    context.Process(target=os.getpid).start()  # here


class _LocksTwoFiles(Dataset):  # type: ignore[misc,type-arg,unused-ignore]
    """Each sample needs two shards, and locks both."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.both_began = _FORK.Barrier(2)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        mine, next_one = self.folder / f"shard-{index}", self.folder / f"shard-{1 - index}"
        with mine.open("w") as first, next_one.open("w") as other:
            fcntl.flock(first, fcntl.LOCK_EX)
            self.both_began.wait()
            fcntl.flock(other, fcntl.LOCK_EX)  # here
        return torch.ones(1)


@hang(culprits=(2,), where=("dataloader",))
def workers_of_a_loader_lock_each_other_out() -> None:
    """Two workers of the loader lock the same two files in other orders."""
    train(WARM_UP)
    if RANK == 2:
        next(iter(DataLoader(_LocksTwoFiles(), num_workers=2, multiprocessing_context="fork")))
    train(60)


@hang(causes=("collective_mismatch",), culprits=(1,))
def one_gathers_objects_for_itself() -> None:
    """All gather their metrics by `all_gather_object`; rank 1 runs an older version, which had `gather_object`."""
    train(WARM_UP)
    for number in range(20):
        found: list[object] = [None] * WORLD
        if RANK == 1 and number == 5:
            dist.gather_object({"loss": 0.5}, found, dst=1)
        else:
            dist.all_gather_object(found, {"loss": 0.5})
        step()


@hang(causes=("undecided", "comm_stuck"), culprits=())
def agent_that_has_the_store_is_stopped() -> None:
    """Somebody stopped torchrun, in whose process the store is: no rank is to blame that none gets its new group."""
    train(WARM_UP)
    if RANK == 2:
        os.kill(os.getppid(), signal.SIGSTOP)
    dist.barrier()
    time.sleep(0.5)
    dist.new_group()
    train(60)


@hang(culprits=(2,))
def process_of_a_checkpoint_stands() -> None:
    """torch.distributed.checkpoint.async_save in a process of its own: rank 2's storage never answers that process, and
    all wait for the last save before the next one."""
    import torch.distributed.checkpoint as checkpoint  # noqa: TID251
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType  # noqa: TID251

    from tests.controls.silent_storage import SilentStorage

    group = dist.new_group(backend="gloo")
    train(WARM_UP)
    saving = checkpoint.async_save(
        {"weight": torch.ones(64)},
        storage_writer=SilentStorage(JOB_FOLDER, FOR_EVER if RANK == 2 else 0.0),
        process_group=group,
        async_checkpointer_type=AsyncCheckpointerType.PROCESS,
    )
    train(20)
    saving.result()  # here
    train(60)


@hang(culprits=(1,), where=("user_code", "lock"))
def keeps_the_lock_of_its_node() -> None:
    """Rank 1 takes a lock on a file that is for one rank of the node at a time, and stands; ranks 2 and 3 wait for the
    lock, rank 0 for all of them."""
    train(WARM_UP)
    if RANK == 0:
        dist.barrier()
    JOB_FOLDER.mkdir(exist_ok=True)
    with (JOB_FOLDER / "node.lock").open("w") as file:
        time.sleep(0 if RANK == 1 else 1)
        fcntl.flock(file, fcntl.LOCK_EX)
        if RANK == 1:
            threading.Event().wait()  # here
    dist.barrier()


# A copy of a mebibyte a second: that long, and then it stands.
_COPIES = """
import sys, threading, time
until = time.monotonic() + float(sys.argv[1])
with open(sys.argv[2], "wb") as file:
    while time.monotonic() < until:
        file.write(bytes(1 << 18))
        file.flush()
        file.seek(0)
        time.sleep(0.25)
threading.Event().wait()
"""


@stands(where=("user_code",))
def copy_of_a_child_stops_in_its_middle() -> None:
    """`aws s3 cp` in a program of its own: bytes flow for a while, and then none come."""
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run([sys.executable, "-c", _COPIES, "3", file.name], check=True)  # here


@stands(where=("user_code",))
def child_stands_beside_one_that_copies() -> None:
    """A converter stands, and the rank waits for it; an uploader that it started before goes on copying."""
    with tempfile.NamedTemporaryFile() as file:
        subprocess.Popen([sys.executable, "-c", _COPIES, str(FOR_EVER), file.name])
        subprocess.run([sys.executable, "-c", "import threading; threading.Event().wait()"], check=True)  # here


if __name__ == "__main__":
    main()
