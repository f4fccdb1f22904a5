"""Healthy jobs in which one rank, or some, do something for long while the others wait for them. See common.py.

Started as `one_rank_works.py NAME`.
"""

import contextlib
import http.server
import importlib
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

from tests.controls.common import (
    DEVICE,
    QUIET_SECONDS,
    RANK,
    STEP_SECONDS,
    WARM_UP,
    WORLD,
    busy,
    compute,
    main,
    situation,
    train,
)

_PACKET = bytes(64 << 10)


@situation
def rank0_validates() -> None:
    """N05: rank 0 runs the validation set in torch's own code, the others stand in a barrier."""
    train(WARM_UP)
    if RANK == 0:
        with torch.no_grad():
            compute(QUIET_SECONDS)
    dist.barrier()
    train(60)


@situation
def rank0_generates() -> None:
    """Rank 0 writes samples token by token, each a small forward pass and a line of output."""
    train(WARM_UP)
    if RANK == 0:
        until, weights, state = time.monotonic() + QUIET_SECONDS, torch.randn(64, 64), torch.randn(64)
        while time.monotonic() < until:
            state = torch.tanh(weights @ state)
            print(int(state.argmax()), end=" ", flush=True)
            time.sleep(0.01)
    dist.barrier()
    train(60)


@situation
def some_ranks_evaluate() -> None:
    """Half of the ranks evaluate in a group of their own, the others wait in a barrier."""
    half = dist.new_group(list(range(WORLD // 2)))
    train(WARM_UP)
    if RANK < WORLD // 2:
        until, goes_on = time.monotonic() + QUIET_SECONDS, torch.ones(1, device=DEVICE)
        while goes_on.item():
            compute(0.2)
            dist.all_reduce(torch.ones(4, device=DEVICE), group=half)
            # Rank 0 says so: by clocks of their own one did a batch more than the other, and the job really hung.
            goes_on.fill_(float(time.monotonic() < until))
            dist.broadcast(goes_on, 0, group=half)
    dist.barrier()
    train(60)


@situation
def torch_save() -> None:
    """Rank 0 saves with torch.save, synchronises the file and renames it, several times; the others wait."""
    train(WARM_UP)
    if RANK == 0:
        state = {f"layer{number}": torch.randn(1 << 20) for number in range(16)}
        until = time.monotonic() + QUIET_SECONDS
        with tempfile.TemporaryDirectory() as folder:
            while time.monotonic() < until:
                path = Path(folder) / "checkpoint.pt"
                with path.with_suffix(".new").open("wb") as file:
                    torch.save(state, file)
                    file.flush()
                    os.fsync(file.fileno())
                path.with_suffix(".new").rename(path)
    dist.barrier()
    train(60)


@situation
def checkpoint_is_uploaded() -> None:
    """Rank 0 sends its checkpoint to an object store that takes it slowly; the others stand in the barrier."""
    train(WARM_UP)
    if RANK == 0:
        sender, receiver = socket.socketpair()
        threading.Thread(target=_receive_slowly, args=(receiver,), daemon=True).start()
        until = time.monotonic() + QUIET_SECONDS
        while time.monotonic() < until:
            sender.sendall(_PACKET)
        sender.close()
    dist.barrier()
    train(60)


def _receive_slowly(receiver: socket.socket) -> None:
    while receiver.recv(len(_PACKET)):
        time.sleep(0.2)


@situation
def storage_stalls_longer() -> None:
    """Storage that answers after twice the usual time: one rank reads, the others are in its collective."""
    train(100)
    if RANK == 2:
        with tempfile.TemporaryDirectory() as folder:
            fifo = Path(folder) / "shard-00042.tar"
            os.mkfifo(fifo)
            threading.Thread(target=_answer, args=(fifo, 2 * QUIET_SECONDS), daemon=True).start()
            with fifo.open("rb") as file:
                file.read()
    train(100)


@situation
def storage_stalls_for_all() -> None:
    """A file server fails over: every rank stands in a read, and all go on when it is back."""
    train(100)
    with tempfile.TemporaryDirectory() as folder:
        fifo = Path(folder) / f"shard-{RANK}.bin"
        os.mkfifo(fifo)
        threading.Thread(target=_answer, args=(fifo, 1.5 * QUIET_SECONDS), daemon=True).start()
        fifo.read_bytes()
    train(100)


def _answer(fifo: Path, seconds: float) -> None:
    with fifo.open("wb") as file:
        time.sleep(seconds)
        file.write(bytes(4096))


@situation
def object_store_answers_late() -> None:
    """The data set lies behind HTTP, and one request takes long: the rank waits for a socket, the others for it."""
    train(WARM_UP)
    with _server(_SlowAnswer) as address:
        if RANK == 1:
            with urllib.request.urlopen(address, timeout=120) as answer:
                answer.read()
        train(60)


@situation
def object_store_throttles() -> None:
    """The object store answers 503; a client library sleeps and asks again until it is served (urllib3's Retry)."""
    train(WARM_UP)
    _Throttles.until = time.monotonic() + QUIET_SECONDS
    with _server(_Throttles) as address:
        if RANK == 1:
            _get_with_retries(address)
        train(60)


def _get_with_retries(address: str) -> None:
    """With urllib3 where it is installed, else with pip's copy of it."""
    name = "urllib3" if importlib.util.find_spec("urllib3") else "pip._vendor.urllib3"
    urllib3 = importlib.import_module(name)
    retries = importlib.import_module(f"{name}.util.retry").Retry(
        total=200, backoff_factor=2, status_forcelist=[503], respect_retry_after_header=False
    )
    assert urllib3.PoolManager().request("GET", address, retries=retries).status == 200


class _SlowAnswer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        time.sleep(QUIET_SECONDS)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(bytes(4096))

    def log_message(self, *_: object) -> None:
        return


class _Throttles(_SlowAnswer):
    until = 0.0

    def do_GET(self) -> None:
        self.send_response(503 if time.monotonic() < self.until else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextlib.contextmanager
def _server(handler: type[http.server.BaseHTTPRequestHandler]):  # type: ignore[no-untyped-def]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/shard"
    finally:
        server.shutdown()
        server.server_close()


@situation
def profiler_starts() -> None:
    """A profiler starts on rank 0, records some steps, and writes its trace, twenty times in a row."""
    train(WARM_UP)
    for _ in range(20):
        if RANK == 0:
            with torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True, record_shapes=True
            ) as profiler:
                train(4)
            with tempfile.TemporaryDirectory() as folder:
                profiler.export_chrome_trace(f"{folder}/trace.json")
                time.sleep(QUIET_SECONDS / 20)
        else:
            train(4)
    train(20)


@situation
def helper_processes() -> None:
    """A rank's helpers inherit its variables and load torch (an asynchronous checkpoint writer, a logger), and idle."""
    idle = "import torch, sys; sys.stdin.read()"
    helper = subprocess.Popen([sys.executable, "-c", idle], stdin=subprocess.PIPE)
    train(int(QUIET_SECONDS / STEP_SECONDS))
    helper.communicate()


@situation
def rank0_quantises() -> None:
    """Rank 0 works in another program (a converter, a compiler of engines) and waits for it; the others for rank 0."""
    train(WARM_UP)
    if RANK == 0:
        work = f"import time; end = time.monotonic() + {QUIET_SECONDS}\nwhile time.monotonic() < end: sum(range(10**5))"
        subprocess.run([sys.executable, "-c", work], check=True)
    dist.barrier()
    train(60)


@situation
def ranks_take_turns() -> None:
    """Checkpoints are loaded one rank after the other, so that memory suffices; the rest wait in barriers."""
    train(60)
    for turn in range(WORLD):
        if turn == RANK:
            busy(QUIET_SECONDS / WORLD)
        dist.barrier()
    train(60)


if __name__ == "__main__":
    main()
