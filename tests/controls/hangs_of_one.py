"""Real hangs: one rank stands somewhere for ever, the others wait for it. Started as `hangs_of_one.py NAME`.

What must be said is in the decorator; the line that must be named is marked `# here`. See common.py.
"""

import asyncio
import concurrent.futures
import ctypes
import fcntl
import http.client
import http.server
import itertools
import multiprocessing
import os
import queue
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

from tests.controls.common import FOR_EVER, beat, main, stands, step


@stands(where=("lock",))
def lock() -> None:
    """A lock that nobody gives back."""
    held = threading.Lock()
    held.acquire()
    held.acquire()  # here


@stands(where=("lock",))
def condition() -> None:
    """A condition that nobody notifies."""
    ready = threading.Condition()
    with ready:
        ready.wait()  # here


@stands(where=("lock",))
def queue_get() -> None:
    """A prefetch queue whose producer has died without a word."""
    batches: queue.Queue[int] = queue.Queue(4)

    def produce() -> None:
        try:
            raise OSError("shard is gone")
        except OSError:
            return

    threading.Thread(target=produce, daemon=True).start()
    batches.get()  # here


@stands(where=("lock",))
def locks_in_reversed_order() -> None:
    """Two threads take two locks in reversed order."""
    cache, log = threading.Lock(), threading.Lock()
    both = threading.Barrier(2)

    def flush() -> None:
        with log:
            both.wait()
            with cache:
                pass

    threading.Thread(target=flush, daemon=True).start()
    with cache:
        both.wait()
        with log:  # here
            pass


@stands(where=("lock", "checkpoint", "user_code"))
def writer_thread_is_joined() -> None:
    """The training thread joins its checkpoint's writer, which waits for a buffer that nobody gives back."""
    buffers: queue.Queue[bytes] = queue.Queue()

    def write_checkpoint() -> None:
        buffers.get()  # here

    writer = threading.Thread(target=write_checkpoint, daemon=True)
    writer.start()
    writer.join()


@stands(where=("lock", "checkpoint", "user_code"))
def executor_s_future() -> None:
    """The same by a pool of threads."""

    def upload() -> None:
        threading.Event().wait()  # here

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(upload).result()


@stands(where=("lock", "user_code"))
def future_that_nobody_sets() -> None:
    """A future of a client whose connection was lost."""
    concurrent.futures.Future[int]().result()  # here


@stands(where=("socket", "user_code", "lock"))
def coroutine_never_ends() -> None:
    """An event loop waits for an event that nobody sets."""

    async def fetch() -> None:
        await asyncio.Event().wait()

    asyncio.run(fetch())  # here


@stands(where=("lock", "filesystem", "checkpoint"))
def flock() -> None:
    """A cache's lock file is held by a process that forgot it."""
    path = Path(tempfile.mkdtemp()) / "cache.lock"
    _hold(path)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # here


@stands(where=("lock", "filesystem", "checkpoint"))
def record_lock() -> None:
    """The same by fcntl, as NFS clients do."""
    path = Path(tempfile.mkdtemp()) / "cache.lock"
    _hold(path)
    with path.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)  # here


def _hold(path: Path) -> None:
    taken = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); "
        "fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", taken, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}
    )
    assert holder.stdout
    holder.stdout.readline()
    _KEPT.append(holder)


_KEPT: list[Any] = []


@stands(where=("lock", "filesystem", "user_code"))
def lock_file_is_polled() -> None:
    """filelock's way: try, sleep, try again; who made the file died long ago."""
    path = Path(tempfile.mkdtemp()) / "build.lock"
    path.touch()
    while True:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
            break
        except FileExistsError:
            time.sleep(0.1)  # here


@stands(where=("filesystem",))
def read_of_a_fifo() -> None:
    """`os.read` of a pipe that somebody holds open and never writes to."""
    path = Path(tempfile.mkdtemp()) / "batches.fifo"
    os.mkfifo(path)
    os.read(os.open(path, os.O_RDWR), 1)  # here


@stands(where=("filesystem",))
def open_of_a_fifo() -> None:
    """`open` of a pipe that nobody reads."""
    path = Path(tempfile.mkdtemp()) / "metrics.fifo"
    os.mkfifo(path)
    with path.open("wb"):  # here
        pass


