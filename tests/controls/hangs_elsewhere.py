"""Real hangs at places that no recorder and no single stack shows: groups that are fresh, keys of the store, groups
that not all make, roots that differ. Started as `hangs_elsewhere.py NAME`. What must be said is in the decorator; see
common.py."""

import logging
import os
import queue
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251
from torch.distributed.device_mesh import init_device_mesh  # noqa: TID251

from tests.controls.common import (
    BACKEND,
    DEVICE,
    RANK,
    STEP_SECONDS,
    WARM_UP,
    WORLD,
    beat,
    hang,
    main,
    stands,
    step,
    synchronize,
    train,
)


@hang(causes=("group_order",), culprits=(2,))
def fresh_groups_in_reversed_order() -> None:
    """Two groups at their first use, which rank 2 calls the other way round."""
    groups = [dist.new_group(), dist.new_group()]
    train(WARM_UP)
    for group in reversed(groups) if RANK == 2 else groups:
        dist.all_reduce(torch.ones(64, device=DEVICE), group=group)
    train(60)


@hang(causes=("group_order",), culprits=())
def fresh_groups_half_and_half() -> None:
    """The same by half of the ranks: nobody is in the minority."""
    groups = [dist.new_group(), dist.new_group()]
    train(WARM_UP)
    for group in reversed(groups) if RANK > 1 else groups:
        dist.all_reduce(torch.ones(64, device=DEVICE), group=group)
    train(60)


@hang(
    causes=("rank_exited",),
    culprits=(),
    by_nccl={"causes": ("not_entered", "init_missing", "rank_raised", "rank_exited"), "culprits": (2,)},
)
def one_makes_its_group_anew() -> None:
    """Rank 2 caught an error of its own, and begins again: it destroys its group and makes it anew, alone. With gloo
    the others die of that, and who it was is said where nobody is named: it lived longest."""
    train(WARM_UP)
    if RANK == 2:
        dist.destroy_process_group()
        dist.init_process_group(BACKEND, timeout=timedelta(minutes=20))
    train(60)


@hang(causes=("not_entered", "undecided"), culprits=(1, 2, 3), where=("store",))
def key_is_never_set() -> None:
    """Rank 0 forgets to publish a key, for which the others wait; it goes on into the next step. Who should have set
    it no evidence tells: it is named who waits, for which key."""
    train(WARM_UP)
    if RANK:
        dist.distributed_c10d._get_default_store().get("epoch-3/manifest")  # here
    train(60)


@hang(causes=("not_entered",), culprits=(0,), where=("store",))
def waits_for_a_key_of_its_own() -> None:
    """Rank 0 waits in the store for a key that only it would set; the others train on."""
    train(WARM_UP)
    if RANK == 0:
        dist.distributed_c10d._get_default_store().wait(["ready"])  # here
    train(60)


@hang(causes=("not_entered", "init_missing", "collective_mismatch"), culprits=(1,))
def one_does_not_make_a_group_of_three() -> None:
    """A group of ranks 0 to 2 that its members alone make, and rank 1 does not."""
    train(WARM_UP)
    if RANK in (0, 2):
        dist.new_group([0, 1, 2], use_local_synchronization=True)
    train(60)


@hang(causes=("collective_mismatch",), culprits=(), by_nccl={"culprits": (2,)})
def gathers_to_another_root() -> None:
    """Rank 2 gathers at itself, the others at rank 0: gloo gives each what it sent, and the roots lack a part."""
    train(WARM_UP)
    root = 2 if RANK == 2 else 0
    mine = torch.ones(64, device=DEVICE)
    dist.gather(mine, [torch.ones_like(mine) for _ in range(WORLD)] if root == RANK else None, dst=root)
    train(60)


@hang(causes=("collective_mismatch", "not_entered"), culprits=(2,))
def one_takes_the_other_barrier() -> None:
    """Rank 2 is in a barrier, the others in a monitored one: neither lets the other go."""
    train(WARM_UP)
    if RANK == 2:
        dist.barrier()
    else:
        dist.monitored_barrier(timeout=timedelta(minutes=20))
    train(60)


