"""Real hangs of which more than one rank, group or call is part. Started as `hangs_together.py NAME`. See common.py."""

import ctypes
import hashlib
import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

from tests.controls.common import (
    DEVICE,
    RANK,
    WARM_UP,
    WORLD,
    beat,
    before_rendezvous,
    compute,
    hang,
    main,
    step,
    train,
)

_STUCK = threading.Event()


@hang(culprits=(0,), where=("lock",))
def barrier_after_evaluation() -> None:
    """Rank 0 evaluates and gets stuck, the others stand in the barrier."""
    train(WARM_UP)
    if RANK == 0:
        _STUCK.wait()  # here
    dist.barrier()
    train(60)


@hang(culprits=(2,), where=("lock",))
def monitored_barrier() -> None:
    """gloo's monitored barrier, with a long time-out."""
    train(WARM_UP)
    if RANK == 2:
        _STUCK.wait()  # here
    dist.monitored_barrier(timeout=timedelta(minutes=20))


@hang(culprits=(1, 3), where=("lock",))
def two_ranks_stand() -> None:
    """Two ranks stand at the same lock of their own."""
    train(WARM_UP)
    if RANK in (1, 3):
        _STUCK.wait()  # here
    train(60)


@hang(causes=("collective_mismatch", "not_entered", "data_exhausted"), culprits=(0,))
def only_the_others_meet() -> None:
    """Rank 0 leaves a barrier out and goes on to the next step."""
    train(WARM_UP)
    if RANK != 0:
        dist.barrier()
    train(60)


@hang(causes=("collective_mismatch", "not_entered", "data_exhausted"), culprits=(3,))
def one_calls_more() -> None:
    """Rank 3 reduces its own metric, which nobody else does."""
    train(WARM_UP)
    if RANK == 3:
        dist.broadcast(torch.ones(1, device=DEVICE), src=0)
    train(60)


@hang(causes=("collective_mismatch", "rank_raised", "not_entered", "data_exhausted"), culprits=(1,))
def exception_is_swallowed() -> None:
    """Rank 1 swallows an exception before its all-reduce and evaluates with the next collective."""
    train(WARM_UP)
    for number in range(60):
        try:
            if RANK == 1 and number == 10:
                raise ValueError("loss is not finite")
            dist.all_reduce(torch.ones(8, device=DEVICE))
        except ValueError as error:
            print(f"skipped a batch: {error}")
            continue
        time.sleep(0.05)
        beat.step()
        dist.broadcast(torch.ones(4, device=DEVICE), src=0)


@hang(causes=("rank_exited",), culprits=(2,))
def one_leaves_with_zero() -> None:
    """Rank 2 believes that training is over."""
    train(WARM_UP)
    if RANK == 2:
        os._exit(0)
    train(600)


@hang(causes=("rank_raised", "rank_exited", "not_entered"), culprits=(2,))
def one_raises_and_its_threads_stay() -> None:
    """Rank 2 raises; a thread that is no daemon keeps its process alive."""
    train(WARM_UP)
    if RANK == 2:
        threading.Thread(target=_STUCK.wait).start()
        raise RuntimeError("the tokenizer is not thread safe")
    train(60)


@hang(causes=("group_order", "not_entered"), culprits=(0, 1))
def two_groups_in_reversed_order() -> None:
    """Ranks 0 and 1 use two groups in reversed order."""
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    train(WARM_UP)
    if RANK < 2:
        for group in (first, second) if RANK else (second, first):
            dist.all_reduce(torch.ones(4, device=DEVICE), group=group)
    train(60)


@hang(causes=("group_order", "not_entered"), culprits=(0, 1, 2))
def a_ring_of_groups() -> None:
    """Three groups of two: each rank enters the one that its neighbour enters last."""
    groups = [dist.new_group(sorted([number, (number + 1) % 3])) for number in range(3)]
    train(WARM_UP)
    if RANK < 3:
        for number in (RANK, (RANK - 1) % 3):
            dist.all_reduce(torch.ones(4, device=DEVICE), group=groups[number])
    train(60)


@hang(causes=("not_entered", "p2p_unmatched"), culprits=(3,), where=("lock",))
def pipeline_s_last_stage() -> None:
    """A pipeline whose last stage gets stuck: the stages before it stand one after the other."""
    activation = torch.ones(256, device=DEVICE)
    for number in range(3 * WARM_UP + 80):
        if RANK > 0:
            dist.recv(activation, RANK - 1)
        compute(0.02)  # without a hook it is by its work that a job is seen to train
        if RANK == 3 and number == 3 * WARM_UP:
            _STUCK.wait()  # here
        if RANK < WORLD - 1:
            dist.send(activation, RANK + 1)
        beat.step()
        if number % 10 == 9:
            dist.all_reduce(torch.ones(1, device=DEVICE))


@hang(causes=("p2p_unmatched", "not_entered"), culprits=(0, 1))
def both_receive() -> None:
    """Two neighbours receive from each other before either sends."""
    train(WARM_UP)
    if RANK < 2:
        value = torch.ones(4, device=DEVICE)
        dist.recv(value, 1 - RANK)
        dist.send(value, 1 - RANK)
    train(60)


@hang(causes=("collective_mismatch", "not_entered", "comm_stuck"), culprits=(1,))
def another_root() -> None:
    """Rank 1 broadcasts from another root than its peers."""
    train(WARM_UP)
    dist.broadcast(torch.ones(1 << 16, device=DEVICE), src=2 if RANK == 1 else 0)
    train(60)