@stands(where=("filesystem", "user_code"))
def full_pipe() -> None:
    """A log goes into a pipe whose reader has stopped to read."""
    _KEPT.append(os.pipe())
    while True:
        os.write(_KEPT[0][1], bytes(4096))  # here


@stands(where=("socket",))
def socket_receive() -> None:
    """A peer that is connected and silent."""
    _KEPT.extend(socket.socketpair())
    _KEPT[0].recv(1)  # here


@stands(where=("socket",))
def http_without_a_timeout() -> None:
    """A metadata server takes the request and never answers."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Silent)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
    connection.request("GET", "/manifest.json")
    connection.getresponse()  # here


class _Silent(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        threading.Event().wait()


@stands(where=("socket", "user_code"))
def urlopen_in_a_retry() -> None:
    """A client asks a closed port for ever, and prints each time."""
    for attempt in itertools.count():
        try:
            urllib.request.urlopen("http://127.0.0.1:9/shard", timeout=2)
        except OSError as error:
            print(f"attempt {attempt}: {error}", flush=True)
            time.sleep(1)  # here


@stands(where=("socket", "user_code"))
def select_without_an_end() -> None:
    """A poll of a descriptor at which nothing ever comes."""
    _KEPT.extend(socket.socketpair())
    select.select([_KEPT[0]], [], [])  # here


@stands(where=("user_code",))
def child_never_ends() -> None:
    """A converter hangs, and the rank waits for it."""
    subprocess.run([sys.executable, "-c", "import threading; threading.Event().wait()"], check=True, env={})  # here


@stands(where=("user_code",))
def child_with_a_full_pipe() -> None:
    """`wait` before the child's output was read: both stand."""
    child = subprocess.Popen([sys.executable, "-c", "print('x' * 10**6)"], stdout=subprocess.PIPE, env={})
    child.wait()  # here


@stands(where=("dataloader",))
def loader_worker_s_lock() -> None:
    """A worker of the data loader waits for a lock that another thread held when it was forked."""
    held = threading.Lock()
    held.acquire()

    class Shards(torch.utils.data.Dataset):  # type: ignore[misc,type-arg,unused-ignore]
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> torch.Tensor:
            with held:  # here
                return torch.ones(index)

    for _ in torch.utils.data.DataLoader(Shards(), num_workers=1):
        step()


@stands(where=("dataloader", "user_code", "lock"))
def pool_whose_worker_died() -> None:
    """A worker of multiprocessing's pool was killed: `map` waits for its result for ever."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(os._exit, [1, 1])  # here


@stands(where=("busy_loop", "user_code"))
def python_loop() -> None:
    """A loop whose condition never becomes false."""
    rate = 1.0
    while rate > 0:
        rate = rate * 0.5 + 0.5


@stands(where=("busy_loop", "gil", "user_code"))
def one_call_with_the_gil() -> None:
    """A regular expression that backtracks for ever."""
    re.match(r"(a+)+$", "a" * 60 + "b")  # here


@stands(where=("gil",))
def sleeps_with_the_gil() -> None:
    """An extension that waits with the GIL held."""
    ctypes.PyDLL(None).sleep(int(FOR_EVER))  # here


@stands(causes=("process_stopped",))
def stopped() -> None:
    """Somebody sent SIGSTOP."""
    os.kill(os.getpid(), signal.SIGSTOP)


@stands(where=("user_code",))
def sleeps() -> None:
    """A sleep that was meant in milliseconds."""
    time.sleep(FOR_EVER)  # here


@stands(where=("user_code", "lock", "unknown"))
def waits_for_a_signal() -> None:
    """`sigwait` for a signal that was sent before."""
    signal.sigwait([signal.SIGUSR2])  # here


@stands(where=("store",))
def store_wait() -> None:
    """A key that nobody sets."""
    dist.distributed_c10d._get_default_store().wait(["evaluated"], timedelta(hours=1))  # here


@stands(where=("store", "user_code"))
def store_is_polled() -> None:
    """The same by a loop."""
    store = dist.distributed_c10d._get_default_store()
    while not store.check(["evaluated"]):
        time.sleep(0.5)  # here


@stands(where=("lock", "checkpoint"))
def in_a_phase() -> None:
    """A checkpoint, named as a phase, waits for a lock."""
    with beat.phase("checkpoint"):
        threading.Event().wait()  # here


if __name__ == "__main__":
    main()
