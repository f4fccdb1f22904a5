"""What ends by itself, and its twins that never do: started as `ends_by_itself.py NAME`. See common.py."""

import asyncio
import gc
import http.client
import http.server
import importlib
import os
import pickle
import queue
import random
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

from tests.controls.common import (
    DEVICE,
    QUIET_SECONDS,
    RANK,
    ROUNDS,
    WORLD,
    beat,
    before_rendezvous,
    compute,
    every_rank_waits,
    main,
    one_rank_waits,
    read_late,
    situation,
    step,
    train,
)

_CHUNK = bytes(1 << 20)


@one_rank_waits
def retries_like_requests(seconds: float) -> None:
    """A client asks again and again, with the same pause between (requests' examples, urllib3's constant back-off)."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        _refused()
        time.sleep(min(4.0, seconds))


@one_rank_waits
def retries_like_boto(seconds: float) -> None:
    """Exponential back-off with full jitter, capped at twenty seconds, in the handler of the error."""
    until, attempt = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", 9), timeout=1)
        except OSError:
            attempt += 1
            time.sleep(random.uniform(0.5, 1.0) * min(2.0**attempt, 20.0))


@one_rank_waits
def retries_like_the_hub(seconds: float) -> None:
    """huggingface_hub's http_backoff: the pause doubles up to eight seconds."""
    until, pause = time.monotonic() + seconds, 1.0
    while time.monotonic() < until:
        _refused()
        time.sleep(pause)
        pause = min(8.0, 2 * pause)


def _refused() -> None:
    try:
        socket.create_connection(("127.0.0.1", 9), timeout=1).close()
    except OSError:
        pass


@one_rank_waits
def one_long_sleep(seconds: float) -> None:
    """A rate limit says when to come back: Retry-After."""
    time.sleep(seconds)


@one_rank_waits
def waits_for_a_marker(seconds: float) -> None:
    """Another program writes a marker file when the data is there; the rank looks for it every second."""
    until = time.monotonic() + seconds
    while not Path("/nonexistent/_SUCCESS").exists() and time.monotonic() < until:
        time.sleep(1.0)


@one_rank_waits
def retries_in_asyncio(seconds: float) -> None:
    """The same in an event loop."""

    async def fetch() -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(2.0)

    asyncio.run(fetch())


class _Flows(http.server.BaseHTTPRequestHandler):
    pause = 0.2

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        until = time.monotonic() + QUIET_SECONDS
        while time.monotonic() < until:
            self.wfile.write(_CHUNK if self.pause < 1 else _CHUNK[:20_000])
            time.sleep(self.pause)

    def log_message(self, *_: object) -> None:
        return


class _Trickles(_Flows):
    pause = 1.0


def _download(handler: type[http.server.BaseHTTPRequestHandler]) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    child = os.fork()
    if child == 0:
        server.serve_forever()
    server.socket.close()
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
    connection.request("GET", "/weights")
    answer = connection.getresponse()
    while answer.read(1 << 16):
        pass
    os.kill(child, 9)
    os.waitpid(child, 0)


@one_rank_waits
def flowing_download(seconds: float) -> None:
    """Weights come at megabytes a second into memory; the stack is the same at every look."""
    _download(_Flows)


@one_rank_waits
def slow_download(seconds: float) -> None:
    """Weights come at twenty kilobytes a second."""
    _download(_Trickles)


@one_rank_waits
def collects_garbage(seconds: float) -> None:
    """A heap of millions of objects is collected, again and again: no other thread of its process runs."""
    heap: list[object] = []
    for _ in range(1_000_000):
        heap.append([heap])
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        gc.collect()


@one_rank_waits
def a_call_that_computes_with_the_gil(seconds: float) -> None:
    """A regular expression backtracks: one call into C that computes for long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        re.match(r"(a+)+$", "a" * (26 if seconds < 1000 else 40) + "b")


@one_rank_waits
def large_unpickling(seconds: float) -> None:
    """Metadata of a checkpoint: one object of hundreds of megabytes is unpickled."""
    blob, until = pickle.dumps([[number] for number in range(2_000_000)]), time.monotonic() + seconds
    while time.monotonic() < until:
        pickle.loads(blob)  # noqa: TID251  our own bytes


@one_rank_waits
def one_rank_recompiles(seconds: float) -> None:
    """A new shape in mid-run: one rank compiles, the others have it cached."""
    _compile(seconds)


@every_rank_waits
def all_ranks_recompile(seconds: float) -> None:
    """A new shape in mid-run, on every rank."""
    _compile(seconds)


def _compile(seconds: float) -> None:
    until, number = time.monotonic() + seconds, 3
    while time.monotonic() < until:
        number += 1
        layers = torch.nn.Sequential(*(torch.nn.Linear(number, number) for _ in range(12)))
        torch.compile(layers, backend="aot_eager")(torch.randn(8, number))
        torch._dynamo.reset()


@every_rank_waits
def optimizer_on_the_cpu(seconds: float) -> None:
    """The optimizer's states live in host memory: a step of it takes long on every rank."""
    compute(seconds)


@one_rank_waits
def tracker_finishes(seconds: float) -> None:
    """Between two folds the tracker of one rank uploads what it has, and the loop waits for it."""
    _tracker().finish(seconds)


