"""Situations that are no hang, where the node or the fleet around a job makes its ranks wait: processors that are taken
away, drivers that look at results late, replicas that heal, clients that are drawn. Started as
`training_on_shared_nodes.py NAME`. See common.py."""

import contextlib
import hashlib
import os
import queue
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251
from torch.utils.data import DataLoader, IterableDataset  # noqa: TID251

from tests.controls.common import (
    DEVICE,
    QUIET_SECONDS,
    RANK,
    STEP_SECONDS,
    WARM_UP,
    WORLD,
    beat,
    compute,
    main,
    one_rank_waits,
    situation,
    train,
)
from tests.controls.processors import leave_little, neighbour_takes_the_core


@one_rank_waits
def neighbour_takes_its_core(seconds: float) -> None:
    """Another container of higher priority computes on the one core that rank 1 may use: it is ready and waits."""
    with neighbour_takes_the_core(seconds):
        _work(0.5)


@one_rank_waits
def quota_is_used_up(seconds: float) -> None:
    """A container's limit of processor time: rank 1 gets a thousandth of a core, until somebody raises the limit."""
    with leave_little(seconds):
        _work(0.5)


def _work(seconds: float) -> None:
    """So long on the processor, however long that takes."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        hashlib.sha256(bytes(65536)).digest()


@one_rank_waits
def quota_is_used_up_while_it_saves(seconds: float) -> None:
    """The same in native code, without the GIL."""
    values = torch.randn(1400, 1400)
    with leave_little(seconds):
        for _ in range(3):
            values @ values


@situation
def driver_takes_results_late() -> None:
    """Ray Train: the loop runs in a thread of an actor, and reports go into a queue of one; the driver, which decides
    whether the trial goes on, takes them late, of all ranks."""
    reports: queue.Queue[int] = queue.Queue(1)
    failed: list[BaseException] = []

    def loop() -> None:
        try:
            train(WARM_UP)
            for number in range(3):
                reports.put(number)
                train(20)
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=loop, name="train-loop")
    thread.start()
    reports.get()
    time.sleep(min(QUIET_SECONDS, 1e6))
    for _ in range(2):
        reports.get()
    thread.join()
    assert not failed


@situation
def replica_heals() -> None:
    """torchft: before each round ranks ask rank 0's lighthouse for a quorum by a long request. Rank 3 came back after a
    failure and fetches its weights from a peer first, slowly; the others stand in their requests."""
    server = socket.create_server(("127.0.0.1", 0), backlog=16)
    ports: list[object] = [server.getsockname()[1]]
    dist.broadcast_object_list(ports, src=0)

    def lighthouse() -> None:
        while True:
            calls = [server.accept()[0] for _ in range(WORLD)]
            for call in calls:
                call.sendall(b"quorum\n")
                call.close()

    if RANK == 0:
        threading.Thread(target=lighthouse, daemon=True).start()
    train(WARM_UP)
    for number in range(4):
        if RANK == 3 and number == 1:
            _fetch_slowly(QUIET_SECONDS)
        with socket.create_connection(("127.0.0.1", int(str(ports[0])))) as call:
            call.recv(64)
        train(15)


def _fetch_slowly(seconds: float) -> None:
    ours, theirs = socket.socketpair()

    def send() -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            theirs.sendall(bytes(512))
            time.sleep(0.2)
        theirs.close()

    threading.Thread(target=send, daemon=True).start()
    while ours.recv(4096):
        pass


@situation
def clients_are_drawn() -> None:
    """Federated learning: each round rank 0 draws two clients, which train by themselves, one of them once for long;
    all others wait for the new model. Only who trains counts steps."""
    draw = torch.Generator().manual_seed(1)  # of all ranks alike
    for number in range(WARM_UP // 4 + 12):
        drawn = (torch.randperm(WORLD - 1, generator=draw)[:2] + 1).tolist()
        if drawn[0] == RANK:
            for _ in range(4):
                compute(STEP_SECONDS)
                beat.step()
            if number == WARM_UP // 4:
                compute(QUIET_SECONDS)
        elif drawn[1] == RANK:
            for _ in range(4):
                time.sleep(STEP_SECONDS)
                beat.step()
        update = torch.ones(64, device=DEVICE)
        if RANK in drawn:
            dist.send(update, 0)
        if RANK == 0:
            for client in drawn:
                dist.recv(update, client)
        dist.broadcast(update, src=0)
        if RANK == 0:
            beat.step()


class _Shards(IterableDataset):  # type: ignore[misc,type-arg,unused-ignore]
    """Samples that are decoded anew when a loader is fast-forwarded."""

    def __init__(self, until: float) -> None:
        self.until = until

    def __iter__(self) -> Iterator[torch.Tensor]:
        while time.monotonic() < self.until:
            compute(0.05)
            yield torch.ones(8)


@situation
def batches_are_skipped() -> None:
    """The loss jumped: all load the last checkpoint and fast-forward their loaders over the bad batches, which are
    decoded all the same; rank 2's are long ones. No step is counted."""
    train(WARM_UP)
    seconds = QUIET_SECONDS if RANK == 2 else min(QUIET_SECONDS, 10.0)
    for _ in DataLoader(_Shards(time.monotonic() + seconds), num_workers=1, multiprocessing_context="fork"):
        pass
    train(60)


@situation
def populations_compete() -> None:
    """Population-based training: pairs of ranks train models of their own; each is scored in a file, and the worse pair
    waits, without a collective, until the better has written its weights."""
    group = [dist.new_group([0, 1]), dist.new_group([2, 3])][RANK // 2]
    weights = Path("/tmp") / f"stallwatch-control-weights-{os.environ['MASTER_PORT']}"
    with contextlib.suppress(OSError):
        weights.unlink()
    dist.barrier()
    for number in range(WARM_UP + 60):
        if number == WARM_UP and RANK == 0:
            compute(QUIET_SECONDS)
            weights.write_bytes(bytes(4096))
        if number == WARM_UP and RANK >= 2:
            while not weights.exists():
                time.sleep(0.5)
        time.sleep(STEP_SECONDS)
        dist.all_reduce(torch.ones(1024, device=DEVICE), group=group)
        beat.step()


if __name__ == "__main__":
    main()
