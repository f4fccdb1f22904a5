"""Real hangs around a trainer: processes, handlers, imports, the kernel, and groups beside each other. Started as
`hangs_of_systems.py NAME`. What must be said is in the decorator; see common.py."""

import asyncio
import ctypes
import gc
import importlib
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

from tests.controls.common import (
    DEVICE,
    FOR_EVER,
    RANK,
    STEP_SECONDS,
    WARM_UP,
    WORLD,
    beat,
    hang,
    main,
    stands,
    stop,
    train,
)

_STUCK = threading.Event()
_CLONE_VFORK = 0x4000
_STACK_BYTES = 1 << 16


@stands(where=("lock", "user_code"))
def semaphore_leaked() -> None:
    """A semaphore that bounds uploads; exceptions took its places."""
    places = threading.BoundedSemaphore(2)
    for _ in range(2):
        places.acquire()
    places.acquire()  # here


@stands(where=("lock", "user_code", "dataloader", "socket"))
def producer_was_killed() -> None:
    """A process that fills a queue was killed (out of memory); nobody tells the queue."""
    context = multiprocessing.get_context("fork")
    batches = context.Queue(2)
    producer = context.Process(target=time.sleep, args=(FOR_EVER,), daemon=True)
    producer.start()
    producer.kill()
    batches.get()  # here


@stands(where=("lock", "user_code", "socket", "unknown"))
def child_is_joined_before_its_queue_is_read() -> None:
    """The child waits until somebody reads its queue, the parent until the child has ended."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_put_much, args=(results,), daemon=True)
    child.start()
    child.join()  # here


def _put_much(results: "multiprocessing.Queue[bytes]") -> None:
    results.put(bytes(4 << 20))


@stands(where=("lock", "user_code", "dataloader"))
def lock_of_a_killed_process() -> None:
    """A lock between processes was held by one that was killed."""
    context = multiprocessing.get_context("fork")
    lock, taken = context.Lock(), context.Event()
    child = context.Process(target=_take, args=(lock, taken), daemon=True)
    child.start()
    taken.wait()
    child.kill()
    lock.acquire()  # here


def _take(lock: "multiprocessing.synchronize.Lock", taken: "multiprocessing.synchronize.Event") -> None:
    lock.acquire()
    taken.set()
    time.sleep(FOR_EVER)


@stands(where=("lock", "user_code"))
def handler_takes_the_lock_that_main_holds() -> None:
    """A signal comes while the main thread holds the log's lock, and its handler writes a log line."""
    held = threading.Lock()

    def report(number: int, frame: FrameType | None) -> None:
        with held:  # here
            pass

    signal.signal(signal.SIGUSR2, report)
    with held:
        os.kill(os.getpid(), signal.SIGUSR2)
        time.sleep(1)


@stands(where=("lock", "user_code"))
def destructor_takes_a_lock() -> None:
    """A collection of garbage runs a destructor that wants the lock which its own thread holds."""
    held = threading.Lock()

    class Handle:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            with held:  # here
                pass

    Handle()
    with held:
        gc.collect()


@stands(where=("lock", "filesystem", "user_code", "socket", "unknown"))
def log_line_into_a_full_pipe() -> None:
    """The handler of the log writes to a pipe that nobody reads, with the log's lock held."""
    reads, writes = os.pipe()
    log = logging.getLogger("full")
    log.addHandler(logging.StreamHandler(os.fdopen(writes, "w")))
    while reads:
        log.error("x" * 4096)  # here


@stands(where=("lock", "user_code", "dataloader", "unknown"))
def forked_while_a_lock_was_held() -> None:
    """A child was forked while another thread held a lock that the child needs too."""
    held, pause = threading.Lock(), threading.Event()

    def hold() -> None:
        with held:
            pause.wait(2)

    threading.Thread(target=hold, daemon=True).start()
    time.sleep(0.3)
    child = os.fork()
    if child == 0:
        held.acquire()
        os._exit(0)
    os.waitpid(child, 0)  # here


