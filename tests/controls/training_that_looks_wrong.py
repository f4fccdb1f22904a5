"""Situations that are no hang, and look like a fault that needs no patience: orders that differ and may, errors that
are logged and caught, members that are none, launchers of another kind. Started as `training_that_looks_wrong.py NAME`.
See common.py."""

import hashlib
import multiprocessing
import socket
import sys
import threading
import time

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

from tests.controls.common import (
    BACKEND,
    DEVICE,
    JOB_FOLDER,
    QUIET_SECONDS,
    RANK,
    STEP_SECONDS,
    WARM_UP,
    WORLD,
    beat,
    before_rendezvous,
    compute,
    main,
    situation,
    train,
)


@situation
def reductions_are_begun_in_another_order() -> None:
    """Two groups of all ranks, whose reductions are begun by hooks of gradients as these come, on each rank in another
    order, and waited for at the end: nobody is in anybody's way. Rank 1 begins its last one late."""
    groups = [dist.new_group(list(range(WORLD))) for _ in range(2)]
    train(WARM_UP)
    for number in range(40):
        works = []
        for turn in range(2):
            if RANK == 1 and number == 30 and turn == 1:
                compute(QUIET_SECONDS)
            group = groups[(turn + RANK) % 2]
            works.append(dist.all_reduce(torch.ones(1024, device=DEVICE), group=group, async_op=True))
        for work in works:
            work.wait()
        time.sleep(STEP_SECONDS)
        beat.step()


@situation
def messages_are_taken_by_their_tags() -> None:
    """A pipeline that takes the urgent message first: rank 1 waits for tag 2, while tag 1 lies there since long and
    rank 0 computes what tag 2 brings."""
    train(WARM_UP)
    message = torch.ones(64)
    for number in range(20):
        if RANK == 0:
            first = dist.isend(message, 1, tag=1)
            compute(QUIET_SECONDS if number == 15 else 0.05)
            dist.send(message, 1, tag=2)
            first.wait()
        elif RANK == 1:
            dist.recv(torch.empty(64), 0, tag=2)
            dist.recv(torch.empty(64), 0, tag=1)
        time.sleep(STEP_SECONDS)
        beat.step()
    train(20)


_SERVER = f"\0{JOB_FOLDER.name}-server"  # an address of Linux's own, without a file


@before_rendezvous("server_of_inference_is_no_member")
def _three_are_members() -> None:
    if RANK == WORLD - 1:
        server = socket.socket(socket.AF_UNIX)
        server.bind(_SERVER)
        server.listen(16)
        while True:
            connection, _ = server.accept()
            with connection:
                if connection.recv(1) != b"g":
                    break
                compute(0.3)
                connection.sendall(b"text")
        sys.exit(0)
    JOB_FOLDER.mkdir(exist_ok=True)
    store = dist.FileStore(str(JOB_FOLDER / "store"), WORLD - 1)
    dist.init_process_group(BACKEND, store=store, rank=RANK, world_size=WORLD - 1)


@situation
def server_of_inference_is_no_member() -> None:
    """One launcher starts trainers and a server of inference: the last of its ranks never joins a group, and answers
    who asks. Rank 1 then computes its rewards for long, without a request."""
    for number in range(WARM_UP + 60):
        if RANK == 0 and number % 20 == 0:
            _ask(b"g")
        if RANK == 1 and number == WARM_UP:
            compute(QUIET_SECONDS)
        train(1)
    dist.barrier()
    if RANK == 0:
        _ask(b"e")


def _ask(word: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        while connection.connect_ex(_SERVER):  # it is not there yet
            time.sleep(0.1)
        connection.sendall(word)
        connection.recv(16)


def _digest(number: int) -> str:
    text = str(number)
    until = time.monotonic() + QUIET_SECONDS / 4
    while time.monotonic() < until:
        text = hashlib.sha256(text.encode()).hexdigest()
    return text


@situation
def spawned_by_a_script() -> None:
    """`torch.multiprocessing.spawn` in a script of one's own, without a launcher: rank 0 tokenises in a pool, the
    others stand in a barrier."""
    train(WARM_UP)
    if RANK == 0:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            list(pool.imap(_digest, range(8)))
    dist.barrier()
    train(60)


@situation
def forked_by_a_notebook() -> None:
    """accelerate's notebook_launcher: ranks are forked from the kernel of a notebook, which imported torch before; rank
    1 reads its weights slowly from another machine."""
    train(WARM_UP)
    if RANK == 1:
        ours, theirs = socket.socketpair()

        def serve() -> None:
            until = time.monotonic() + QUIET_SECONDS
            while time.monotonic() < until:
                theirs.sendall(bytes(1 << 14))
                time.sleep(0.1)
            theirs.close()

        threading.Thread(target=serve, daemon=True).start()
        while ours.recv(1 << 16):
            continue
    train(60)


@situation
def started_by_srun() -> None:
    """Slurm's variables alone say who is who; rank 2 validates."""
    train(WARM_UP)
    if RANK == 2:
        compute(QUIET_SECONDS)
    train(60)


@situation
def wrapped_by_a_shell() -> None:
    """torchrun starts a shell for each rank; rank 1's copies its data first, rank 0's the results at the end."""
    train(60)


if __name__ == "__main__":
    main()
