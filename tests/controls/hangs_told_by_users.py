"""Real hangs as people tell of them in issues and forums: shards of branches that some batches do not take, barriers of
loaders, servers beside the job, schedules that are one off. Started as `hangs_told_by_users.py NAME`. What must be said
is in the decorator; see common.py."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251
from torch.distributed.device_mesh import init_device_mesh  # noqa: TID251

from tests.controls.common import (
    DEVICE,
    FOR_EVER,
    JOB_FOLDER,
    RANK,
    STEP_SECONDS,
    WARM_UP,
    WORLD,
    beat,
    hang,
    main,
    stands,
    stop,
    synchronize,
    train,
)

_KEPT: list[object] = []
_FORK = multiprocessing.get_context("fork")


class _Multimodal(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """A language model with a tower that only images go through, as torchtitan's."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = torch.nn.Linear(96, 32)
        self.text = torch.nn.Linear(32, 32)

    def forward(self, text: torch.Tensor, image: torch.Tensor | None) -> torch.Tensor:
        if image is not None:
            text = text + self.tower(image)  # here
        return self.text(text)  # here


@hang(culprits=(), causes=("collective_mismatch",))
def half_of_the_batches_have_an_image() -> None:
    """FSDP2: ranks 0 and 1 gather the parameters of the tower, 2 and 3 have no image and gather the next layer's
    (pytorch/torchtitan#4777). Nobody is in the majority."""
    from torch.distributed.fsdp import fully_shard  # noqa: TID251

    mesh = init_device_mesh(DEVICE.type, (WORLD,))
    model = _Multimodal().to(DEVICE)
    fully_shard(model.tower, mesh=mesh)
    fully_shard(model.text, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for number in range(WARM_UP + 40):
        time.sleep(STEP_SECONDS)
        has_image = number < WARM_UP or RANK < WORLD // 2
        image = torch.randn(4, 96, device=DEVICE) if has_image else None
        model(torch.randn(4, 32, device=DEVICE), image).sum().backward()
        synchronize()
        beat.step()


class _Streamed(torch.utils.data.IterableDataset):  # type: ignore[misc,type-arg,unused-ignore]
    """Workers of all ranks of a node meet before an epoch, in shared memory."""

    def __init__(self, batches: int) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[torch.Tensor]:
        for epoch in range(1000):
            (JOB_FOLDER / f"epoch-{epoch}-{RANK}").touch()
            while len(list(JOB_FOLDER.glob(f"epoch-{epoch}-*"))) < WORLD:
                time.sleep(0.007)  # here
            for _ in range(self._batches):
                yield torch.ones(1024)


@hang(culprits=(2,), where=("dataloader",))
def worker_meets_the_others_a_batch_early() -> None:
    """The worker of rank 2 is done with its epoch and waits for the others' at their barrier; these have a batch left,
    which training takes once rank 2 reduces with the others (mosaicml/streaming#447, #617)."""
    JOB_FOLDER.mkdir(exist_ok=True)
    dataset = _Streamed(WARM_UP - 20 if RANK == 2 else WARM_UP)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=1, prefetch_factor=1, multiprocessing_context="fork"
    )
    for batch in loader:
        time.sleep(STEP_SECONDS)
        dist.all_reduce(batch.to(DEVICE))
        synchronize()
        beat.step()