@situation
def tracker_finishes_at_the_end() -> None:
    """The end: rank 0's tracker uploads for a minute, the others wait in the last barrier."""
    train(100)
    if RANK == 0:
        _tracker().finish(QUIET_SECONDS)


_TRACKER = """
import threading
def finish(seconds):
    uploaded = threading.Event()
    threading.Timer(min(seconds, 1e6), uploaded.set).start() if seconds < 1000 else None
    uploaded.wait()
"""


def _tracker() -> ModuleType:
    """wandb as far as it matters here: a package of that name that waits in a thread's event."""
    packages = Path(tempfile.mkdtemp()) / "lib/python3/site-packages"
    (packages / "wandb").mkdir(parents=True)
    (packages / "wandb/__init__.py").write_text(_TRACKER)
    sys.path.insert(0, str(packages))
    return importlib.import_module("wandb")


@one_rank_waits
def import_is_slow(seconds: float) -> None:
    """A library is imported in mid-run from storage that answers late."""
    folder = Path(tempfile.mkdtemp())
    (folder / "late_library.py").write_text(f"import time; time.sleep({seconds})")
    sys.path.insert(0, str(folder))
    importlib.import_module("late_library")


@one_rank_waits
def storage_pauses(seconds: float) -> None:
    """A file server fails over for three minutes (compressed): one rank stands in a read."""
    read_late(seconds)


@every_rank_waits
def storage_pauses_for_all(seconds: float) -> None:
    """The same for every rank at once."""
    read_late(seconds)


@situation
def checkpoint_in_the_first_barrier() -> None:
    """Rank 0 opens its checkpoint on storage that answers late, the others stand in the first barrier of the job."""
    for _ in range(80):
        step()
    if RANK == 0:
        read_late(QUIET_SECONDS)
    dist.barrier()
    train(60)


@one_rank_waits
def loader_delivers_late(seconds: float) -> None:
    """A worker of the data loader needs long for one batch."""
    for _ in torch.utils.data.DataLoader(_Late(seconds), batch_size=None, num_workers=1):
        pass


class _Late(torch.utils.data.IterableDataset):  # type: ignore[misc,type-arg,unused-ignore]
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __iter__(self):  # type: ignore[no-untyped-def]
        time.sleep(self.seconds)
        yield from torch.ones(2, 4)


@one_rank_waits
def waits_for_its_upload(seconds: float) -> None:
    """The last checkpoint is still being written in the background: the next save waits for it."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_write_for, seconds).result()


def _write_for(seconds: float) -> None:
    until = time.monotonic() + seconds
    with tempfile.TemporaryFile() as file:
        while time.monotonic() < until:
            file.write(_CHUNK)
            file.flush()
            time.sleep(0.05)
            if file.tell() > 64 << 20:
                file.seek(0)


@one_rank_waits
def copies_in_a_child(seconds: float) -> None:
    """`aws s3 cp`, rsync: a child process that waits for the network."""
    subprocess.run([sys.executable, "-c", f"import time; time.sleep({seconds})"], check=True)


@one_rank_waits
def database_is_locked(seconds: float) -> None:
    """Another program writes to the experiment's SQLite file; the rank waits for its turn."""
    path = Path(tempfile.mkdtemp()) / "trials.db"
    held = sqlite3.connect(path, check_same_thread=False)
    held.execute("begin exclusive")
    if seconds < 1000:
        threading.Timer(seconds, held.rollback).start()
    sqlite3.connect(path, timeout=seconds + 10).execute("create table trial (id)")


@every_rank_waits
def rollout_without_a_phase(seconds: float) -> None:
    """Forty minutes (compressed): trainers wait for samples from elsewhere, no collective is outstanding."""
    samples: queue.Queue[int] = queue.Queue()
    if seconds < 1000:
        threading.Timer(seconds, samples.put, (1,)).start()
    samples.get()


@every_rank_waits
def rollout_over_http(seconds: float) -> None:
    """The same by a long poll."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _LongPoll)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
    connection.request("GET", "/rollouts")
    connection.getresponse().read()


class _LongPoll(_Flows):
    def do_GET(self) -> None:
        time.sleep(QUIET_SECONDS)
        self.send_response(204)
        self.end_headers()


@situation
def joins_shadow_the_others() -> None:
    """DDP's join: one rank has three times the batches, the others shadow its collectives."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32).to(DEVICE))
    with model.join():
        for _ in range(400 * ROUNDS if RANK == 0 else 100):
            time.sleep(0.05)
            model(torch.randn(4, 32, device=DEVICE)).sum().backward()
            beat.step()


@situation
def staggered_exits() -> None:
    """The end: ranks leave one after the other, with exit code 0, some seconds apart."""
    train(100)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(RANK * QUIET_SECONDS / WORLD)


@situation
def late_start() -> None:
    """Thirty minutes (compressed) from the first rank's arrival to the last's."""
    train(60)


@before_rendezvous("late_start")
def _arrives_late() -> None:
    if RANK:
        time.sleep(QUIET_SECONDS * (1 + RANK / WORLD))


if __name__ == "__main__":
    main()
