"""Training that is quiet for a while, as people tell of it: file systems behind event loops, agents
that still write, barriers of loaders, weights that go to a server beside the job, evaluators that come late. Started as
`training_told_by_users.py NAME`. See common.py."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Iterator
from datetime import timedelta

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

from tests.controls.common import (
    DEVICE,
    FOR_EVER,
    JOB_FOLDER,
    QUIET_SECONDS,
    RANK,
    STEP_SECONDS,
    WARM_UP,
    WORLD,
    beat,
    busy,
    compute,
    main,
    one_rank_waits,
    situation,
    synchronize,
    train,
)

_KEPT: list[object] = []


async def _fetch(seconds: float) -> bytes:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        await asyncio.sleep(seconds)
        writer.write(b"shard")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    writer.write(b"GET /shard\n")
    return await reader.read(100)


@one_rank_waits
def file_system_s_loop_answers_late(seconds: float) -> None:
    """s3fs and gcsfs: fsspec's thread asks in an event loop, and the caller looks every second whether it is done."""
    import fsspec.asyn

    fsspec.asyn.sync(fsspec.asyn.get_loop(), _fetch, seconds)


@one_rank_waits
def agent_has_not_written_the_last_checkpoint(seconds: float) -> None:
    """Flash checkpoints (dlrover): the next save asks the agent by a socket whether the last one is written; it says no
    for a while."""
    path = str(JOB_FOLDER.with_suffix(f".agent{RANK}"))
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    pid = os.fork()
    if pid == 0:
        until = time.monotonic() + seconds
        while True:
            client, _ = server.accept()
            with client, contextlib.suppress(OSError):
                client.recv(100)
                client.sendall(b"free" if time.monotonic() > until else b"held")
                if time.monotonic() > until:
                    os._exit(0)
    answer = b""
    while answer != b"free":
        time.sleep(0.5)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.sendall(b"acquire")
            answer = client.recv(100)


class _Streamed(torch.utils.data.IterableDataset):  # type: ignore[misc,type-arg,unused-ignore]
    """Workers of all ranks of a node meet before an epoch; rank 1's shuffles for long before the second."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for epoch in range(3):
            if RANK == 1 and epoch == 1:
                busy(QUIET_SECONDS)
            (JOB_FOLDER / f"epoch-{epoch}-{RANK}").touch()
            while len(list(JOB_FOLDER.glob(f"epoch-{epoch}-*"))) < WORLD:
                time.sleep(0.007)
            for _ in range(WARM_UP):
                yield torch.ones(1024)


@situation
def workers_of_all_ranks_meet_between_epochs() -> None:
    """MosaicML's streaming: workers of all ranks meet in shared memory before each epoch, and one shuffles first."""
    JOB_FOLDER.mkdir(exist_ok=True)
    loader = torch.utils.data.DataLoader(
        _Streamed(), batch_size=None, num_workers=1, prefetch_factor=2, multiprocessing_context="fork"
    )
    for batch in loader:
        time.sleep(STEP_SECONDS)
        dist.all_reduce(batch.to(DEVICE))
        synchronize()
        beat.step()


@situation
def weights_go_to_a_server_that_is_busy() -> None:
    """Reinforcement learning: rank 0 sends its weights to a server of inference by a group of these two alone, as trl
    does; the server first ends what it generates. The others wait in a barrier."""
    if RANK == 0:
        store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
        if os.fork() == 0:
            mine = dist.TCPStore("127.0.0.1", store.port, 2, is_master=False)
            group = dist.ProcessGroupGloo(mine, 1, 2, timedelta(seconds=1800))
            for number in range(6):
                if number == 4:
                    compute(QUIET_SECONDS)
                group.broadcast([torch.zeros(1024)], dist.BroadcastOptions()).wait()
            os._exit(0)
        group = dist.ProcessGroupGloo(store, 0, 2, timedelta(seconds=1800))
    for _ in range(6):
        train(20)
        if RANK == 0:
            group.broadcast([torch.ones(1024)], dist.BroadcastOptions()).wait()
        dist.barrier()


@situation
def second_node_gets_its_index_later() -> None:
    """The index of the data is copied to the second node, whose ranks look for it every second; the first goes on."""
    train(WARM_UP)
    JOB_FOLDER.mkdir(exist_ok=True)
    path = JOB_FOLDER / f"index-of-node-{RANK // 2}.npy"
    if RANK == 0:
        path.touch()
        if os.fork() == 0:
            time.sleep(QUIET_SECONDS)
            (JOB_FOLDER / "index-of-node-1.npy").touch()
            os._exit(0)
    while not path.exists():
        time.sleep(1)
    train(60)


@situation
def evaluator_is_behind_when_training_ends() -> None:
    """The last rank scores each checkpoint, computing for long; the others have trained in a group of their own, and
    wait for it in the last barrier."""
    trainers = dist.new_group(list(range(WORLD - 1)))
    JOB_FOLDER.mkdir(exist_ok=True)
    if RANK == WORLD - 1:
        for number in range(3):
            path = JOB_FOLDER / f"step-{number}.done"
            while not path.exists():
                time.sleep(0.5)
            compute(QUIET_SECONDS if number == 2 else 1)
            beat.step()
    else:
        for number in range(90):
            time.sleep(STEP_SECONDS)
            dist.all_reduce(torch.ones(1024, device=DEVICE), group=trainers)
            synchronize()
            beat.step()
            if RANK == 0 and number % 30 == 29:
                (JOB_FOLDER / f"step-{number // 30}.done").touch()
    dist.barrier()


@situation
def has_groups_that_it_uses_later() -> None:
    """Groups of pairs are made at the start and used by the first evaluation alone, which rank 1 reaches late."""
    pairs = [dist.new_group([first, first + 1]) for first in range(0, WORLD, 2)]
    train(WARM_UP)
    if RANK == 1:
        busy(QUIET_SECONDS)
    train(20)
    dist.all_reduce(torch.ones(64, device=DEVICE), group=pairs[RANK // 2])
    train(40)


@situation
def stages_of_two_replicas_wait_for_one() -> None:
    """Two replicas of two stages: rank 1 tokenises for long, its stage waits, and then the other replica."""
    stages = [dist.new_group([first, first + 1]) for first in range(0, WORLD, 2)]
    replicas = [dist.new_group(list(range(first, WORLD, 2))) for first in (0, 1)]
    for number in range(WARM_UP + 60):
        time.sleep(STEP_SECONDS)
        if RANK == 1 and number == WARM_UP:
            busy(QUIET_SECONDS)
        values = torch.ones(256, device=DEVICE)
        if RANK % 2:
            dist.recv(values, src=RANK - 1, group=stages[RANK // 2])
        else:
            dist.send(values, dst=RANK + 1, group=stages[RANK // 2])
        dist.all_reduce(values, group=replicas[RANK % 2])
        synchronize()
        beat.step()


@one_rank_waits
def reads_in_a_loop_of_short_time_outs(seconds: float) -> None:
    """grpc's and zmq's way: a wait of a fifth of a second, again and again, until the answer is there."""
    near, far = socket.socketpair()
    _KEPT.append(far)
    if os.fork() == 0:
        time.sleep(min(seconds, FOR_EVER))
        far.send(b"x")
        os._exit(0)
    near.settimeout(0.2)
    while True:
        with contextlib.suppress(TimeoutError):
            near.recv(1)
            return


if __name__ == "__main__":
    main()
