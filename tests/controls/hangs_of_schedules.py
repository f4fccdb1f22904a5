"""Real hangs around what torch plans by itself: rings, micro-batches, stages, checkpoints, calls of workers.
Started as `hangs_of_schedules.py NAME`. What must be said is in the decorator; see common.py."""

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from multiprocessing.synchronize import Event as ProcessEvent
from pathlib import Path

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251
import torch.distributed.checkpoint as dcp  # noqa: TID251
import torch.distributed.rpc as rpc  # noqa: TID251
from torch.distributed.fsdp import fully_shard  # noqa: TID251
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B  # noqa: TID251

from tests.controls.common import (
    DEVICE,
    JOB_FOLDER,
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


def _turn(hops: int) -> None:
    keys = torch.randn(256, 256, device=DEVICE)
    for _ in range(hops):
        received = torch.empty_like(keys)
        ways = (dist.P2POp(dist.isend, keys, (RANK + 1) % WORLD), dist.P2POp(dist.irecv, received, (RANK - 1) % WORLD))
        for request in dist.batch_isend_irecv(list(ways)):
            request.wait()
        keys = received


@hang(
    causes=("p2p_unmatched",),
    culprits=(),
    by_nccl={"causes": ("collective_mismatch", "p2p_unmatched"), "culprits": (2,)},
)
def ring_of_one_is_a_hop_shorter() -> None:
    """Ring attention over sequences of different lengths: rank 2 makes a hop less and goes on; its two neighbours wait
    for it, and not for each other. gloo records no message: nobody can be named."""
    for number in range(WARM_UP + 60):
        time.sleep(STEP_SECONDS)
        _turn(2 if RANK == 2 and number == WARM_UP else WORLD - 1)
        dist.all_reduce(torch.ones(128, device=DEVICE))
        synchronize()
        beat.step()


@hang(culprits=(1,), causes=("collective_mismatch",))
def one_accumulates_fewer_micro_batches() -> None:
    """FSDP2: rank 1 has three micro-batches where the others have four, and reduces its gradients where they gather."""
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(3))).to(DEVICE)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for number in range(WARM_UP + 60):
        batches = 3 if RANK == 1 and number == WARM_UP else 4
        for batch in range(batches):
            model.set_requires_gradient_sync(batch == batches - 1)
            time.sleep(STEP_SECONDS / 4)
            model(torch.randn(2, 32, device=DEVICE)).square().mean().backward()  # here
        optimizer.step()
        optimizer.zero_grad()
        synchronize()
        beat.step()


class _Block(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """A block of a stage, whose gradient goes through a hook."""

    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.linear(x))
        if y.requires_grad:
            y.register_hook(self._note)
        return y

    def _note(self, gradient: torch.Tensor) -> torch.Tensor:
        if RANK == 2 and _Block.steps == WARM_UP:
            threading.Event().wait()  # here
        return gradient


@hang(culprits=(2,), where=("lock",))
def hook_of_an_interleaved_stage_stands() -> None:
    """torch's interleaved 1F1B with two stages a rank: a hook of rank 2's gradients waits for a thread that is gone."""
    stages = [PipelineStage(_Block().to(DEVICE), RANK + WORLD * k, 2 * WORLD, DEVICE) for k in range(2)]
    schedule = ScheduleInterleaved1F1B(stages, n_microbatches=WORLD, loss_fn=lambda out, to: (out - to).square().mean())
    for _Block.steps in range(WARM_UP + 60):
        time.sleep(STEP_SECONDS)
        inputs = (torch.randn(2 * WORLD, 16, device=DEVICE),) if RANK == 0 else ()
        targets = {"target": torch.zeros(2 * WORLD, 16, device=DEVICE)} if RANK == WORLD - 1 else {}
        schedule.step(*inputs, **targets)
        synchronize()
        beat.step()


@hang(culprits=(2,), causes=("collective_mismatch", "rank_raised"))
def one_finds_no_checkpoint() -> None:
    """Rank 2's node lacks the checkpoint's folder: it begins anew, the others are in torch.distributed.checkpoint's
    load."""
    weights = torch.nn.Linear(16, 16)
    train(WARM_UP)
    dcp.save(weights.state_dict(), checkpoint_id=JOB_FOLDER / "checkpoint")
    try:
        if RANK == 2:
            raise FileNotFoundError(JOB_FOLDER / "checkpoint-of-this-node")
        dcp.load(weights.state_dict(), checkpoint_id=JOB_FOLDER / "checkpoint")
    except FileNotFoundError as error:
        print(f"{error}: from the beginning")
    train(60)


def _leaf(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _asks_back(x: torch.Tensor) -> torch.Tensor:
    futures = [rpc.rpc_async("worker1", _leaf, (x,)) for _ in range(2)]
    return torch.stack([one.wait() for one in futures]).sum(0)


def _asks_on(x: torch.Tensor, back: bool) -> torch.Tensor:
    return rpc.rpc_sync("worker2", _asks_back if back else _leaf, (x,))


@hang(culprits=(0,))
def workers_call_each_other_with_all_threads() -> None:
    """RPC: rank 0 calls rank 1, which calls rank 2, which calls rank 1 back: all of its threads wait there already."""
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=2, rpc_timeout=3600)
    rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=WORLD, rpc_backend_options=options)
    train(WARM_UP)
    if RANK == 0:
        calls = [rpc.rpc_async("worker1", _asks_on, (torch.ones(4), True)) for _ in range(2)]
        torch.futures.wait_all(calls)  # here
    train(60)


def _dies_within(lock: "threading.Lock", taken: ProcessEvent) -> None:
    lock.acquire()
    taken.set()
    signal.pause()


@stands(where=("lock", "socket"))
def lock_of_a_manager_whose_holder_was_killed() -> None:
    """multiprocessing.Manager's lock: its holder was killed, and the manager keeps it."""
    context = multiprocessing.get_context("fork")
    manager = context.Manager()
    _KEPT.append(manager)
    lock, taken = manager.Lock(), context.Event()
    child = context.Process(target=_dies_within, args=(lock, taken), daemon=True)
    child.start()
    taken.wait()
    child.kill()
    child.join()
    lock.acquire()  # here


@stands(where=("checkpoint", "filesystem"))
def saves_into_a_pipe_that_nobody_reads() -> None:
    """`torch.save` to a path behind which a reader was to compress: its file is opened in C, with the GIL."""
    path = Path(tempfile.mkdtemp()) / "rng_state_2.pth"
    os.mkfifo(path)
    torch.save({"cpu": torch.get_rng_state()}, path)  # here


if __name__ == "__main__":
    main()
