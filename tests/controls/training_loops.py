"""What loops of training do with their libraries for a while: pipelines, shards, writers, engines, pools. Started as
`training_loops.py NAME`. See common.py."""

import concurrent.futures
import multiprocessing
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
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
    beat,
    busy,
    compute,
    main,
    one_rank_waits,
    read_late,
    situation,
    train,
    train_in_a_thread,
    write_slowly,
)

_FORK = multiprocessing.get_context("fork")


@situation
def one_long_micro_batch() -> None:
    """A pipeline as Megatron's, by batches of sends and receives: the last stage computes for long, once."""
    activation, gradient = torch.ones(256, device=DEVICE), torch.ones(256, device=DEVICE)
    for number in range(WARM_UP + 80):
        if RANK:
            _exchange(dist.P2POp(dist.irecv, activation, RANK - 1))
        time.sleep(0.01)
        if RANK == WORLD - 1 and number == WARM_UP:
            compute(QUIET_SECONDS)
        if RANK < WORLD - 1:
            _exchange(dist.P2POp(dist.isend, activation, RANK + 1), dist.P2POp(dist.irecv, gradient, RANK + 1))
        if RANK:
            _exchange(dist.P2POp(dist.isend, gradient, RANK - 1))
        gradient.sum().item()
        beat.step()


def _exchange(*operations: dist.P2POp) -> None:
    for work in dist.batch_isend_irecv(list(operations)):
        work.wait()


@situation
def saves_a_full_state_of_shards() -> None:
    """FSDP: parameters are gathered, and rank 0 alone writes them; the others stand in the barrier that follows."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: TID251
    from torch.distributed.fsdp import fully_shard  # noqa: TID251

    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).to(DEVICE)
    fully_shard(model, mesh=init_device_mesh(DEVICE.type, (WORLD,)))
    for _ in range(WARM_UP):
        time.sleep(STEP_SECONDS)
        model(torch.randn(4, 64, device=DEVICE)).sum().backward()
        beat.step()
    for parameter in model.parameters():
        parameter.full_tensor()
    if RANK == 0:
        write_slowly(QUIET_SECONDS)
    dist.barrier()
    train(60)


@situation
def saves_with_torch_s_checkpoint() -> None:
    """torch.distributed.checkpoint: the storage of one rank answers late, the others wait for its result."""
    import torch.distributed.checkpoint as checkpoint  # noqa: TID251

    class Storage(checkpoint.FileSystemWriter):  # type: ignore[misc,unused-ignore]
        def write_data(self, plan, planner):  # type: ignore[no-untyped-def]
            if RANK == 2:
                read_late(QUIET_SECONDS)
            return super().write_data(plan, planner)

    folder = Path(tempfile.gettempdir()) / f"stallwatch-shards-{os.environ['MASTER_PORT']}"
    train(WARM_UP)
    group = dist.new_group(backend="gloo")
    checkpoint.save({"weight": torch.ones(64)}, storage_writer=Storage(folder), process_group=group)
    train(60)


@one_rank_waits
def next_save_joins_its_writing_process(seconds: float) -> None:
    """A checkpoint is written by a forked process; the next save waits for its end."""
    writer = _FORK.Process(target=write_slowly, args=(seconds,), daemon=True)
    writer.start()
    writer.join()


@situation
def averages_weights_on_rank_0() -> None:
    """Rank 0 keeps a moving average of the weights, in torch's own code, now and then, once over all of them."""
    weights = [torch.randn(1 << 16) for _ in range(16)]
    average = [weight.clone() for weight in weights]
    for seconds in (0.0, 2.0, QUIET_SECONDS, 2.0):
        until = time.monotonic() + seconds
        while RANK == 0 and time.monotonic() < until:
            torch._foreach_lerp_(average, weights, 0.01)
        train(WARM_UP)


@one_rank_waits
def kept_workers_shuffle(seconds: float) -> None:
    """Workers of the data loader are kept from epoch to epoch; before the second they shuffle the whole data set."""
    loader = torch.utils.data.DataLoader(
        _Epochs(seconds), batch_size=None, num_workers=2, persistent_workers=True, prefetch_factor=2,
        pin_memory=DEVICE.type == "cuda",
    )  # fmt: skip
    for _ in range(2):
        for _ in loader:
            pass


class _Epochs(torch.utils.data.IterableDataset):  # type: ignore[misc,type-arg,unused-ignore]
    def __init__(self, seconds: float) -> None:
        self.seconds, self.epoch = seconds, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.epoch += 1
        if self.epoch == 2:
            busy(self.seconds)
        yield from torch.ones(8, 4)