@hang(causes=("not_entered",), culprits=(1, 2), where=("lock", "filesystem"))
def two_stand_for_reasons_of_their_own() -> None:
    """In a mesh of two pairs two stand at once: one at a lock, one at a file."""
    mesh = init_device_mesh(DEVICE.type, (WORLD // 2, 2), mesh_dim_names=("dp", "tp"))
    for number in range(WARM_UP * 2):
        dist.all_reduce(torch.ones(64, device=DEVICE), group=mesh["tp"].get_group())
        if number == WARM_UP and RANK == 1:
            threading.Event().wait()
        if number == WARM_UP and RANK == 2:
            fifo = Path(tempfile.mkdtemp()) / "shard"
            os.mkfifo(fifo)
            fifo.read_bytes()
        dist.all_reduce(torch.ones(64, device=DEVICE), group=mesh["dp"].get_group())
        synchronize()
        time.sleep(0.05)
        beat.step()


@hang(causes=("rank_raised", "data_exhausted", "collective_mismatch"), culprits=(2, 3))
def two_swallow_the_same_error() -> None:
    """Ranks 2 and 3 swallow an error of their data, and leave for the barrier at the end."""
    train(WARM_UP)
    try:
        if RANK > 1:
            raise ValueError("loss is nan")
        train(60)
    except ValueError:
        pass
    dist.barrier()


@hang(causes=("not_entered",), culprits=(2,), where=("lock",))
def saves_inside_a_lock_of_its_logger() -> None:
    """The training thread logs, while a thread of its own holds logging's lock and waits for the training thread."""
    train(WARM_UP)
    if RANK == 2:
        started, done = threading.Event(), threading.Event()

        def flush() -> None:
            logging._acquireLock()  # type: ignore[attr-defined]
            started.set()
            done.wait()

        threading.Thread(target=flush, daemon=True).start()
        started.wait()
        logging.getLogger("a.logger.that.is.new").info("x")  # here
    train(60)


@hang(causes=("not_entered", "rank_raised"), culprits=(2,))
def raised_and_a_thread_keeps_it() -> None:
    """Rank 2 raised in its loop; a thread of its logger, which is no daemon, keeps the process."""
    train(WARM_UP)
    if RANK == 2:
        threading.Thread(target=queue.Queue[int]().get, name="metrics").start()
        raise ValueError("sample 17 is empty")
    train(60)


@stands(where=("lock",))
def cache_s_finalizer_waits() -> None:
    """A cache is dropped, and its finalizer waits for a thread that has ended."""
    import weakref

    cache = threading.local()
    weakref.finalize(cache, threading.Event().wait)
    del cache  # here


@hang(causes=("not_entered",), culprits=(3,))
def stands_between_two_gathers() -> None:
    """All gather into one tensor and then step; rank 3 sleeps between the two."""
    train(WARM_UP)
    for number in range(60):
        if RANK == 3 and number == 10:
            time.sleep(1e6)  # here
        dist.all_gather_into_tensor(torch.empty(64 * WORLD, device=DEVICE), torch.ones(64, device=DEVICE))
        step()


@hang(culprits=(1,), where=("lock",))
def only_one_of_two_pairs_stands() -> None:
    """Two replicas, each a pair that shares its tensors: rank 1 gets stuck, its partner waits for it; the other pair
    goes on until their next average over all."""
    pairs = [dist.new_group([first, first + 1]) for first in range(0, WORLD, 2)]
    for number in range(WARM_UP * 2):
        time.sleep(STEP_SECONDS)
        if RANK == 1 and number == WARM_UP + 5:
            threading.Event().wait()  # here
        dist.all_reduce(torch.ones(64, device=DEVICE), group=pairs[RANK // 2])
        if number % 40 == 39:
            dist.all_reduce(torch.ones(1024, device=DEVICE))
        synchronize()
        beat.step()


if __name__ == "__main__":
    main()
