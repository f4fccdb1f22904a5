"""Real hangs of what frameworks and their users do: shards fetched ahead, torch's debug mode, event loops, starts that
go wrong, deaths, and ranks that meet outside of process groups. Started as `hangs_of_frameworks.py NAME`. What must be
said is in the decorator; see common.py."""

import asyncio
import ctypes
import fcntl
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

if sys.argv[1] == "one_calls_another_port" and os.environ["RANK"] == "3":  # as its launcher told it
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)

from tests.controls.common import (
    BACKEND,
    DEVICE,
    FOR_EVER,
    JOB_FOLDER,
    RANK,
    STEP_SECONDS,
    WARM_UP,
    WORLD,
    beat,
    before_rendezvous,
    hang,
    main,
    stands,
    step,
    train,
    train_in_a_thread,
)
from tests.controls.slow_mount import mounted

_STUCK = threading.Event()
_FORK = multiprocessing.get_context("fork")


@stands(where=("lock",))
def debug_mode_stands() -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL: the others stand where torch compares their calls, in a group of its own."""
    _STUCK.wait()  # here


@before_rendezvous("debug_mode_stands")
def _in_debug_mode() -> None:
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    dist.init_process_group(BACKEND)


@hang(culprits=(2,), where=("lock",))
def shard_is_never_fetched() -> None:
    """FSDP2 that gathers the next layers ahead: rank 2 is stuck in a hook of its second layer."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: TID251
    from torch.distributed.fsdp import fully_shard  # noqa: TID251

    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    model, mesh = torch.nn.Sequential(*layers).to(DEVICE), init_device_mesh(DEVICE.type, (WORLD,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for layer, after in itertools.pairwise(layers):
        layer.set_modules_to_forward_prefetch([after])  # type: ignore[operator,unused-ignore]
    number = 0

    def log_activations(*_: object) -> None:
        if RANK == 2 and number == WARM_UP:
            _STUCK.wait()  # here

    layers[1].register_forward_hook(log_activations)
    for number in range(WARM_UP + 60):  # noqa: B007
        time.sleep(STEP_SECONDS)
        model(torch.randn(4, 64, device=DEVICE)).sum().backward()
        beat.step()


@hang(causes=("collective_mismatch", "rank_raised", "not_entered"), culprits=(2,))
def object_cannot_be_pickled() -> None:
    """Metrics are gathered as objects; rank 2's cannot be pickled, the exception is passed over, and it trains on."""
    train(WARM_UP)
    try:
        dist.all_gather_object([None] * WORLD, {"callback": threading.Lock()} if RANK == 2 else {"loss": 0.5})
    except Exception as error:
        print(f"metrics are left out: {error!r}", flush=True)
    train(60)


@stands(where=("lock",))
def event_loop_waits_for_itself() -> None:
    """A coroutine hands another to its own loop, and waits for the result without giving the loop back."""

    async def evaluate() -> None:
        loop = asyncio.get_running_loop()
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()  # here

    asyncio.run(evaluate())


@stands(where=("lock", "user_code", "unknown"))
def native_lock() -> None:
    """A lock of C that its own thread holds; the GIL was given back."""
    libc = ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)  # here


@hang(culprits=(1, 2))
def two_file_locks_in_reversed_order() -> None:
    """Two ranks lock two files of a cache, each in its own order; the others wait for both."""
    train(WARM_UP)
    if RANK in (1, 2):
        JOB_FOLDER.mkdir(exist_ok=True)
        first, second = (JOB_FOLDER / f"{name}.lock" for name in ("ab" if RANK == 1 else "ba"))
        with first.open("w") as mine, second.open("w") as its:
            fcntl.flock(mine, fcntl.LOCK_EX)
            time.sleep(2)
            fcntl.flock(its, fcntl.LOCK_EX)  # here
    train(60)


@hang(causes=("rank_exited", "rank_raised"), culprits=(3,))
def one_dies_before_the_rendezvous() -> None:
    """Rank 3's configuration is broken; nobody ends the others, which wait for it at the rendezvous."""


@before_rendezvous("one_dies_before_the_rendezvous")
def _dies() -> None:
    if RANK == 3:
        time.sleep(2)
        raise KeyError("learning_rate")


@hang(causes=("init_missing",), culprits=(3,))
def one_calls_another_port() -> None:
    """Rank 3 was told another MASTER_PORT, where nobody is."""


@before_rendezvous("one_calls_another_port")
def _waits_for_long() -> None:
    dist.init_process_group(BACKEND, timeout=timedelta(seconds=100))


@hang(causes=("init_missing",), culprits=(3,))
def own_time_out_ends_its_start() -> None:
    """Rank 3 waits for a license before it joins, for longer than the others' time-out, of which they die."""


@before_rendezvous("own_time_out_ends_its_start")
def _with_a_short_time_out() -> None:
    if RANK == 3:
        _STUCK.wait()
    dist.init_process_group(BACKEND, timeout=timedelta(seconds=30))


@hang(causes=("rank_exited", "rank_raised"), culprits=(2,))
def segmentation_fault() -> None:
    """An extension of rank 2 reads where nothing is."""
    train(WARM_UP)
    if RANK == 2:
        ctypes.string_at(0)
    train(60)


@hang(causes=("rank_exited", "rank_raised"), culprits=(2,))
def one_raises() -> None:
    """An exception of rank 2 ends it; the launcher ends the others."""
    train(WARM_UP)
    if RANK == 2:
        raise ValueError("label 50257 is out of range")
    train(60)


@hang(causes=("rank_exited", "rank_raised"), culprits=(2,))
def loader_worker_is_killed() -> None:
    """A worker of rank 2's data loader is killed for memory; the loader raises in the rank."""
    train(WARM_UP)
    if RANK == 2:
        for _ in torch.utils.data.DataLoader(_Kills(), batch_size=None, num_workers=2):
            pass
    train(60)


class _Kills(torch.utils.data.IterableDataset):  # type: ignore[misc,type-arg,unused-ignore]
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield torch.ones(4)
        os.kill(os.getpid(), signal.SIGKILL)


@hang(causes=("rank_raised", "not_entered", "data_exhausted"), culprits=(2,))
def child_outlives_a_sys_exit() -> None:
    """Rank 2 leaves by `sys.exit(1)`; at its exit multiprocessing joins a child that never ends."""
    train(WARM_UP)
    if RANK == 2:
        _FORK.Process(target=time.sleep, args=(FOR_EVER,)).start()
        sys.exit(1)
    train(60)


@stands(where=("filesystem", "user_code", "unknown"))
def mounted_store_never_answers() -> None:
    """s3fs, gcsfuse and their like: the kernel waits for the answer of a process that is stuck (FUSE)."""
    with mounted(FOR_EVER) as shard:
        shard.read_bytes()  # here


@hang(causes=("p2p_unmatched", "not_entered"), culprits=(0, 1))
def tags_differ() -> None:
    """Rank 0 sends under one tag, rank 1 receives under another."""
    train(WARM_UP)
    activation = torch.ones(1 << 20, device=DEVICE)
    if RANK == 0:
        dist.send(activation, 1, tag=1)
    if RANK == 1:
        dist.recv(activation, 0, tag=2)
    train(60)


@hang(causes=("collective_mismatch", "not_entered"), culprits=(2,))
def one_rank_stays_in_eval_mode() -> None:
    """A layer gathers its statistics from all ranks while it trains; rank 2 forgot `model.train()` after evaluation."""
    trains = True
    for number in range(WARM_UP + 60):
        if RANK == 2 and number == WARM_UP:
            trains = False
        if trains:
            mine = torch.ones(8, device=DEVICE)
            dist.all_gather([torch.empty_like(mine) for _ in range(WORLD)], mine)
        step()


@hang(causes=("not_entered", "data_exhausted", "collective_mismatch"), culprits=(1,))
def stops_early_and_waits_for_a_file() -> None:
    """Rank 1 believes that training is over, and looks for the file that rank 0 writes at the end."""
    train(WARM_UP)
    while RANK == 1 and not (JOB_FOLDER / "done").exists():
        time.sleep(1)  # here
    train(60)


@stands(where=("lock",))
def waits_again_after_each_time_out() -> None:
    """A wait with a time-out in a loop that never gives up: the thread that was to set the event has died."""
    ready = threading.Event()
    while not ready.wait(timeout=2):  # here
        print("still waiting for the first batch", flush=True)


@hang(causes=("rank_raised", "not_entered"), culprits=(2,))
def training_thread_has_died() -> None:
    """The loop runs in a thread; rank 2's has raised, and the main thread looks for results as ever."""

    def check() -> None:
        if RANK == 2:
            raise ValueError("label 50257 is out of range")

    train_in_a_thread(check)


@hang(culprits=(2,), where=("lock",))
def stands_after_its_first_seconds() -> None:
    """Nobody counts steps, and rank 2 is stuck after two seconds: no rhythm was learned."""
    for number in range(100):
        time.sleep(STEP_SECONDS)
        if RANK == 2 and number == 40:
            _STUCK.wait()  # here
        dist.all_reduce(torch.ones(1024, device=DEVICE))


@hang(causes=("group_order", "collective_mismatch"), culprits=(3,))
def groups_are_made_in_another_order() -> None:
    """Rank 3 makes the two new groups in reversed order."""
    train(WARM_UP)
    members = [[0, 1, 2, 3], [0, 3]]
    groups = [dist.new_group(ranks) for ranks in (members[::-1] if RANK == 3 else members)]
    dist.barrier(groups[RANK == 3])
    train(60)


if __name__ == "__main__":
    main()