@hang(culprits=(0,), where=("collective", "socket", "user_code", "unknown"))
def weights_go_to_a_server_that_is_gone() -> None:
    """Reinforcement learning: rank 0 sends its weights to a server of inference by a group of these two alone, as trl
    does; the server has refused and takes nothing (huggingface/trl#6797). The others wait in a barrier."""
    store = None
    if RANK == 0:
        store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
        pid = os.fork()
        if pid == 0:
            mine = dist.TCPStore("127.0.0.1", store.port, 2, is_master=False)
            group = dist.ProcessGroupGloo(mine, 1, 2, timedelta(seconds=1800))
            for _ in range(WARM_UP // 20):
                group.broadcast([torch.zeros(1024)], dist.BroadcastOptions()).wait()
            time.sleep(FOR_EVER)
        group = dist.ProcessGroupGloo(store, 0, 2, timedelta(seconds=1800))
    for _ in range(WARM_UP // 20 + 2):
        train(20)
        if RANK == 0:
            weights = torch.ones(4 << 20)
            group.broadcast([weights[:1024].clone()], dist.BroadcastOptions()).wait()
        dist.barrier()


@hang(culprits=(2,), where=("user_code", "socket", "lock"))
def environment_died_and_another_keeps_its_pipe() -> None:
    """Environments in processes: one was killed for memory, and a later one has inherited its end of the pipe, so that
    the rank reads there for ever and never sees an end."""
    train(WARM_UP)
    if RANK == 2:
        ends = []
        for _ in range(2):
            near, far = _FORK.Pipe()
            pid = os.fork()
            if pid == 0:
                while True:
                    far.send(far.recv())
            ends.append((pid, near, far))
        os.kill(ends[0][0], signal.SIGKILL)
        os.waitpid(ends[0][0], 0)
        ends[0][2].close()
        ends[0][1].send("step")
        ends[0][1].recv()  # here
    train(60)


@hang(culprits=(1, 2), causes=("p2p_unmatched",))
def one_sends_objects_and_the_other_receives_a_tensor() -> None:
    """Rank 1 sends a list of objects (their sizes, then their bytes), and rank 2 receives one tensor: the second
    message is taken by nobody, and is too large for any buffer."""
    train(WARM_UP)
    if RANK == 1:
        dist.send_object_list([{"weights": bytes(32 << 20)}], dst=2)  # here
    elif RANK == 2:
        dist.recv(torch.zeros(1, dtype=torch.int64, device=DEVICE), src=1)
    train(60)


@hang(culprits=(2, 3), where=("user_code", "filesystem"))
def second_node_waits_for_a_file_of_the_first() -> None:
    """Rank 0 writes the index below its own /tmp, and the ranks of the other node look for it there for ever
    (Megatron's index cache); those of the first node go on."""
    train(WARM_UP)
    JOB_FOLDER.mkdir(exist_ok=True)
    path = JOB_FOLDER / f"index-of-node-{RANK // 2}.npy"
    if RANK == 0:
        path.touch()
    while not path.exists():
        time.sleep(1)  # here
    train(60)


async def _fetch(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /shard HTTP/1.1\r\n\r\n")
    return await reader.read(100)  # here


@stands(where=("socket", "user_code", "lock"))
def file_system_s_loop_waits_for_an_object_store() -> None:
    """s3fs and gcsfs: a synchronous call is done by fsspec's own thread, in an event loop, and the caller looks every
    second whether it is done. The answer never comes."""
    import fsspec.asyn

    server = socket.create_server(("127.0.0.1", 0))
    _KEPT.append(server)
    fsspec.asyn.sync(fsspec.asyn.get_loop(), _fetch, server.getsockname()[1])


@hang(culprits=(2,), causes=("group_order",))
def averages_one_step_early() -> None:
    """Local SGD of pairs: gradients are reduced within a pair, weights are averaged by all every twentieth step. Rank 2
    was resumed and counts one step more: it averages while rank 3 reduces with it."""
    pairs = [dist.new_group([first, first + 1]) for first in range(0, WORLD, 2)]
    for number in range(WARM_UP + 60):
        time.sleep(STEP_SECONDS)
        counted = number + (RANK == 2 and number > WARM_UP)
        if counted % 20 == 19:
            dist.all_reduce(torch.ones(4096, device=DEVICE))  # here
        dist.all_reduce(torch.ones(64, device=DEVICE), group=pairs[RANK // 2])  # here
        synchronize()
        beat.step()


def _serve_a_lock(path: str, seconds: float) -> None:
    """An agent that has the lock of the checkpoint in shared memory while it writes it: it answers each question."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    until = time.monotonic() + seconds
    while True:
        client, _ = server.accept()
        with client, contextlib.suppress(OSError):
            client.recv(100)
            client.sendall(b"free" if time.monotonic() > until else b"held")


def _ask_an_agent_for_its_lock(seconds: float) -> None:
    path = str(JOB_FOLDER.with_suffix(f".agent{RANK}"))
    if os.fork() == 0:
        _serve_a_lock(path, seconds)
    while not Path(path).exists():
        time.sleep(0.01)
    while True:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.sendall(b"acquire")
            if client.recv(100) == b"free":
                return
        time.sleep(0.5)


@hang(culprits=(2,), where=("user_code",))
def agent_never_gives_its_lock_back() -> None:
    """Flash checkpoints (dlrover): the next save asks the agent by a socket whether the last one is written; the
    saver's process has died with the lock, and the agent says no for ever."""
    train(WARM_UP)
    if RANK == 2:
        _ask_an_agent_for_its_lock(FOR_EVER)
    train(60)


@hang(culprits=(3,), where=("user_code", "filesystem"))
def evaluator_waits_for_a_last_checkpoint() -> None:
    """The last rank evaluates each checkpoint that it finds and ends with the last one, whose marker was never
    written; the others have trained and wait in the barrier."""
    trainers = dist.new_group(list(range(WORLD - 1)))
    JOB_FOLDER.mkdir(exist_ok=True)
    if RANK == WORLD - 1:
        for number in range(4):
            path = JOB_FOLDER / f"step-{number}.done"
            while not path.exists():
                time.sleep(0.5)  # here
            beat.step()
    else:
        for number in range(WARM_UP):
            time.sleep(STEP_SECONDS)
            dist.all_reduce(torch.ones(1024, device=DEVICE), group=trainers)
            synchronize()
            beat.step()
            if RANK == 0 and number % 30 == 29:
                (JOB_FOLDER / f"step-{number // 30}.done").touch()
    dist.barrier()


@stands(where=("socket", "user_code", "lock"))
def reward_s_server_is_stopped() -> None:
    """A reward model in a process of its own behind a pool of threads: eight requests, each with a time-out and asked
    anew for ever; the server is stopped."""
    from concurrent.futures import ThreadPoolExecutor

    server = socket.create_server(("127.0.0.1", 0), backlog=64)
    child = os.fork()
    if child == 0:
        signal.pause()
    stop(child)
    address = server.getsockname()

    def ask(number: int) -> bytes:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(address, timeout=3) as client:
                client.sendall(b"score %d\n" % number)
                return client.recv(100)  # here

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))  # here


if __name__ == "__main__":
    main()
