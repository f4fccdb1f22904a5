"""Real hangs of one rank's host: descriptors, mapped files, native locks with the GIL and without, loaders that find
nothing, children of children, control groups. Started as `hangs_of_hosts.py NAME`. What must be said is in the
decorator; see common.py."""

import atexit
import contextlib
import ctypes
import fcntl
import itertools
import mmap
import multiprocessing
import os
import queue
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

from tests.controls.common import FOR_EVER, JOB_FOLDER, RANK, WARM_UP, hang, main, stands, stop, train
from tests.controls.freezer import Freezer
from tests.controls.slow_mount import mounted

_STUCK = threading.Event()
_FORK = multiprocessing.get_context("fork")
_KEPT: list[object] = []


@stands(where=("user_code", "filesystem"))
def reads_its_standard_input() -> None:
    """`input()` of a rank whose standard input is a pipe that nobody writes to."""
    os.dup2(os.pipe()[0], 0)
    sys.stdin = os.fdopen(0)
    input("overwrite the checkpoint? ")  # here


@stands(where=("gil", "lock"))
def native_lock_with_the_gil() -> None:
    """An extension takes its lock with the GIL held; a thread holds that lock and wants the GIL."""
    mutex, held = ctypes.create_string_buffer(64), threading.Event()

    def decode() -> None:
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
        held.set()
        while True:
            time.sleep(0.01)

    threading.Thread(target=decode, daemon=True).start()
    held.wait()
    ctypes.PyDLL(None).pthread_mutex_lock(mutex)  # here


@stands(where=("lock", "user_code", "unknown"))
def native_condition() -> None:
    """A condition of C that nobody signals."""
    libc, mutex, condition = ctypes.CDLL(None), ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_cond_wait(condition, mutex)  # here


@stands(where=("dataloader",))
def worker_s_filter_rejects_every_sample() -> None:
    """The data set's filter rejects all that is left, and the set begins anew: its worker yields nothing ever again."""
    for _ in torch.utils.data.DataLoader(_Filtered(), batch_size=None, num_workers=1):  # here
        pass


class _Filtered(torch.utils.data.IterableDataset):  # type: ignore[misc,type-arg,unused-ignore]
    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in itertools.count():
            if self.is_long(number % 1000):
                yield torch.ones(4)

    def is_long(self, length: int) -> bool:
        return len(" ".join(map(str, range(length % 7)))) > 100


@stands(where=("user_code", "busy_loop"))
def polls_shared_memory() -> None:
    """A flag in shared memory that a dead child was to set, looked at a thousand times a second."""
    flag = mmap.mmap(-1, 4096)
    while flag[0] == 0:
        time.sleep(0.001)  # here


@stands(where=("busy_loop", "user_code"))
def spins_on_shared_memory() -> None:
    """The same without a pause, giving its core to others."""
    flag = mmap.mmap(-1, 4096)
    while flag[0] == 0:
        os.sched_yield()


@stands(where=("user_code", "busy_loop", "socket"))
def polls_a_queue_without_waiting() -> None:
    """`get_nowait` in a loop, whose producer has died."""
    batches: queue.Queue[int] = queue.Queue()
    while True:
        try:
            batches.get_nowait()
            return
        except queue.Empty:
            time.sleep(0.05)  # here


@stands(where=("socket",))
def handshake_without_an_end() -> None:
    """A proxy accepts the connection and says nothing to TLS."""
    server = socket.create_server(("127.0.0.1", 0))
    _KEPT.append(server)
    client = socket.create_connection(server.getsockname())
    ssl.create_default_context().wrap_socket(client, server_hostname="localhost")  # here


@stands(where=("socket",))
def send_to_who_does_not_read() -> None:
    """A peer is connected and reads nothing: its window is full."""
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    _KEPT.extend((server, server.accept()))
    client.sendall(bytes(64 << 20))  # here


@stands(where=("socket", "user_code"))
def accepts_nobody() -> None:
    """It waits for a worker that never connects."""
    socket.create_server(("127.0.0.1", 0)).accept()  # here


@stands(where=("socket", "user_code", "filesystem"))
def epoll_without_an_end() -> None:
    """epoll with a time-out, again and again: nothing ever comes."""
    poller, (mine, other) = select.epoll(), socket.socketpair()
    _KEPT.append(other)
    poller.register(mine, select.EPOLLIN)
    while not poller.poll(1.0):  # here
        continue


@stands(where=("store", "socket", "init"))
def own_store_never_answers() -> None:
    """A store of one's own whose server was stopped."""
    port = int(os.environ["MASTER_PORT"]) + 7
    child = os.fork()
    if child == 0:
        _KEPT.append(dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False))
        time.sleep(FOR_EVER)
    time.sleep(1)
    store = dist.TCPStore("127.0.0.1", port, wait_for_workers=False)
    stop(child)
    store.set("epoch", "1")
    store.get("epoch")  # here


@stands(where=("filesystem", "user_code", "unknown", "busy_loop"))
def mapped_file_never_comes() -> None:
    """A shard is mapped, and the page that is touched never comes (FUSE)."""
    with mounted(FOR_EVER) as shard, shard.open("rb") as file:
        weights = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)
        weights[17]  # here


