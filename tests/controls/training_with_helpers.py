"""Situations in which others work for a rank that are no hang: executors, fork servers, databases, checkpointing
processes, handlers; and shards of uneven work. Started as `training_with_helpers.py NAME`. See common.py."""

import asyncio
import os
import signal
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251
from torch.utils.data import DataLoader, Dataset  # noqa: TID251

from tests.controls.common import (
    DEVICE,
    JOB_FOLDER,
    QUIET_SECONDS,
    RANK,
    STEP_SECONDS,
    WARM_UP,
    WORLD,
    beat,
    busy,
    compute,
    every_rank_waits,
    main,
    one_rank_waits,
    situation,
    step,
    train,
    train_counted_by_a_thread,
)


@situation
def steps_run_in_an_executor() -> None:
    """The loop is a coroutine, and each step runs in a thread of an executor, now in one, now in another; rank 1
    evaluates there once."""

    async def loop() -> None:
        here = asyncio.get_running_loop()
        with ThreadPoolExecutor(3) as threads:
            for number in range(WARM_UP + 60):
                await asyncio.gather(here.run_in_executor(threads, step), asyncio.sleep(0))
                if RANK == 1 and number == WARM_UP:
                    await here.run_in_executor(threads, compute, QUIET_SECONDS)

    asyncio.run(loop())


@situation
def next_save_waits_for_its_process() -> None:
    """torch.distributed.checkpoint.async_save in a process of its own: one rank's storage answers late, and all wait
    for the last save before the next one."""
    import torch.distributed.checkpoint as checkpoint  # noqa: TID251
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType  # noqa: TID251

    from tests.controls.silent_storage import SilentStorage

    group = dist.new_group(backend="gloo")
    train(WARM_UP)
    for number in range(2):
        late = QUIET_SECONDS if RANK == 2 and number == 0 else 0.0
        saving = checkpoint.async_save(
            {"weight": torch.ones(64)},
            storage_writer=SilentStorage(JOB_FOLDER / f"{number}", late),
            process_group=group,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        )
        train(20)
        saving.result()
    train(60)


@situation
def counts_steps_in_a_thread() -> None:
    """A thread of metrics takes each loss from a queue and counts the step; rank 1 evaluates once, in its training
    thread."""
    train_counted_by_a_thread(lambda: compute(QUIET_SECONDS) if RANK == 1 else None)


@situation
def phases_are_nested() -> None:
    """All of training is one phase, within it another on rank 0 alone, and a third within that."""
    with beat.phase("training"):
        train(WARM_UP)
        if RANK == 0:
            with beat.phase("validation"):
                compute(QUIET_SECONDS / 2)
                with beat.phase("checkpoint"):
                    busy(QUIET_SECONDS / 2)
        train(60)


@situation
def leaves_without_a_word() -> None:
    """The end: all ranks but the first leave by `os._exit(0)`, as programs do whose libraries crash at exit; rank 0
    still exports."""
    train(WARM_UP)
    dist.barrier()
    if RANK:
        os._exit(0)
    compute(QUIET_SECONDS)
    os._exit(0)


@every_rank_waits
def pauses_in_a_signal_s_handler(seconds: float) -> None:
    """A guard of the room's temperature sends a signal, and each rank's handler sleeps until it is cooler."""

    def pause(*_: object) -> None:
        time.sleep(min(seconds, 1e6))

    signal.signal(signal.SIGALRM, pause)
    signal.setitimer(signal.ITIMER_REAL, 0.02 * (RANK + 1))
    train(20)


@one_rank_waits
def asks_its_database_for_long(seconds: float) -> None:
    """One query over all samples: a single call into SQLite that computes without the GIL."""
    until = time.monotonic() + seconds
    samples = sqlite3.connect(":memory:")
    samples.set_progress_handler(lambda: int(time.monotonic() > until), 10_000_000)
    try:
        samples.execute("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(x) FROM n")
    except sqlite3.OperationalError as error:
        print(f"its time is over: {error}", flush=True)


class _Decoded(Dataset):  # type: ignore[misc,type-arg,unused-ignore]
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        busy(self.seconds if index == 1 else 0.1)
        return torch.ones(1)


@one_rank_waits
def workers_come_from_a_fork_server(seconds: float) -> None:
    """The loader's workers are forked by multiprocessing's server, which imports what they need first; one sample is
    long."""
    for _ in DataLoader(_Decoded(seconds), num_workers=2, multiprocessing_context="forkserver"):
        continue


@situation
def shards_evaluate_unequal_work() -> None:
    """FSDP2: every batch of the validation set gathers the parameters; rank 2 decodes its predictions for long."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: TID251
    from torch.distributed.fsdp import fully_shard  # noqa: TID251

    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3))).to(DEVICE)
    for layer in model:
        fully_shard(layer, mesh=init_device_mesh(DEVICE.type, (WORLD,)))
    fully_shard(model, mesh=init_device_mesh(DEVICE.type, (WORLD,)))
    for number in range(WARM_UP + 60):
        if number == WARM_UP:
            with torch.no_grad():
                for _ in range(6):
                    model(torch.randn(4, 64, device=DEVICE))
                    busy(QUIET_SECONDS / 6 if RANK == 2 else 0.05)
        time.sleep(STEP_SECONDS)
        model(torch.randn(4, 64, device=DEVICE)).sum().backward()
        beat.step()


@situation
def agent_is_stopped_and_continued() -> None:
    """Somebody stops torchrun, in whose process the store is, and lets it go on; ranks do not need it meanwhile."""
    train(WARM_UP)
    if RANK == 0:
        os.kill(os.getppid(), signal.SIGSTOP)
        go_on = threading.Timer(min(QUIET_SECONDS, 1e6), os.kill, (os.getppid(), signal.SIGCONT))
        go_on.daemon = True
        go_on.start()
    train(int(min(QUIET_SECONDS, 600) / STEP_SECONDS) + 100)


if __name__ == "__main__":
    main()
