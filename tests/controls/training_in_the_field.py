"""Situations of kinds that real training has, and that are no hang: helpers, hosts, savers. Started as
`training_in_the_field.py NAME`. See common.py."""

import contextlib
import ctypes
import gc
import os
import queue
import random
import re
import signal
import socket
import tempfile
import threading
import time
from pathlib import Path

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251
from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: TID251

from tests.controls.common import (
    DEVICE,
    FOR_EVER,
    QUIET_SECONDS,
    RANK,
    WARM_UP,
    WORLD,
    busy,
    main,
    one_rank_waits,
    situation,
    train,
)

_LIBC = ctypes.CDLL(None, use_errno=True)
_SEMGET = 64  # x86-64


@situation
def arrives_at_a_barrier_in_turn() -> None:
    """Ranks reach a barrier one after the other, each after work of its own length."""
    train(WARM_UP)
    busy(QUIET_SECONDS * RANK / (WORLD - 1))
    dist.barrier()
    train(60)


@situation
def broadcasts_a_large_object() -> None:
    """Rank 0 pickles millions of small objects, and every rank reads them: `broadcast_object_list` of an index
    (its twin is of a size that never ends)."""
    train(WARM_UP)
    size = 1_200_000 if QUIET_SECONDS < FOR_EVER else 20_000_000
    index = [[(number, str(number)) for number in range(size)]] if RANK == 0 else [None]
    dist.broadcast_object_list(index, 0, device=DEVICE)
    train(60)


@one_rank_waits
def names_are_not_resolved(seconds: float) -> None:
    """The cluster's resolver fails for a while; the client asks again, a little later each time."""
    until, pause = time.monotonic() + seconds, 0.2
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            socket.getaddrinfo("shards.example.invalid", 443)
        time.sleep(min(pause, 5.0))
        pause *= 1.7


@one_rank_waits
def events_go_to_a_slow_mount(seconds: float) -> None:
    """TensorBoard's writer: its queue is full, and its thread writes to a mount that takes a little now and then."""
    ours, theirs = os.pipe()
    events: queue.Queue[bytes] = queue.Queue(2)
    until = time.monotonic() + seconds

    def flush() -> None:
        while event := events.get():
            os.write(theirs, event)

    def take() -> None:
        while time.monotonic() < until:
            time.sleep(0.2)
            os.read(ours, 1 << 14)
        while True:
            os.read(ours, 1 << 20)

    threading.Thread(target=take, daemon=True).start()
    threading.Thread(target=flush, daemon=True).start()
    while time.monotonic() < until:
        events.put(bytes(1 << 15))
    events.put(b"")


@one_rank_waits
def freezes_what_it_has_built(seconds: float) -> None:
    """Before workers are forked: gc.collect() over millions of objects, and gc.freeze(); each takes the GIL."""
    until = time.monotonic() + seconds
    kept = [[{"id": number} for number in range(300_000)] for _ in range(4)]
    while time.monotonic() < until:
        gc.collect()
        gc.freeze()
        gc.unfreeze()
    kept.clear()


@situation
def averaged_model_is_synchronised() -> None:
    """Before an evaluation an EMA's parameters are broadcast one by one, thousands of small ones; none is a step."""
    train(WARM_UP)
    until = torch.ones(1, device=DEVICE)
    began = time.monotonic()
    while until.item():
        for _ in range(50):
            dist.broadcast(torch.ones(16, device=DEVICE), 0)
        until.fill_(float(time.monotonic() - began < QUIET_SECONDS))
        dist.broadcast(until, 0)
    train(60)


@situation
def optimizer_is_consolidated() -> None:
    """ZeRO's optimizer: every rank sends its shard to rank 0, which writes them all for long."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8))).to(DEVICE)
    optimizer = ZeroRedundancyOptimizer(layers.parameters(), torch.optim.Adam, lr=0.1)
    train(WARM_UP)
    layers(torch.ones(2, 64, device=DEVICE)).sum().backward()
    optimizer.step()
    optimizer.consolidate_state_dict()
    if RANK == 0:
        until = time.monotonic() + QUIET_SECONDS
        with tempfile.TemporaryDirectory() as folder:
            while time.monotonic() < until:
                torch.save(optimizer.state_dict(), Path(folder, "states.pt"))
                time.sleep(0.05)
    dist.barrier()
    train(60)


@one_rank_waits
def files_are_counted(seconds: float) -> None:
    """The data set's folders are listed, and each file's size is asked for."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(2000):
            Path(folder, f"{number}.tar").touch()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            sum(entry.stat().st_size for entry in os.scandir(folder))


