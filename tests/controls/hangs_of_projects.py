"""Hangs of kinds that projects report: who begins anew alone, calls of frameworks that only some ranks make, and what
ends before another begins. Started as `hangs_of_projects.py NAME`. See common.py."""

import datetime
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251
import torch.distributed.checkpoint as checkpoint  # noqa: TID251

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
    step,
    stop,
    synchronize,
    train,
)
from tests.controls.slow_mount import mounted

_STUCK = threading.Event()


class _SampleError(Exception):
    def __init__(self, sample: int, reason: str) -> None:
        super().__init__(f"{sample}: {reason}")


def _tokenise(sample: int) -> int:
    if sample == 3:
        raise _SampleError(sample, "no text")
    return sample


@stands(where=("lock",))
def exception_of_a_worker_cannot_be_unpickled() -> None:
    """It takes two arguments and hands one to `Exception`: the pool's thread that reads results ends of it, and `map`
    waits for ever."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(_tokenise, range(8))  # here


@stands(where=("user_code", "filesystem", "unknown"))
def program_is_started_from_a_mount_that_is_gone() -> None:
    """vfork keeps the rank in the kernel until the program is found, on a mount whose server was stopped (FUSE)."""
    with mounted(FOR_EVER) as tool:
        stop(psutil.Process().children()[-1].pid)
        time.sleep(2)  # what the kernel knew of the file is old by then
        subprocess.run([str(tool)], check=False)  # here


@hang(culprits=(2,), where=("init",), by_nccl={"causes": ("rank_exited",), "where": ()})
def one_is_started_again_alone() -> None:
    """A supervisor starts rank 2 again; the others are in the old world, and it waits for them in the rendezvous. Its
    old connections stay open, as they do where a host is gone. CUDA's do not, and NCCL ends the others."""
    train(WARM_UP)
    if RANK == 2:
        for handle in map(int, os.listdir("/proc/self/fd")):
            try:
                os.set_inheritable(handle, True)
            except OSError:
                continue
        os.execv(sys.executable, [sys.executable, __file__, "one_is_started_again_alone"])
    train(60)


@hang(causes=("collective_mismatch",), culprits=(1,))
def one_sees_its_signal_a_step_before_the_others() -> None:
    """SIGTERM to all ranks sets a flag, at which they save together; rank 1 sees it a step before the others."""
    seen = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: seen.set())
    pids = [torch.zeros(1, dtype=torch.int64, device=DEVICE) for _ in range(WORLD)]
    dist.all_gather(pids, torch.tensor([os.getpid()], device=DEVICE))
    train(WARM_UP)
    if RANK == 1:
        for pid in pids:
            os.kill(int(pid.item()), signal.SIGTERM)
    for number in range(60):
        if seen.is_set() and (RANK == 1 or number):
            dist.barrier()
            break
        step()


@hang(causes=("collective_mismatch",), culprits=(0,))
def what_the_first_does_alone_asks_all() -> None:
    """`with main_process_first(): build()`: the others wait in its barrier, and what rank 0 builds reduces a size over
    all ranks."""
    train(WARM_UP)
    if RANK:
        dist.barrier()
    dist.all_reduce(torch.ones(1, device=DEVICE))
    synchronize()
    if RANK == 0:
        dist.barrier()
    train(60)


@hang(
    causes=("data_exhausted", "collective_mismatch"),
    culprits=(2,),
    by_nccl={"causes": ("rank_exited",)},
)
def one_leaves_its_join_by_an_exception() -> None:
    """DDP's `join()` for uneven inputs: rank 2 leaves it by an exception that is passed over, and tells nobody. NCCL
    pairs its barrier with their reductions of other sizes, and closes the connection."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).to(DEVICE))
    train(WARM_UP)
    try:
        with model.join():
            for number in range(60):
                if RANK == 2 and number == 10:
                    raise ValueError("a bad sample")
                model(torch.ones(2, 8, device=DEVICE)).sum().backward()
                time.sleep(STEP_SECONDS)
                beat.step()
    except ValueError:
        pass
    dist.barrier()


@hang(causes=("collective_mismatch",), culprits=(2,), by_nccl={"causes": ("rank_exited",)})
def one_believes_that_its_metric_is_the_best() -> None:
    """Each rank looks at its own loss: rank 2's is the best, and it alone saves, in torch's distributed checkpoint.
    NCCL gives it a gradient for the size of what it gathers, of which it dies."""
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3))).to(DEVICE)
    model = torch.nn.parallel.DistributedDataParallel(model)
    for number in range(WARM_UP + 60):
        time.sleep(STEP_SECONDS)
        model(torch.ones(2, 16, device=DEVICE)).sum().backward()
        synchronize()
        beat.step()
        if RANK == 2 and number == WARM_UP:
            checkpoint.save({"model": model.state_dict()}, checkpoint_id=str(JOB_FOLDER / "best"))


@hang(culprits=(3,), where=("lock",))
def one_goes_on_and_another_stands() -> None:
    """Rank 1 pauses for as long as anybody would take for a hang, and goes on; soon after rank 3 stands for good."""
    train(WARM_UP)
    if RANK == 1:
        time.sleep(20)
    train(20)
    if RANK == 3:
        _STUCK.wait()  # here
    train(60)


@hang(culprits=(1,), where=("lock",))
def stage_of_one_of_two_pipelines_stands() -> None:
    """Two pipelines of two stages, each of which averages with its peer of the other one: the last stage of the first
    stands between its micro-batches."""
    replica, stage = divmod(RANK, 2)
    pairs = [dist.new_group([number, number + 2]) for number in range(2)]
    batch = torch.ones(256, device=DEVICE)
    for number in range(WARM_UP + 60):
        for part in range(4):
            if stage:
                dist.recv(batch, 2 * replica)
            if RANK == 1 and (number, part) == (WARM_UP, 2):
                _STUCK.wait()  # here
            time.sleep(STEP_SECONDS / 8)
            if not stage:
                dist.send(batch, 2 * replica + 1)
        dist.all_reduce(torch.ones(64, device=DEVICE), group=pairs[stage])
        synchronize()
        beat.step()


@hang(culprits=(0,), where=("store",))
def store_is_opened_for_workers_that_never_come() -> None:
    """Rank 0 opens a store for two servers of inference, which were never started."""
    train(WARM_UP)
    if RANK == 0:
        dist.TCPStore("127.0.0.1", 0, 3, True, timeout=datetime.timedelta(hours=10), wait_for_workers=True)  # here
    train(60)


@hang(causes=("rank_exited", "data_exhausted"), culprits=(0,))
def rank_0_leaves_and_its_store_with_it() -> None:
    """Rank 0 has no more data and exits with 0; the others make a group, for which they ask the store that it had."""
    train(WARM_UP)
    if RANK == 0:
        os._exit(0)
    time.sleep(1)
    dist.new_group(list(range(1, WORLD)), use_local_synchronization=True)
    train(60)


if __name__ == "__main__":
    main()