@hang(culprits=(2,), where=("lock", "init"))
def before_the_model_is_wrapped() -> None:
    """Rank 2 gets stuck in its data set, the others stand in DDP's constructor."""
    train(WARM_UP)
    if RANK == 2:
        _STUCK.wait()  # here
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32).to(DEVICE))
    train(60)


@hang(culprits=(1,), where=("lock",))
def in_the_middle_of_a_backward() -> None:
    """Rank 1 stands in a hook of its own while the others reduce their gradients."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32).to(DEVICE))
    for number in range(WARM_UP + 120):
        loss = model(torch.randn(4, 32, device=DEVICE)).sum()
        if RANK == 1 and number == WARM_UP:
            loss.register_hook(_stand)
        time.sleep(0.05)
        loss.backward()
        beat.step()


def _stand(_: torch.Tensor) -> None:
    _STUCK.wait()


@hang(culprits=(2,), where=("lock", "user_code", "checkpoint"))
def collective_of_a_side_thread() -> None:
    """All wait for a gather in a thread of their own; the thread of rank 2 gets stuck before it."""
    group = dist.new_group(backend="gloo")
    train(WARM_UP)

    def gather() -> None:
        if RANK == 2:
            _STUCK.wait()  # here
        dist.all_reduce(torch.ones(4), group=group)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(gather).result()
    train(60)


@hang(culprits=(3,), where=("lock", "user_code", "checkpoint"))
def asynchronous_checkpoint() -> None:
    """torch's asynchronous checkpoint: one rank's storage never takes its data, the next save waits for it."""
    import torch.distributed.checkpoint as checkpoint  # noqa: TID251

    class Storage(checkpoint.FileSystemWriter):  # type: ignore[misc,unused-ignore]
        def write_data(self, plan, planner):  # type: ignore[no-untyped-def]
            if RANK == 3:
                _STUCK.wait()  # here
            return super().write_data(plan, planner)

    folder = Path(tempfile.gettempdir()) / f"stallwatch-hang-{os.environ['MASTER_PORT']}"
    train(WARM_UP)
    state = {"model": {"weight": torch.ones(64)}}
    group = dist.new_group(backend="gloo")
    saved = checkpoint.async_save(state, storage_writer=Storage(folder), process_group=group)
    train(20)
    saved.result()
    train(60)


@hang(culprits=(0,))
def call_of_another_worker() -> None:
    """RPC: rank 0 calls a function of rank 2 that never returns; the others stand in the barrier."""
    from torch.distributed import rpc  # noqa: TID251

    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{int(os.environ['MASTER_PORT']) + 1}")
    rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=WORLD, rpc_backend_options=options)
    train(WARM_UP)
    if RANK == 0:
        rpc.rpc_sync("worker2", _never_returns, timeout=0)
    train(60)


def _never_returns() -> None:
    _STUCK.wait()


@hang(culprits=(3,), causes=("init_missing", "not_entered"))
def one_never_joins() -> None:
    """Rank 3 gets stuck before `init_process_group`, whose time-out is a minute."""
    train(60)


@before_rendezvous("one_never_joins")
def _never_joins() -> None:
    if RANK == 3:
        _STUCK.wait()
    dist.init_process_group("gloo", timeout=timedelta(seconds=80))


@hang(culprits=(1,), where=("lock", "teardown"))
def end_of_training() -> None:
    """All are done; rank 1 gets stuck before the last barrier."""
    train(100)
    if RANK == 1:
        _STUCK.wait()  # here
    dist.barrier()
    dist.destroy_process_group()


@hang(culprits=(2,), where=("lock",))
def nobody_counts_steps() -> None:
    """`attach()` and no `step()`: the collectives alone tell its rhythm."""
    for _ in range(200):
        dist.all_reduce(torch.ones(8, device=DEVICE))
        time.sleep(0.05)
    if RANK == 2:
        _STUCK.wait()  # here
    dist.all_reduce(torch.ones(8, device=DEVICE))


@hang(culprits=(2,), where=("lock",))
def others_spin_as_under_nccl() -> None:
    """Who waits spins in a call into C, without the GIL, beside a watchdog that wakes ten times a second and a thread
    named as CUDA's are; rank 2 is stuck. For `--no-hook --busy-gpu`."""
    _start_threads_of_cuda()
    train(WARM_UP)
    if RANK == 2:
        _STUCK.wait()  # here
    while True:
        hashlib.pbkdf2_hmac("sha256", b"all", b"reduce", 100_000_000)


def _start_threads_of_cuda() -> None:
    def watch() -> None:
        ctypes.CDLL(None).prctl(15, b"cuda-EvtHandlr", 0, 0, 0)  # PR_SET_NAME
        while True:
            time.sleep(0.1)

    threading.Thread(target=watch, daemon=True).start()


@hang(culprits=(0,), where=("lock",))
def in_long_steps() -> None:
    """Steps of two seconds."""
    train(8, 2.0)
    if RANK == 0:
        _STUCK.wait()  # here
    step()


@hang(culprits=(2,), where=("lock",))
def all_to_a_root() -> None:
    """A gather whose root gets stuck: with gloo the others have sent and stand in the next call."""
    train(WARM_UP)
    if RANK == 2:
        _STUCK.wait()  # here
    mine = torch.ones(4, device=DEVICE)
    dist.gather(mine, [torch.ones_like(mine) for _ in range(WORLD)] if RANK == 2 else None, dst=2)
    train(60)


if __name__ == "__main__":
    main()
