"""Real hangs in loops as people write them: FSDP2, DDP with buffers, L-BFGS, experts, objects, processes that feed each
other. Started as `hangs_as_written.py NAME`. What must be said is in the decorator; see common.py. Each is of a public
report or of a kind that several tell of; the sources are named where there is one."""

import itertools
import multiprocessing
import multiprocessing.synchronize
import os
import queue
import signal
import subprocess
import threading
import time

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251
from torch.distributed.device_mesh import init_device_mesh  # noqa: TID251
from torch.distributed.fsdp import fully_shard  # noqa: TID251

from tests.controls.common import (
    DEVICE,
    RANK,
    STEP_SECONDS,
    WARM_UP,
    WORLD,
    beat,
    hang,
    main,
    stands,
    synchronize,
    train,
)

_KEPT: list[object] = []


def _sharded(layers: int = 3) -> torch.nn.Module:
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(layers))).to(DEVICE)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model


def _learn(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    time.sleep(STEP_SECONDS)
    model(torch.randn(4, 32, device=DEVICE)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    synchronize()
    beat.step()


@hang(culprits=(1,), causes=("collective_mismatch",))
def out_of_memory_asks_all() -> None:
    """Rank 1 catches its out-of-memory error and asks by an all_reduce whether others had one; these go on in FSDP2's
    collectives (mosaicml/composer#3510)."""
    model = _sharded(4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for number in range(WARM_UP + 60):
        out_of_memory = False
        try:
            if RANK == 1 and number == WARM_UP:
                model[0](torch.randn(4, 32, device=DEVICE))
                raise torch.OutOfMemoryError("tried to allocate 2.00 GiB")
            model(torch.randn(4, 32, device=DEVICE)).square().mean().backward()
        except torch.OutOfMemoryError:
            out_of_memory = True
        found = torch.tensor([float(out_of_memory)], device=DEVICE)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)  # here
        synchronize()
        optimizer.zero_grad()
        time.sleep(STEP_SECONDS)
        beat.step()


@hang(culprits=(3,), causes=("data_exhausted", "collective_mismatch"))
def packed_validation_has_a_batch_less() -> None:
    """Samples are packed into batches: rank 3 has fewer of them, and goes on to the metric's reduction
    (PrimeIntellect-ai/prime-rl#2515)."""
    model = _sharded()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(WARM_UP):
        _learn(model, optimizer)
    total = torch.zeros(1, device=DEVICE)
    with torch.no_grad():
        for _ in range(38 if RANK == 3 else 40):
            total += model(torch.randn(2, 32, device=DEVICE)).square().mean()
            time.sleep(STEP_SECONDS)
    dist.all_reduce(total)  # here
    for _ in range(60):
        _learn(model, optimizer)


@hang(culprits=(2,), causes=("collective_mismatch",))
def looks_at_a_bad_batch_once_more() -> None:
    """FSDP2: rank 2's loss is odd, and it runs the batch through the model once more, which gathers the parameters."""
    model = _sharded(4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(WARM_UP):
        _learn(model, optimizer)
    loss = model(torch.randn(4, 32, device=DEVICE)).square().mean()
    if RANK == 2:
        with torch.no_grad():
            model(torch.randn(4, 32, device=DEVICE))  # here
    loss.backward()
    for _ in range(60):
        _learn(model, optimizer)


@hang(culprits=(0,), causes=("collective_mismatch",))
def rank_0_validates_a_wrapped_model_with_buffers() -> None:
    """DDP broadcasts its buffers before each forward pass, in validation as well: rank 0 alone validates, the others
    are in the barrier that follows (pytorch/pytorch#54059)."""
    net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))
    model = torch.nn.parallel.DistributedDataParallel(net.to(DEVICE))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(WARM_UP):
        time.sleep(STEP_SECONDS)
        model(torch.randn(8, 16, device=DEVICE)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        synchronize()
        beat.step()
    if RANK == 0:
        model.eval()
        with torch.no_grad():
            model(torch.randn(8, 16, device=DEVICE))  # here
    dist.barrier()
    train(60)


@hang(culprits=(1,), causes=("collective_mismatch",))
def line_search_ends_earlier() -> None:
    """L-BFGS: the closure averages the gradient, and rank 1's search needs fewer evaluations."""
    weights = torch.nn.Parameter(torch.randn(64, device=DEVICE))
    optimizer = torch.optim.LBFGS([weights], max_iter=6, tolerance_change=0, tolerance_grad=0)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((weights - 3) ** 2).sum() + 0.1 * weights.pow(4).sum()
        loss.backward()
        dist.all_reduce(weights.grad)
        time.sleep(STEP_SECONDS / 2)
        return loss

    for number in range(WARM_UP):
        if RANK == 1 and number == WARM_UP // 2:
            optimizer.param_groups[0]["max_iter"] = 4
        loss = optimizer.step(closure)
        dist.broadcast(torch.tensor([float(loss)], device=DEVICE), src=0)  # here
        with torch.no_grad():
            weights += 0.5 * torch.randn(64, device=DEVICE)
        beat.step()


@hang(culprits=(3,), causes=("collective_mismatch",))
def empty_shard_skips_its_exchange() -> None:
    """Rank 3's shard of a small matrix is empty, and the optimizer returns early (microsoft/dion#74)."""
    for number in range(WARM_UP + 60):
        time.sleep(STEP_SECONDS)
        dist.all_reduce(torch.ones(512, device=DEVICE))  # here
        rows = 0 if RANK == 3 and number >= WARM_UP else 2 * WORLD
        if rows:
            tokens = torch.ones(rows, 16, device=DEVICE)
            dist.all_to_all_single(torch.empty_like(tokens), tokens)
        synchronize()
        beat.step()


@hang(culprits=(3,), causes=("collective_mismatch", "not_entered", "init_missing"))
def one_has_a_mesh_of_another_shape() -> None:
    """Rank 3's node has an older configuration: tensor parallelism over four, the others over two."""
    train(WARM_UP)
    size = WORLD if RANK == 3 else 2
    mesh = init_device_mesh(DEVICE.type, (WORLD // size, size), mesh_dim_names=("dp", "tp"))
    for _ in range(60):
        dist.all_reduce(torch.ones(64, device=DEVICE), group=mesh["tp"].get_group())
        dist.all_reduce(torch.ones(64, device=DEVICE), group=mesh["dp"].get_group())
        synchronize()
        beat.step()


@hang(culprits=(), causes=("collective_mismatch",), by_nccl={"culprits": (2,)})
def cannot_read_what_it_gathered() -> None:
    """A node has an older package: rank 2 cannot unpickle the predictions, logs that, and goes on without this
    evaluation's reductions. gloo aborts whoever receives another size, an innocent one."""
    train(WARM_UP)
    try:
        everybody: list[object] = [None] * WORLD
        dist.all_gather_object(everybody, {"text": "abc"})
        if RANK == 2:
            raise AttributeError("Prediction has no field `score`")
        dist.all_reduce(torch.ones(1, device=DEVICE))
        dist.barrier()
    except AttributeError:
        pass
    train(60)


@hang(culprits=(2,), where=("lock", "dataloader", "user_code"))
def thread_that_prefetches_has_raised() -> None:
    """A prefetcher of one's own: its thread died of a file that is no UTF-8, and said so in the log; the loop waits at
    its queue."""
    batches: queue.Queue[int] = queue.Queue(4)

    def prefetch() -> None:
        for number in itertools.count():
            if RANK == 2 and number == WARM_UP:
                raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
            batches.put(number)

    threading.Thread(target=prefetch, name="prefetcher", daemon=True).start()
    for _ in range(WARM_UP + 60):
        batches.get()  # here
        train(1)


def _dies_with_it(lock: "multiprocessing.synchronize.Lock", ready: "multiprocessing.synchronize.Event") -> None:
    lock.acquire()
    ready.set()
    os.kill(os.getpid(), signal.SIGKILL)


@stands(where=("lock",))
def lock_of_processes_whose_holder_was_killed() -> None:
    """A logger of its own process was killed within the lock that it shares with the rank."""
    context = multiprocessing.get_context("fork")
    lock, ready = context.Lock(), context.Event()
    context.Process(target=_dies_with_it, args=(lock, ready), daemon=True).start()
    ready.wait()
    lock.acquire()  # here


@stands(where=("lock",))
def barrier_of_processes_lacks_one() -> None:
    """`multiprocessing.Barrier`, without a time-out: of the processes that were to meet there one has ended. (Its own
    line reads `acquire(True, timeout)`.)"""
    multiprocessing.get_context("fork").Barrier(2).wait()  # here


@stands(where=("filesystem", "socket", "user_code", "lock"))
def program_waits_for_more_input() -> None:
    """A converter reads until the end of its input, which the rank does not close before it reads the answer."""
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    _KEPT.append(child)
    child.stdin.write(b"one row"), child.stdout.read()  # type: ignore[union-attr]  # here


if __name__ == "__main__":
    main()
