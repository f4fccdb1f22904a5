"""Situations of kinds that people report and that are no hang: services, pipelines, helpers. Started as
`training_reported.py NAME`. See common.py."""

import contextlib
import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from pathlib import Path

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

from tests.controls.common import (
    DEVICE,
    FOR_EVER,
    QUIET_SECONDS,
    RANK,
    WARM_UP,
    WORLD,
    beat,
    busy,
    main,
    one_rank_waits,
    situation,
    step,
    train,
)


@situation
def pipeline_serves_requests() -> None:
    """An engine of four stages: a request comes now and then, and passes them by P2P; between requests all idle in
    their receive, and rank 0 polls."""
    train(WARM_UP)
    pauses = random.Random(1)
    for number in range(24):
        passed = torch.ones(64, device=DEVICE)
        if RANK == 0:
            time.sleep(QUIET_SECONDS if number == 16 else pauses.uniform(0.05, 1.0))
        else:
            dist.recv(passed, RANK - 1)
        time.sleep(0.02)
        if RANK < WORLD - 1:
            dist.send(passed, RANK + 1)
        beat.step()
    train(20)


@situation
def pipeline_fills_and_drains() -> None:
    """Eight micro-batches through four stages, and in one step of forty the last stage validates for long."""
    train(WARM_UP)
    for number in range(60):
        for _ in range(8):
            passed = torch.ones(64, device=DEVICE)
            if RANK > 0:
                dist.recv(passed, RANK - 1)
            time.sleep(0.005)
            if RANK < WORLD - 1:
                dist.send(passed, RANK + 1)
        if RANK == WORLD - 1 and number == 30:
            busy(QUIET_SECONDS)
        step(0.01)


@one_rank_waits
def a_thread_computes_beside_training(seconds: float) -> None:
    """A thread of Python code takes the GIL again and again; each step takes longer meanwhile."""
    threading.Thread(target=busy, args=(seconds,), daemon=True).start()


@one_rank_waits
def connects_with_a_time_out(seconds: float) -> None:
    """A webhook whose host drops packets: connect() waits for its time-out, twice, and training goes on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        for _ in range(2):
            with contextlib.suppress(OSError):
                socket.create_connection(listener.getsockname(), timeout=seconds / 2)


@one_rank_waits
def fed_by_a_pipe(seconds: float) -> None:
    """Another program writes the batches into a pipe, and needs long for one of them."""
    program = f"printf 12345678; sleep {seconds}; printf 12345678"
    with subprocess.Popen(["sh", "-c", program], stdout=subprocess.PIPE) as feeder:
        assert feeder.stdout
        for _ in range(2):
            feeder.stdout.read(8)


@one_rank_waits
def flushes_a_memory_map(seconds: float) -> None:
    """Optimizer states lie in a file that is mapped, and are written back block by block."""
    with tempfile.TemporaryFile() as file:
        file.truncate(32 << 20)
        states = mmap.mmap(file.fileno(), 32 << 20)
        until, at = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            states[at : at + (1 << 20)] = os.urandom(1 << 20)
            states.flush()
            at = (at + (1 << 20)) % (32 << 20)
            time.sleep(0.05)


@one_rank_waits
def a_timer_interrupts_its_read(seconds: float) -> None:
    """A profiler's timer fires ten times a second while the rank stands in one read of slow storage."""
    ours, theirs = os.pipe()
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    timer = threading.Timer(min(seconds, FOR_EVER), os.write, (theirs, b"x"))
    timer.daemon = True
    timer.start()
    os.read(ours, 1)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@one_rank_waits
def takes_a_snapshot_of_its_memory(seconds: float) -> None:
    """tracemalloc, started and asked again and again by a leak hunter."""
    tracemalloc.start()
    until, kept = time.monotonic() + seconds, []
    while time.monotonic() < until:
        kept = [bytes(64) for _ in range(20_000)]
        tracemalloc.take_snapshot().statistics("lineno")
    tracemalloc.stop()
    del kept


