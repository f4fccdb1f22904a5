"""What frameworks and their users do for a while: shards that are fetched ahead, checkpoints in the background, torch's
own debug mode, jobs within jobs, and ranks that meet outside of process groups. Started as `training_frameworks.py
NAME`. See common.py."""

import asyncio
import concurrent.futures
import fcntl
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

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
    busy,
    compute,
    main,
    one_rank_waits,
    situation,
    step,
    train,
)
from tests.controls.slow_mount import mounted

_AGAIN = "CONTROL_AGAIN"


@situation
def debug_mode_evaluates() -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL: torch compares each collective first, in a group of its own; rank 0 evaluates."""
    train(WARM_UP)
    if RANK == 0:
        compute(QUIET_SECONDS)
    train(60)


@before_rendezvous("debug_mode_evaluates")
def _in_debug_mode() -> None:
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    dist.init_process_group(BACKEND)


@situation
def shards_are_fetched_ahead() -> None:
    """FSDP2 that gathers the next layers ahead; a step of rank 3's optimizer, on the CPU, takes long once."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: TID251
    from torch.distributed.fsdp import fully_shard  # noqa: TID251

    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    model, mesh = torch.nn.Sequential(*layers).to(DEVICE), init_device_mesh(DEVICE.type, (WORLD,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for layer, after in itertools.pairwise(layers):
        layer.set_modules_to_forward_prefetch([after])  # type: ignore[operator,unused-ignore]
        after.set_modules_to_backward_prefetch([layer])  # type: ignore[operator,unused-ignore]
    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(WARM_UP + 60):
        time.sleep(STEP_SECONDS)
        model(torch.randn(4, 64, device=DEVICE)).sum().backward()
        if RANK == 3 and number == WARM_UP:
            compute(QUIET_SECONDS)
        optimizer.step()
        optimizer.zero_grad()
        beat.step()


@situation
def next_save_waits_for_torch_s_last() -> None:
    """torch.distributed.checkpoint.async_save: one rank's storage is slow, and all wait for the last save before the
    next one."""
    import torch.distributed.checkpoint as checkpoint  # noqa: TID251

    class Storage(checkpoint.FileSystemWriter):  # type: ignore[misc,unused-ignore]
        def write_data(self, plan, planner):  # type: ignore[no-untyped-def]
            if RANK == 2:
                with mounted(QUIET_SECONDS) as shard:
                    shard.read_bytes()
            return super().write_data(plan, planner)

    group = dist.new_group(backend="gloo")
    train(WARM_UP)
    for number in range(2):
        state, writer = {"weight": torch.ones(64)}, Storage(JOB_FOLDER / f"{number}")
        saving = checkpoint.async_save(state, storage_writer=writer, process_group=group)
        train(20)
        saving.result()
    train(60)


@situation
def ranks_meet_by_files() -> None:
    """A barrier of one's own on a shared file system: each makes a file and looks for the others' every half second."""
    train(WARM_UP)
    if RANK == 0:
        compute(QUIET_SECONDS)
    JOB_FOLDER.mkdir(exist_ok=True)
    (JOB_FOLDER / str(RANK)).touch()
    while len(list(JOB_FOLDER.iterdir())) < WORLD:
        time.sleep(0.5)
    train(60)


@one_rank_waits
def loader_is_made_anew(seconds: float) -> None:
    """A worker of the loader is killed for memory; the loop catches it and makes a new one, whose workers shuffle."""
    loader = torch.utils.data.DataLoader(_Dataset(0.0), batch_size=None, num_workers=2, persistent_workers=True)
    try:
        for _ in loader:
            os.kill(loader._iterator._workers[0].pid, signal.SIGKILL)
    except RuntimeError as error:
        print(f"trying again: {error}")
    for _ in torch.utils.data.DataLoader(_Dataset(seconds), batch_size=None, num_workers=2):
        pass


class _Dataset(torch.utils.data.IterableDataset):  # type: ignore[misc,type-arg,unused-ignore]
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __iter__(self) -> Iterator[torch.Tensor]:
        busy(self.seconds)
        for _ in range(20):
            yield torch.ones(8, 4)
            time.sleep(0.1)


@one_rank_waits
def event_loop_fetches_shards(seconds: float) -> None:
    """aiohttp, as far as it matters here: an event loop reads from several connections, and bytes come over each."""
    asyncio.run(_fetch(seconds))


async def _fetch(seconds: float) -> None:
    until = time.monotonic() + min(seconds, 5.0 if seconds > 1000 else seconds)

    async def give(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while time.monotonic() < until:
            writer.write(bytes(1 << 17))
            await asyncio.sleep(0.1)
        if seconds > 1000:
            await asyncio.Event().wait()
        writer.close()

    async def take(port: int) -> None:
        reader, _ = await asyncio.open_connection("127.0.0.1", port)
        while await reader.read(1 << 16):
            pass

    server = await asyncio.start_server(give, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await asyncio.gather(*(take(port) for _ in range(4)))


@one_rank_waits
def a_job_within_the_job(seconds: float) -> None:
    """One rank starts a small job of two processes (a reward model that is tuned) and waits for its end."""
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__, "small_job"],
        check=True,
        env={**os.environ, "CONTROL_SECONDS": str(seconds)},
    )


@situation
def small_job() -> None:
    """The ranks of the job within another; by itself a job that trains."""
    until, goes_on = time.monotonic() + min(QUIET_SECONDS, 20.0), torch.ones(1, device=DEVICE)
    while goes_on.item():
        step()
        goes_on.fill_(float(time.monotonic() < until))
        dist.broadcast(goes_on, src=0)


@one_rank_waits
def mounted_store_answers_late(seconds: float) -> None:
    """s3fs, gcsfuse and their like: the kernel waits for the answer of a process (FUSE)."""
    with mounted(seconds) as shard:
        shard.read_bytes()


@situation
def counts_epochs() -> None:
    """`step()` once an epoch of some seconds; in the third, rank 0 validates."""
    for epoch in range(4):
        for _ in range(WARM_UP):
            time.sleep(STEP_SECONDS)
            dist.all_reduce(torch.ones(1024, device=DEVICE))
        if RANK == 0 and epoch == 2:
            compute(QUIET_SECONDS)
        beat.step()


@situation
def works_before_its_rhythm_is_known() -> None:
    """Nobody counts steps yet; after two seconds of calls rank 0 waits for the result of a thread that evaluates."""
    for _ in range(40):
        time.sleep(STEP_SECONDS)
        dist.all_reduce(torch.ones(1024, device=DEVICE))
    if RANK == 0:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(compute, QUIET_SECONDS).result()
    train(60)


@situation
def starts_itself_anew() -> None:
    """A new configuration: every rank replaces its own program by `exec`, with the same process ids."""
    if os.environ.get(_AGAIN):
        train(60)
        return
    train(WARM_UP)
    dist.barrier()
    dist.destroy_process_group()
    os.environ.update({_AGAIN: "1", "MASTER_PORT": str(int(os.environ["MASTER_PORT"]) + 1)})
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    os.execv(sys.executable, [sys.executable, *sys.argv])


@situation
def ranks_load_under_a_lock() -> None:
    """The ranks of a node load one after the other, under a lock of a file, so that memory suffices."""
    train(WARM_UP)
    JOB_FOLDER.mkdir(exist_ok=True)
    with (JOB_FOLDER / "loading.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        compute(QUIET_SECONDS / 3)
        fcntl.flock(file, fcntl.LOCK_UN)
    train(60)


@situation
def samples_come_from_another_rank() -> None:
    """Rank 3 generates and hands its samples to rank 0 over a socket of its own; the others are in the next step."""
    port, train_first = int(os.environ["MASTER_PORT"]) + 1, WARM_UP
    listener = socket.create_server(("127.0.0.1", port)) if RANK == 0 else None
    train(train_first)
    if RANK == 3:
        with socket.create_connection(("127.0.0.1", port)) as samples:
            compute(QUIET_SECONDS)
            samples.sendall(bytes(64))
    if listener:
        with listener.accept()[0] as samples:
            samples.recv(64, socket.MSG_WAITALL)
    train(60)


@situation
def one_large_collective() -> None:
    """The whole model is broadcast at once, and averaged: seconds in one call, with a slow network much longer."""
    train(WARM_UP)
    weights = torch.ones(int(os.environ.get("CONTROL_ELEMENTS", 1 << 25)), device=DEVICE)
    dist.broadcast(weights, src=0)
    dist.all_reduce(weights)
    train(60)


if __name__ == "__main__":
    main()