@one_rank_waits
def queue_of_a_manager(seconds: float) -> None:
    """Batches come by the queue of a multiprocessing Manager, from a process that needs long for each."""
    with _FORK.Manager() as manager:
        batches = manager.Queue(2)
        producer = _FORK.Process(target=_produce, args=(batches, seconds), daemon=True)
        producer.start()
        while batches.get() is not None:
            pass
        producer.join()


def _produce(batches: "queue.Queue[bytes | None]", seconds: float) -> None:
    for _ in range(2):
        busy(seconds / 2)
        batches.put(b"batch")
    batches.put(None)


@one_rank_waits
def engine_answers_by_a_pipe(seconds: float) -> None:
    """An engine of inference in a process of its own generates for the evaluation; the rank waits for its answer."""
    mine, its = _FORK.Pipe()
    engine = _FORK.Process(target=_generate, args=(its, seconds), daemon=True)
    engine.start()
    mine.send(["a prompt"] * 8)
    mine.recv()
    engine.join()


def _generate(requests: Connection, seconds: float) -> None:
    prompts = requests.recv()
    if seconds > 1000:
        threading.Event().wait()
    compute(seconds)
    requests.send([prompt + " and its answer" for prompt in prompts])


@one_rank_waits
def native_threads_work(seconds: float) -> None:
    """Threads that Python does not know compute (rayon's, torch's own pool), the training thread waits for them."""
    values, until = torch.randn(256, 256), time.monotonic() + seconds
    work = torch.jit.script(_multiply)
    while time.monotonic() < until:
        torch.jit.wait(torch.jit.fork(work, values, 3000))


def _multiply(values: torch.Tensor, times: int) -> torch.Tensor:
    for _ in range(times):
        values = torch.nn.functional.normalize(values @ values)
    return values


@situation
def unequal_predictions_are_gathered() -> None:
    """Ranks have unequal parts of the validation set; who is done waits where objects are gathered."""
    train(WARM_UP)
    compute(QUIET_SECONDS if RANK == 3 else QUIET_SECONDS / 10 if QUIET_SECONDS < 1000 else 2)
    dist.all_gather_object([None] * WORLD, {"rank": RANK, "accuracy": 0.5})
    train(60)


@situation
def waits_for_a_key_of_rank_0() -> None:
    """Rank 0 converts the data in another program; the others wait in the store for its key."""
    store = dist.distributed_c10d._get_default_store()
    train(WARM_UP)
    if RANK == 0:
        subprocess.run(["sh", "-c", f"sleep {QUIET_SECONDS}"], check=True)
        store.set("converted", "1")
    store.wait(["converted"], timedelta(hours=2))
    train(60)


@situation
def limited_by_cpulimit() -> None:
    """`cpulimit` stops and continues one rank all the time, so that others on its machine get on."""
    train(WARM_UP)
    limiter = _FORK.Process(target=_limit, args=(os.getpid(),), daemon=True)
    if RANK == 1:
        limiter.start()
    train(int(min(QUIET_SECONDS, 30) / (2 * STEP_SECONDS)))
    if RANK == 1:
        limiter.join()
    train(60)


def _limit(pid: int) -> None:
    until = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < until:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.8)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.3)


@situation
def trains_in_a_thread() -> None:
    """The loop runs in a thread, as Ray's workers have it, and the main thread waits for its results; rank 0
    evaluates for long."""
    train_in_a_thread(lambda: compute(QUIET_SECONDS) if RANK == 0 else None)


@one_rank_waits
def tokenises_in_an_executor(seconds: float) -> None:
    """concurrent.futures' pool of processes: the results are taken in their order."""
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=_FORK) as pool:
        list(pool.map(busy, [seconds / 4] * 8))


@situation
def averages_in_a_thread() -> None:
    """Local SGD over slow links: a thread averages while training goes on, the loop waits for it at its next turn."""
    group = dist.new_group(backend="gloo")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        outer = pool.submit(_average, group, 0.0)
        for turn in range(3):
            for _ in range(WARM_UP):
                time.sleep(STEP_SECONDS)
                beat.step()
            outer.result()
            outer = pool.submit(_average, group, QUIET_SECONDS if RANK == 2 and turn == 1 else 0.0)
        outer.result()


def _average(group: dist.ProcessGroup, seconds: float) -> None:
    time.sleep(seconds)
    dist.all_reduce(torch.ones(1024), group=group)


if __name__ == "__main__":
    main()
