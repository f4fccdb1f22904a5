"""Hangs in callbacks, helpers and native code, and of ranks that decide by themselves. Started as
`hangs_in_callbacks.py NAME`. See common.py."""

import asyncio
import contextlib
import ctypes
import multiprocessing
import os
import queue
import resource
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251
from torch.nn.parallel import DistributedDataParallel  # noqa: TID251
from torch.utils.data import DataLoader, Dataset  # noqa: TID251
from torch.utils.file_baton import FileBaton  # noqa: TID251

from tests.controls.common import DEVICE, FOR_EVER, RANK, WARM_UP, WORLD, beat, busy, hang, main, stands, step, train

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC_WITH_THE_GIL = ctypes.PyDLL(None)
_PTRACE_ATTACH = 16


def _gather() -> None:
    dist.all_gather([torch.ones(64, device=DEVICE) for _ in range(WORLD)], torch.ones(64, device=DEVICE))


@stands(where=("lock", "user_code"))
def hook_of_a_gradient_stands() -> None:
    """A hook of a parameter hands its gradient to a thread that has ended, and waits for the answer."""
    answers: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
    weight = torch.ones(8, requires_grad=True)

    def clip(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * answers.get()  # here

    weight.register_hook(clip)
    (weight * 2).sum().backward()


@hang(culprits=(2,))
def callback_of_a_reduction_stands() -> None:
    """DDP's communication hook: the reduction has ended everywhere, and what rank 2 does with its result stands, in a
    thread of the process group."""
    model = DistributedDataParallel(torch.nn.Linear(64, 64).to(DEVICE))
    held, steps = threading.Lock(), [0]
    held.acquire()

    def reduce(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        def scale(reduced: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            if RANK == 2 and steps[0] == WARM_UP:
                held.acquire()  # here
            return reduced.value()[0].div_(WORLD)

        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(scale)

    model.register_comm_hook(None, reduce)
    for _ in range(WARM_UP + 60):
        model(torch.ones(2, 64, device=DEVICE)).sum().backward()
        step()
        steps[0] += 1


@hang(culprits=(2,), where=("gil",))
def thread_of_metrics_keeps_the_gil() -> None:
    """Not the training thread but another calls what waits with the GIL held: nothing of Python goes on in rank 2."""
    train(WARM_UP)
    if RANK == 2:
        threading.Thread(target=lambda: _LIBC_WITH_THE_GIL.sleep(1_000_000), daemon=True).start()  # here
    train(60)


@stands(where=("user_code",))
def sleeps_in_native_code() -> None:
    """A driver's back-off in C, without the GIL."""
    _LIBC.sleep(1_000_000)  # here


@stands(where=("lock", "user_code"))
def native_thread_is_joined() -> None:
    """An extension joins its thread of C, which waits for a signal."""
    thread = ctypes.c_ulong()
    _LIBC.pthread_create(ctypes.byref(thread), None, _LIBC.pause, None)
    _LIBC.pthread_join(thread, None)  # here


@stands(where=("lock", "user_code"))
def message_queue_stays_empty() -> None:
    """A queue of System V between programs, into which nobody puts anything."""
    messages, text = _LIBC.msgget(0, 0o1600), ctypes.create_string_buffer(256)
    try:
        while _LIBC.msgrcv(messages, text, 128, 0, 0) < 0:  # here
            continue  # EINTR
    finally:
        _LIBC.msgctl(messages, 0, None)


@stands(where=("lock", "user_code"))
def processes_never_meet() -> None:
    """A barrier of multiprocessing: the process that was to meet the rank there has died before."""
    barrier = multiprocessing.get_context("fork").Barrier(2)
    barrier.wait()  # here


@stands(where=("lock", "user_code", "socket"))
def event_loop_waits_for_its_executor() -> None:
    """`await loop.run_in_executor(…)`: the thread that it waits for stands."""
    never = threading.Event()

    def decode() -> None:
        never.wait()  # here

    async def fetch() -> None:
        await asyncio.get_running_loop().run_in_executor(None, decode)

    asyncio.run(fetch())


class _WaitsForItsOwner(Dataset):  # type: ignore[misc,type-arg,unused-ignore]
    def __init__(self) -> None:
        self.is_ready = multiprocessing.get_context("fork").Event()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        self.is_ready.wait()  # here
        return torch.ones(1)


@hang(culprits=(2,), where=("dataloader",))
def loader_waits_for_its_owner() -> None:
    """The loader's worker waits for an event that the rank sets once it has the first batch."""
    train(WARM_UP)
    if RANK == 2:
        samples = _WaitsForItsOwner()
        for _ in DataLoader(samples, num_workers=1, multiprocessing_context="fork", persistent_workers=True):
            samples.is_ready.set()
    train(60)


class _KillsItsWorker(Dataset):  # type: ignore[misc,type-arg,unused-ignore]
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        busy(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(1)


@stands(causes=("waiting", "not_entered"), where=("dataloader", "user_code"))
def loader_is_made_anew_for_ever() -> None:
    """A sample kills each worker that reads it; the loop catches it, makes the loader anew, and reads it again: it
    works as one does that will succeed, and is told near the job's own time-out (`--short`)."""
    while True:
        with contextlib.suppress(RuntimeError):
            next(iter(DataLoader(_KillsItsWorker(), num_workers=1, multiprocessing_context="fork")))


@stands(where=("lock", "filesystem", "compile", "user_code"))
def baton_of_an_extension_is_stale() -> None:
    """torch.utils.cpp_extension found the lock file of a build that was killed."""
    lock = Path(tempfile.mkdtemp(), "lock")
    lock.touch()
    FileBaton(str(lock)).wait()  # here


@hang(causes=("not_entered", "collective_mismatch"), culprits=(2,))
def steps_on_alone() -> None:
    """A guard against NaN on rank 2: every batch is bad from now on, and skipped before its collective; steps are
    counted."""
    train(WARM_UP)
    while RANK == 2:
        busy(0.05)
        beat.step()
    train(60)


@hang(causes=("collective_mismatch", "not_entered"), culprits=(1,))
def saves_by_its_own_clock() -> None:
    """Every few minutes a checkpoint, which begins with a barrier; each rank looks at its own clock, and rank 1's
    is a step ahead."""
    train(WARM_UP)
    for number in range(60):
        if number == (9 if RANK == 1 else 10):
            dist.barrier()
        step()


@hang(causes=("collective_mismatch", "not_entered"), culprits=(2,))
def accumulates_over_another_number() -> None:
    """Rank 2 was started with another number of batches for each gradient; the loss is gathered every twenty."""
    train(WARM_UP)
    for batch in range(1, 400):
        if batch % (5 if RANK == 2 else 4) == 0:
            step()
        if batch % 20 == 0:
            _gather()


@hang(causes=("collective_mismatch",), culprits=())
def object_comes_from_another_source() -> None:
    """`broadcast_object_list(…, src=rank)` on rank 1, `src=0` on the others. Two of these have what rank 0 sent and are
    in the next call: of the two roots that are left nothing tells which is the right one."""
    train(WARM_UP)
    for number in range(20):
        dist.broadcast_object_list([number], 1 if RANK == 1 and number == 5 else 0, device=DEVICE)
        step()


@hang(causes=("collective_mismatch", "not_entered"), culprits=(0,))
def rank_0_alone_makes_a_group() -> None:
    """`if rank == 0: new_group([0, 1])`, which every rank must call."""
    train(WARM_UP)
    if RANK == 0:
        dist.new_group([0, 1])
    train(60)


@hang(causes=("group_order", "p2p_unmatched"), culprits=(0, 1), by_stacks=("p2p_unmatched",))
def receives_before_it_reduces() -> None:
    """Rank 0 reduces, and then sends to rank 1, which receives, and then reduces: each waits for the other. From whom
    rank 1 receives no stack tells."""
    train(WARM_UP)
    if RANK == 1:
        dist.recv(torch.ones(64, device=DEVICE), 0)
    step()
    if RANK == 0:
        dist.send(torch.ones(64, device=DEVICE), 1)
    train(60)


@hang(causes=("p2p_unmatched",), culprits=(1, 3))
def sends_more_than_is_received() -> None:
    """Rank 1 has one batch of activations more for rank 3 than that expects, and too large for any buffer. Which of the
    two is wrong nothing tells."""
    train(WARM_UP)
    activations = torch.ones(8 << 20, device=DEVICE)
    for number in range(20):
        if RANK == 1:
            for _ in range(2 if number == 5 else 1):
                dist.send(activations, 3)
        if RANK == 3:
            dist.recv(activations, 1)
        step()


@hang(causes=("process_stopped",), culprits=(2,))
def debugger_never_lets_go() -> None:
    """gdb was attached to rank 2, and its window forgotten."""
    train(WARM_UP)
    if RANK == 2:
        parent = os.getpid()
        if os.fork() == 0:
            _LIBC.ptrace(_PTRACE_ATTACH, parent, None, None)
            time.sleep(FOR_EVER)
    train(60)


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    never = threading.Event()

    def watch() -> None:
        never.wait()  # here

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        watcher.join()  # here


@stands(where=("lock", "user_code"))
def end_of_a_context_waits() -> None:
    """`with watched():` joins its watcher at its end, which nobody tells that it is over."""
    with _watched():
        busy(0.1)


def _open_what_never_opens() -> None:
    with contextlib.suppress(OSError):
        os.read(os.pipe()[0], 1)


@stands(where=("lock", "user_code"))
def initializer_of_a_pool_stands() -> None:
    """The workers of a pool never get to their first task: what prepares them waits."""
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=fork, initializer=_open_what_never_opens) as pool:
        pool.submit(os.getpid).result()  # here


@stands(where=("lock", "user_code"))
def waits_days_for_a_batch() -> None:
    """A time-out in milliseconds was taken for seconds."""
    batches: queue.Queue[bytes] = queue.Queue()
    batches.get(timeout=600_000)  # here


@hang(causes=("undecided",), culprits=())
def all_wait_for_their_servers() -> None:
    """Each rank reads from a server of its own, and all have gone silent at once; no collective is outstanding, and
    trainers that wait for their samplers look the same (`--short`: it is told after an hour)."""
    train(WARM_UP)
    ours, theirs = socket.socketpair()
    ours.recv(1)
    theirs.close()


@hang(culprits=(0,))
def root_never_scatters() -> None:
    """The others stand in a scatter; its root waits for the reader that gives it something to scatter."""
    train(WARM_UP)
    received = torch.ones(64, device=DEVICE)
    if RANK == 0:
        threading.Event().wait()  # here
    dist.scatter(received, [received] * WORLD if RANK == 0 else None, 0)
    train(60)


@hang(causes=("rank_exited",), culprits=(2,))
def limit_of_processor_time_is_reached() -> None:
    """`ulimit -t`: the kernel sends SIGXCPU."""
    train(WARM_UP)
    if RANK == 2:
        used = int(time.process_time()) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (used, used + 60))
        busy(120)
    train(60)


if __name__ == "__main__":
    main()
