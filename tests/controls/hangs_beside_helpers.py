"""Real hangs of training while something small in the process, or beside it, goes on as ever: recorders, keep-alives,
profilers, writers, savers, caches. Started as `hangs_beside_helpers.py NAME`. What must be said is in the decorator;
see common.py."""

import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from tests.controls.beside_training import (
    keep_alive,
    load,
    record_metrics,
    sample_stacks,
    save,
    scraped,
    write_events,
)
from tests.controls.common import RANK, WARM_UP, hang, main, step, train, train_in_a_thread

_STUCK = threading.Event()


@hang(culprits=(2,), where=("lock",))
def recorder_beside_a_lock() -> None:
    """A recorder of metrics computes beside training; rank 2 waits for a lock that nobody gives back."""
    record_metrics()
    train(WARM_UP)
    if RANK == 2:
        _STUCK.wait()  # here
    train(60)


@hang(culprits=(2,), where=("lock",))
def keep_alive_beside_a_lock() -> None:
    """A thread of each rank meets the others in a group of its own; rank 2's training waits for a lock."""
    keep_alive()
    train(WARM_UP)
    if RANK == 2:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()  # here
    train(60)


@hang(culprits=(2,), where=("filesystem", "user_code"))
def events_beside_a_read() -> None:
    """A tracker's service writes events in a process of its own; rank 2 reads a shard that never comes."""
    write_events()
    train(WARM_UP)
    if RANK == 2:
        fifo = Path(tempfile.mkdtemp()) / "shard.bin"
        os.mkfifo(fifo)
        fifo.read_bytes()  # here
    train(60)


@hang(culprits=(2,), where=("lock",))
def saver_beside_a_lock() -> None:
    """An asynchronous checkpoint of every rank is being written, slowly, when rank 2's training stands."""
    train(WARM_UP)
    save()
    train(60)
    if RANK == 2:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()  # here
    train(60)


@hang(culprits=(2,), where=("lock",))
def loader_s_worker_beside_a_lock() -> None:
    """A worker of each rank's loader caches ahead; rank 2's training waits for a lock."""
    batches = load()
    for _ in range(WARM_UP):
        next(batches)
        step()
    if RANK == 2:
        _STUCK.wait()  # here
    train(60)


@hang(culprits=(2,), where=("lock",))
def scraped_beside_a_lock() -> None:
    """Each rank's metrics are scraped; rank 2 waits for a lock."""
    with scraped():
        train(WARM_UP)
        if RANK == 2:
            _STUCK.wait()  # here
        train(60)


@hang(culprits=(2,), where=("lock",))
def profiler_beside_a_lock() -> None:
    """A profiler in the process samples all stacks a hundred times a second; rank 2's training waits for a lock."""
    sample_stacks()
    train(WARM_UP)
    if RANK == 2:
        _STUCK.wait()  # here
    train(60)


def _in_a_thread(beside: Callable[[], None]) -> None:
    def stand() -> None:
        if RANK == 2:
            _STUCK.wait()

    beside()
    train_in_a_thread(stand)


@hang(culprits=(2,), where=("lock",))
def recorder_beside_a_thread_that_trains() -> None:
    """The loop runs in a thread, as Ray's workers have it, and a recorder goes on when rank 2's stands."""
    _in_a_thread(record_metrics)


@hang(culprits=(2,), where=("lock",))
def keep_alive_beside_a_thread_that_trains() -> None:
    """The loop runs in a thread, and another meets the others in a group of its own when rank 2's stands."""
    _in_a_thread(keep_alive)


if __name__ == "__main__":
    main()
