"""A second thread communicates while training goes on, or stands. Started as `other_threads.py NAME`. See common.py."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251

from tests.controls.common import DEVICE, QUIET_SECONDS, RANK, busy, main, situation, train


@contextmanager
def keeping_alive(group: dist.ProcessGroup | None = None, *, seconds: float = 0.5) -> Iterator[None]:
    """A thread of every rank meets the others twice a second."""
    group = group or dist.new_group(backend="gloo")
    over = threading.Event()

    def meet() -> None:
        stop = torch.zeros(1, device=DEVICE if group is dist.group.WORLD else "cpu")
        while not stop.item():
            stop.fill_(float(over.is_set()))
            dist.all_reduce(stop, op=dist.ReduceOp.MAX, group=group)
            time.sleep(seconds)

    thread = threading.Thread(target=meet, name="keep-alive", daemon=True)
    thread.start()
    yield
    over.set()
    thread.join()


@situation
def keeps_alive_beside_training() -> None:
    """Training goes on, with a thread of keep-alives in a group of its own."""
    with keeping_alive():
        train(int(QUIET_SECONDS / 0.05) if QUIET_SECONDS < 1000 else 200)
        _stand_if_for_ever()


@situation
def saves_beside_a_long_evaluation() -> None:
    """An asynchronous checkpoint communicates in its own group while rank 0 evaluates and the others wait."""
    with keeping_alive():
        train(100)
        if RANK == 0:
            busy(QUIET_SECONDS)
        dist.barrier()
        train(60)


@situation
def metrics_in_the_same_group() -> None:
    """The metrics' thread uses the very group of training, which is on a lock of its own for a while."""
    lock = threading.Lock()
    train(80)
    with keeping_alive(dist.group.WORLD):
        if RANK == 2:
            lock.acquire()
            if QUIET_SECONDS < 1000:
                threading.Timer(QUIET_SECONDS / 4, lock.release).start()
            with lock:
                pass
    train(60)


def _stand_if_for_ever() -> None:
    """The twin: rank 2 stands on a lock that nobody gives back."""
    lock = threading.Lock()
    if RANK == 2 and QUIET_SECONDS > 1000:
        lock.acquire()
        with lock:
            pass
    train(60)


if __name__ == "__main__":
    main()