@stands(where=("lock", "user_code", "unknown"))
def import_waits_for_itself() -> None:
    """A module's top level starts a thread that imports the module, and joins it: its own line is named."""
    folder = Path(tempfile.mkdtemp())
    (folder / "registers_itself.py").write_text(
        "import importlib, threading\n"
        "def load():\n    from registers_itself import table\n"
        "t = threading.Thread(target=load)\nt.start()\nt.join()\ntable = {}\n"
    )
    sys.path.insert(0, str(folder))
    importlib.import_module("registers_itself")


@stands(where=("lock", "user_code"))
def barrier_of_threads() -> None:
    """Three threads were to meet; one has died."""
    meet = threading.Barrier(3)
    threading.Thread(target=meet.wait, daemon=True).start()
    meet.wait()  # here


@stands(where=("lock", "user_code"))
def pool_starves_itself() -> None:
    """A task of a pool with one thread submits another to the same pool and waits for it."""
    with ThreadPoolExecutor(1) as pool:

        def outer() -> int:
            return pool.submit(int).result()  # here

        pool.submit(outer).result()


@stands(where=("lock", "user_code", "dataloader", "unknown", "socket"))
def pool_s_workers_never_start() -> None:
    """The initializer of a pool's workers raises: they are started anew for ever, and no task is ever taken."""
    with open(os.devnull, "w") as null, multiprocessing.get_context("fork").Pool(1, _raise, (null,)) as pool:
        pool.map(int, ["1"])  # here


def _raise(null: object) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    time.sleep(0.2)
    raise RuntimeError("no such device")


@stands(where=("socket", "user_code", "unknown", "lock"))
def connects_to_a_full_backlog() -> None:
    """A server that accepts nobody any more: the connection is never made."""
    server = socket.create_server(("127.0.0.1", 0), backlog=0)
    address = server.getsockname()
    others = []
    for _ in range(4):
        other = socket.socket()
        other.setblocking(False)
        other.connect_ex(address)
        others.append(other)
    socket.create_connection(address)  # here


@stands(where=("socket", "user_code", "filesystem", "unknown", "lock"))
def helper_is_stopped() -> None:
    """A helper that answers over a pipe was stopped (Ctrl-Z, a debugger)."""
    helper = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    stop(helper.pid)
    assert helper.stdin and helper.stdout
    helper.stdin.write(b"question\n")
    helper.stdin.flush()
    helper.stdout.readline()  # here


@stands(where=("user_code", "unknown", "lock", "socket"))
def program_asks_for_a_password() -> None:
    """A program that the rank started waits for an answer on a pipe to which nobody writes."""
    subprocess.run(["cat"], stdin=os.pipe()[0], check=True)  # here


@stands(where=("filesystem", "unknown", "user_code", "lock"))
def hard_mount_is_gone() -> None:
    """A file server that never comes back: the thread stands in state D."""
    libc = ctypes.CDLL(None, use_errno=True)
    stack = ctypes.create_string_buffer(_STACK_BYTES)
    top = ctypes.c_void_p(ctypes.addressof(stack) + _STACK_BYTES - 64)
    flags = _CLONE_VFORK | signal.SIGCHLD
    libc.clone(ctypes.cast(libc.sleep, ctypes.c_void_p), top, flags, ctypes.c_void_p(int(FOR_EVER)))  # here


@stands(where=("lock", "user_code", "socket"))
def queue_of_asyncio() -> None:
    """A task reads from a queue whose writer was cancelled."""

    async def consume() -> None:
        batches: asyncio.Queue[int] = asyncio.Queue()
        writer = asyncio.create_task(asyncio.sleep(FOR_EVER))
        writer.cancel()
        await batches.get()

    asyncio.run(consume())  # here


@stands(where=("busy_loop", "user_code"))
def retries_without_a_pause() -> None:
    """A file is opened again and again, and the exception is swallowed."""
    while True:
        try:
            open("/nonexistent/shard").close()  # here
            return
        except OSError:
            continue