@stands(where=("user_code", "filesystem", "unknown"))
def child_stands_in_state_d() -> None:
    """A program that the rank started waits for a file system that never answers."""
    with mounted(FOR_EVER) as shard:
        subprocess.run(["cat", str(shard)], stdout=subprocess.DEVNULL, check=False)  # here


@stands(where=("user_code", "unknown"))
def tool_is_asked_again_and_again() -> None:
    """`while` a program says "pending": short programs one after the other, for ever."""
    while subprocess.run(["sh", "-c", "sleep 0.2; echo pending"], capture_output=True, check=True).stdout:
        time.sleep(0.2)  # here


@stands(where=("lock", "dataloader", "user_code"))
def put_into_a_full_queue() -> None:
    """The consumer of a queue between processes was killed: there is no room any more."""
    batches = _FORK.Queue(1)
    child = _FORK.Process(target=time.sleep, args=(FOR_EVER,), daemon=True)
    child.start()
    child.kill()
    while True:
        batches.put(bytes(1 << 20))  # here


@stands(where=("lock", "user_code"))
def event_of_a_dead_process() -> None:
    """A process that was to set an event has ended in order."""
    ready = _FORK.Event()
    child = _FORK.Process(target=int)
    child.start()
    child.join()
    ready.wait()  # here


@stands(where=("lock", "user_code"))
def lock_taken_twice_below() -> None:
    """A method takes the lock that its caller holds."""
    cache = _Cache()
    cache.refresh()


class _Cache:
    def __init__(self) -> None:
        self._lock = threading.Lock()

    def refresh(self) -> None:
        with self._lock:
            self.evict()

    def evict(self) -> None:
        with self._lock:  # here
            pass


@stands(where=("lock", "user_code", "teardown"))
def signal_of_an_alarm_blocks() -> None:
    """SIGALRM comes in the midst of a step, and its handler waits for a thread."""
    signal.signal(signal.SIGALRM, lambda *_: _STUCK.wait())  # here
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    time.sleep(5)


@hang(culprits=(2,), causes=("not_entered", "rank_raised", "data_exhausted"))
def exits_into_a_handler_that_blocks() -> None:
    """Rank 2 raises; at its exit a handler waits for the thread that sends its last rows."""
    train(WARM_UP)
    if RANK == 2:
        atexit.register(_STUCK.wait)
        raise ValueError("label 50257 is out of range")
    train(60)


@hang(culprits=(2,), causes=("process_stopped", "not_entered"))
def container_of_one_rank_is_frozen() -> None:
    """One rank's control group is frozen (a paused container), the others wait."""
    train(WARM_UP)
    if RANK == 2:
        freezer, rank = Freezer(f"one-{os.getpid()}"), os.getpid()
        if os.fork() == 0:
            os.setsid()  # whoever ends the job does not end this one: what is frozen dies only once it is thawed
            freezer.freeze([rank])
            while "ShdPnd:\t0000000000000000" in Path(f"/proc/{rank}/status").read_text():
                time.sleep(0.2)
            freezer.thaw()
            os._exit(0)
        time.sleep(5)
    train(60)


@hang(culprits=(0, 2, 3), causes=("not_entered",))
def lock_is_held_over_a_collective() -> None:
    """Rank 1 holds the node's lock and meets the others in a barrier; they wait for the lock first."""
    train(WARM_UP)
    JOB_FOLDER.mkdir(exist_ok=True)
    with (JOB_FOLDER / "node.lock").open("w") as file:
        if RANK != 1:
            time.sleep(1)
        fcntl.flock(file, fcntl.LOCK_EX)  # here
        dist.barrier()
    train(60)


@hang(culprits=(), causes=("undecided", "comm_stuck", "not_entered"))
def all_wait_for_one_lock() -> None:
    """Every rank waits for a lock file that a forgotten process holds; nobody waits for anybody."""
    train(WARM_UP)
    path = JOB_FOLDER.with_suffix(".lock")
    file = path.open("w")
    if RANK == 0:
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fork() == 0:
            time.sleep(FOR_EVER)
        file.close()
    dist.barrier()
    with contextlib.closing(path.open("w")) as mine:
        fcntl.flock(mine, fcntl.LOCK_EX)
    train(60)


@hang(culprits=(2,), where=("lock",))
def stands_with_many_threads() -> None:
    """Sixty threads work and wait beside the training thread, which stands."""
    for number in range(60):
        threading.Thread(target=_murmur, args=(number,), daemon=True).start()
    train(WARM_UP)
    if RANK == 2:
        _STUCK.wait()  # here
    train(60)


def _murmur(number: int) -> None:
    while True:
        time.sleep(0.5 + number / 60)


@hang(culprits=(2,), where=("lock",))
def stands_deep_in_a_recursion() -> None:
    """Rank 2 stands below hundreds of frames."""
    train(WARM_UP)
    if RANK == 2:
        _descend(700)
    train(60)


def _descend(depth: int) -> None:
    if depth:
        _descend(depth - 1)
    else:
        _STUCK.wait()  # here


if __name__ == "__main__":
    main()
