"""What goes on in a rank, or beside it, whatever its training does: a little at a time, as long as the rank lives."""

import collections
import contextlib
import hashlib
import os
import pickle
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251
from torch.utils.data import DataLoader, IterableDataset  # noqa: TID251

_FORK = get_context("fork")


def in_a_thread(function: Callable[[], None], name: str) -> None:
    threading.Thread(target=function, name=name, daemon=True).start()


def work(seconds: float) -> None:
    """On the CPU, in Python."""
    until, digest = time.thread_time() + seconds, b""
    while time.thread_time() < until:
        digest = hashlib.sha256(digest * 64).digest()


def again_and_again(seconds: float, every_seconds: float) -> None:
    """So much work, again and again, for ever."""
    while True:
        work(seconds)
        time.sleep(every_seconds)


def leave() -> None:
    """Together, and without a word to threads that go on: Python's own end aborts the process where they use torch."""
    dist.barrier()
    time.sleep(1.0)  # what a peer still reads of ours goes with us: under NCCL three of four stood in this barrier then
    os._exit(0)


def record_metrics() -> None:
    """A recorder of what the process uses, twenty times a second: 8 % of a core."""
    in_a_thread(lambda: again_and_again(0.004, 0.05), "metrics-recorder")


def sample_stacks() -> None:
    """A profiler in the process: all stacks, a hundred times a second."""
    seen: collections.Counter[str] = collections.Counter()

    def sample() -> None:
        while True:
            for frame in sys._current_frames().values():
                seen[f"{frame.f_code.co_filename}:{frame.f_lineno}"] += 1
            work(0.0003)
            time.sleep(0.01)

    in_a_thread(sample, "profiler")


def keep_alive(every_seconds: float = 0.02) -> None:
    """A thread of every rank meets the others in a group of its own, many times a second."""
    group = dist.new_group(backend="gloo")

    def meet() -> None:
        value = torch.ones(1)
        while True:
            dist.all_reduce(value, group=group)
            value.fill_(1.0)
            time.sleep(every_seconds)

    in_a_thread(meet, "keep-alive")


def write_events() -> None:
    """A writer of events in a process of its own, as a tracker's service is; a thread hands it what was measured."""
    near, far = socket.socketpair()
    service = _FORK.Process(target=_serve_events, args=(far,), daemon=True)
    service.start()

    def hand_over() -> None:
        while True:
            near.sendall(pickle.dumps({"at": time.time(), "load": os.getloadavg()}).ljust(4096, b"\0"))
            work(0.001)
            time.sleep(0.04)

    in_a_thread(hand_over, "events")


def _serve_events(far: socket.socket) -> None:
    with tempfile.TemporaryFile() as file:
        while far.recv(4096):
            work(0.003)
            file.write(bytes(4096))
            file.flush()
            if file.tell() > 16 << 20:
                file.seek(0)


def save(seconds: float = 1e6) -> threading.Thread:
    """An asynchronous checkpoint: a thread serialises and writes one tensor after the other to slow storage."""

    def write() -> None:
        until = time.monotonic() + seconds
        with tempfile.TemporaryFile() as file:
            while time.monotonic() < until:
                file.write(pickle.dumps(torch.randn(32_000)))
                file.flush()
                time.sleep(0.05)
                if file.tell() > 64 << 20:
                    file.seek(0)

    thread = threading.Thread(target=write, name="checkpoint", daemon=True)
    thread.start()
    return thread


class _CachesAhead(IterableDataset):  # type: ignore[misc,type-arg,unused-ignore]
    """Its workers fetch and decode for the next epoch in a thread."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        in_a_thread(lambda: again_and_again(0.004, 0.05), "cache")
        while True:
            yield torch.ones(1)


def load() -> Iterator[torch.Tensor]:
    """A data loader with a worker that caches ahead."""
    return iter(DataLoader(_CachesAhead(), num_workers=1, batch_size=None, multiprocessing_context="fork"))


_SCRAPER = """
import os, sys, time, urllib.request
while os.path.exists(f"/proc/{sys.argv[1]}"):
    try:
        urllib.request.urlopen(sys.argv[2], timeout=1).read()
    except OSError:
        pass
    time.sleep(0.1)
"""


@contextlib.contextmanager
def scraped() -> Iterator[None]:
    """A metrics endpoint in a thread, which a scraper beside the job asks ten times a second."""
    import http.server

    class Metrics(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            work(0.003)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"up 1\n" * 100)

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    in_a_thread(server.serve_forever, "metrics")
    parent, address = os.getpid(), f"http://127.0.0.1:{server.server_address[1]}/metrics"
    if os.fork() == 0:
        if os.fork():
            os._exit(0)  # its child belongs to nobody then
        # Another program, with nothing of a rank's.
        os.execve(sys.executable, [sys.executable, "-c", _SCRAPER, str(parent), address], {})
    os.wait()
    yield