@hang(culprits=(2,), where=("lock",))
def expert_never_answers() -> None:
    """An all-to-all of experts that one rank does not enter."""
    tokens = torch.ones(WORLD * 64, device=DEVICE)
    for number in range(WARM_UP + 60):
        if number == WARM_UP and RANK == 2:
            _STUCK.wait()  # here
        time.sleep(STEP_SECONDS)
        dist.all_to_all_single(torch.empty_like(tokens), tokens)
        beat.step()


@hang(causes=("p2p_unmatched", "not_entered"), culprits=(0, 1, 2, 3))
def ring_of_blocking_sends() -> None:
    """Each rank sends to the next before it receives from the one before it: large messages wait for their receiver."""
    train(WARM_UP)
    value = torch.ones(1 << 22, device=DEVICE)
    dist.send(value, (RANK + 1) % WORLD)
    dist.recv(value, (RANK - 1) % WORLD)


@hang(culprits=(2,), where=("lock",))
def new_group_lacks_one() -> None:
    """The others make a new group in mid-training, which all ranks must; rank 2 is stuck."""
    train(WARM_UP)
    if RANK == 2:
        _STUCK.wait()  # here
    dist.barrier(dist.new_group())
    train(60)


@hang(culprits=(2,), where=("lock",))
def barrier_by_the_store() -> None:
    """A barrier of one's own: each adds one to a counter and waits for a key that the last one sets."""
    store = dist.distributed_c10d._get_default_store()
    train(WARM_UP)
    if RANK == 2:
        _STUCK.wait()  # here
    if store.add("arrived", 1) == WORLD:
        store.set("all", "1")
    store.wait(["all"])
    train(60)


@hang(culprits=(3,), where=("lock",))
def tensor_parallel_below_data_parallel() -> None:
    """Rank 3 is stuck; its tensor-parallel peer waits for it, and that one's data-parallel peer, and its peer again."""
    tensor = [dist.new_group([0, 1]), dist.new_group([2, 3])][RANK // 2]
    data = [dist.new_group([0, 2]), dist.new_group([1, 3])][RANK % 2]
    for number in range(WARM_UP + 60):
        time.sleep(STEP_SECONDS)
        if number == WARM_UP and RANK == 3:
            _STUCK.wait()  # here
        dist.all_reduce(torch.ones(64, device=DEVICE), group=tensor)
        dist.all_reduce(torch.ones(64, device=DEVICE), group=data)
        beat.step()


@hang(causes=("collective_mismatch", "data_exhausted", "not_entered"), culprits=(1,))
def leaves_an_evaluation_early() -> None:
    """Rank 1 has fewer batches to evaluate and goes on to train, while the others gather theirs."""
    train(WARM_UP)
    for _ in range(10 if RANK == 1 else 12):
        mine = torch.ones(64, device=DEVICE)
        dist.all_gather([torch.empty_like(mine) for _ in range(WORLD)], mine)
        time.sleep(STEP_SECONDS)
    train(60)


@hang(culprits=(2,), where=("lock",))
def object_is_never_gathered() -> None:
    """The others gather objects; rank 2 stands before its own."""
    train(WARM_UP)
    if RANK == 2:
        _STUCK.wait()  # here
    dist.all_gather_object([None] * WORLD, {"rank": RANK})
    train(60)


@hang(causes=("rank_raised", "rank_exited", "not_entered", "collective_mismatch"), culprits=(2,))
def loss_of_one_rank_skips_a_layer() -> None:
    """Rank 2's batch does not use a layer: its bucket is never reduced, and it goes on to the next step."""
    layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(2)).to(DEVICE)

    class Model(torch.nn.Module):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, batch: torch.Tensor, *, both: bool) -> torch.Tensor:
            return self.layers[1](self.layers[0](batch)) if both else self.layers[0](batch)

    model = torch.nn.parallel.DistributedDataParallel(Model())
    for number in range(WARM_UP + 60):
        time.sleep(STEP_SECONDS)
        model(torch.randn(4, 32, device=DEVICE), both=not (RANK == 2 and number >= WARM_UP)).sum().backward()
        beat.step()


if __name__ == "__main__":
    main()