@situation
def waits_for_the_next_shard() -> None:
    """Online learning: rank 0 looks for new files every two seconds, the others stand in its broadcast."""
    folder = Path(tempfile.mkdtemp())
    train(WARM_UP)
    for number in range(3):
        if RANK == 0:
            shard = folder / f"{number}.bin"
            producer = threading.Timer(QUIET_SECONDS if number == 1 else 1.0, shard.touch)
            producer.daemon = True
            producer.start()
            while shard.name not in os.listdir(folder):
                time.sleep(2.0)
        dist.broadcast(torch.ones(1, device=DEVICE), 0)
        train(20)


@one_rank_waits
def asks_a_server_by_datagrams(seconds: float) -> None:
    """A license server is asked by UDP; each question has five seconds for its answer, and is asked again."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server,
    ):
        server.bind(("127.0.0.1", 0))
        asked.settimeout(5.0)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            asked.sendto(b"?", server.getsockname())
            with contextlib.suppress(TimeoutError):
                asked.recv(64)


@one_rank_waits
def a_thread_raises_a_counter(seconds: float) -> None:
    """A prefetcher in native style: it computes in its thread, and says by an eventfd when it is done."""
    counter = os.eventfd(0)

    def work() -> None:
        busy(seconds)
        os.eventfd_write(counter, 1)

    threading.Thread(target=work, daemon=True).start()
    os.eventfd_read(counter)


@situation
def starts_a_daemon_of_its_own() -> None:
    """Rank 1 starts a metrics daemon by a double fork; it keeps connections and variables, and outlives the job."""
    train(WARM_UP)
    if RANK == 1:
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                os.setsid()
                signal.alarm(60)  # so that nothing of ours stays for good
                while True:
                    time.sleep(5)
            os._exit(0)
        os.waitpid(child, 0)
    train(int(QUIET_SECONDS / 0.06) if QUIET_SECONDS < FOR_EVER else 400)


@one_rank_waits
def cleans_its_text(seconds: float) -> None:
    """Regular expressions over long documents; each call takes seconds and holds the GIL."""
    random.seed(1)
    text = "".join(random.choice("ab .") for _ in range(400_000))
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(40):
            re.sub(r"(a+b+)+\.", "", text)


@situation
def ranks_take_turns_at_a_semaphore() -> None:
    """One rank of a node at a time reads from storage, as a semaphore of System V has it; rank 1 needs long, once."""
    key = [0]
    if RANK == 0:
        key = [_LIBC.syscall(_SEMGET, 0, 1, 0o1666)]
        _LIBC.semop(key[0], (ctypes.c_short * 3)(0, 1, 0), 1)
    dist.broadcast_object_list(key, 0, device=DEVICE)
    train(WARM_UP)
    for number in range(6):
        _LIBC.semop(key[0], (ctypes.c_short * 3)(0, -1, 0), 1)
        busy(QUIET_SECONDS if (RANK, number) == (1, 3) else 0.05)
        _LIBC.semop(key[0], (ctypes.c_short * 3)(0, 1, 0), 1)
        train(10)
    dist.barrier()
    if RANK == 0:
        _LIBC.semctl(key[0], 0, 0)


@situation
def generates_until_all_have_ended() -> None:
    """Every rank goes on for as long as one of them has tokens to generate (`synced_gpus`); rank 2's sample is long."""
    train(WARM_UP)
    began = time.monotonic()
    while True:
        time.sleep(0.02)
        mine = QUIET_SECONDS if RANK == 2 else 1.0
        unfinished = torch.tensor([float(time.monotonic() - began < mine)], device=DEVICE)
        dist.all_reduce(unfinished, dist.ReduceOp.MAX)
        if not unfinished.item():
            break
    train(60)


if __name__ == "__main__":
    main()