@situation
def spares_wait_in_a_barrier() -> None:
    """Two ranks train, two are spares: these stand in a barrier of all until training is over."""
    pair = dist.new_group([0, 1])
    train(WARM_UP)
    if RANK < 2:
        until = time.monotonic() + 2 * QUIET_SECONDS
        go_on = torch.ones(1, device=DEVICE)
        while go_on.item():
            time.sleep(0.05)
            go_on.fill_(float(time.monotonic() < until))
            dist.broadcast(go_on, 0, group=pair)
            beat.step()
    dist.barrier()
    train(20)


@situation
def coordinator_receives_from_any() -> None:
    """Rank 0 hands out work and receives results from whoever is first; workers compute for long, once."""
    train(WARM_UP)
    for number in range(12):
        result = torch.ones(4)
        if RANK == 0:
            for _ in range(WORLD - 1):
                dist.recv(result)
        else:
            busy(QUIET_SECONDS + 2 * RANK if number == 8 else 0.05)
            dist.send(result, 0)
        beat.step()
    train(20)


@situation
def keeps_a_send_pending() -> None:
    """Rank 1 has sent what rank 3 receives much later; training goes on meanwhile."""
    pair = dist.new_group([1, 3])
    train(WARM_UP)
    parcel = torch.ones(1 << 20)
    work = dist.isend(parcel, 3, group=pair) if RANK == 1 else None
    train(int(QUIET_SECONDS / 0.06) if QUIET_SECONDS < FOR_EVER else 400)
    if RANK == 3:
        dist.recv(parcel, 1, group=pair)
    if work is not None:
        work.wait()
    train(20)


class _Videos(torch.utils.data.Dataset):  # type: ignore[misc,type-arg,unused-ignore]
    """Each sample is decoded by a program; that of the first of the second half takes long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        seconds = self._seconds if index == 4 else 0.05
        program = f"import time; t = time.monotonic() + {seconds}\nwhile time.monotonic() < t: pass"
        subprocess.run([sys.executable, "-c", program], check=True, env={})
        return torch.ones(index)


@one_rank_waits
def loader_s_workers_run_programs(seconds: float) -> None:
    """The loader's worker has a sample decoded by a program that computes for long (ffmpeg)."""
    for _ in torch.utils.data.DataLoader(_Videos(seconds), num_workers=1, batch_size=None):
        pass


@situation
def ranks_meet_in_shared_memory() -> None:
    """A barrier of one's own: ranks poll files until all are there; rank 1 computes meanwhile."""
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder, 0, device=DEVICE)
    train(WARM_UP)
    for number in range(20):
        if RANK == 1 and number == 10:
            busy(QUIET_SECONDS)
        Path(folder[0], f"{number}-{RANK}").touch()
        while len(list(Path(folder[0]).glob(f"{number}-*"))) < WORLD:
            time.sleep(0.01)
        step()


@situation
def one_rank_serves_the_others() -> None:
    """Every rank asks rank 0's thread for its batches over a socket; rank 0 itself trains, and one answer is late."""
    port = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    if RANK == 0:
        listener = socket.create_server(("127.0.0.1", 0))
        port.fill_(listener.getsockname()[1])

        def answer(connection: socket.socket) -> None:
            asked = 0
            while connection.recv(1):
                asked += 1
                time.sleep(QUIET_SECONDS if asked == 20 else 0.001)
                connection.sendall(b"x")

        def serve() -> None:
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
    dist.broadcast(port, 0)
    train(WARM_UP)
    with socket.create_connection(("127.0.0.1", int(port.item()))) as batches:
        for _ in range(60):
            batches.sendall(b"?")
            batches.recv(1)
            step()


@one_rank_waits
def compresses_its_checkpoint_in_a_pipe(seconds: float) -> None:
    """torch.save into a compressing child: the pipe is full most of the time, and the child works."""
    program = "import sys, time\nwhile sys.stdin.buffer.read(1 << 12): time.sleep(0.01)"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, env={}) as child:
        assert child.stdin
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            child.stdin.write(bytes(1 << 16))


if __name__ == "__main__":
    main()
