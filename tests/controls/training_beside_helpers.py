"""Situations that are no hang, with something small that goes on beside training as ever: recorders, keep-alives,
savers, writers. Started as `training_beside_helpers.py NAME`. See common.py."""

import queue
import threading
import time

from tests.controls.beside_training import keep_alive, leave, record_metrics, sample_stacks, save, write_events
from tests.controls.common import (
    QUIET_SECONDS,
    RANK,
    WARM_UP,
    busy,
    compute,
    main,
    read_late,
    situation,
    train,
    train_in_a_thread,
)
from tests.controls.situations import idle_server


@situation
def one_evaluates_beside_a_recorder() -> None:
    """Rank 1 evaluates alone, the others wait; a recorder of metrics goes on in each."""
    record_metrics()
    train(WARM_UP)
    if RANK == 1:
        compute(QUIET_SECONDS)
    train(60)


@situation
def all_wait_for_their_savers() -> None:
    """The next checkpoint waits for the last one, which each rank's thread still writes to slow storage."""
    train(WARM_UP)
    saver = save(5 + QUIET_SECONDS)
    train(100)
    saver.join()
    train(60)


@situation
def one_waits_for_its_saver() -> None:
    """The same of one rank alone: its storage is slower than the others'."""
    train(WARM_UP)
    saver = save((5 + QUIET_SECONDS) if RANK == 1 else 3)
    train(100)
    saver.join()
    train(60)


@situation
def pauses_beside_keep_alives() -> None:
    """All ranks wait for samplers elsewhere; their threads meet on in a group of their own."""
    keep_alive()
    train(WARM_UP)
    time.sleep(min(QUIET_SECONDS, 1e6))
    train(60)
    leave()


@situation
def idle_server_beside_a_recorder() -> None:
    """An inference engine without requests, as `idle_server`; a recorder of metrics goes on in each."""
    record_metrics()
    idle_server()


@situation
def actors_wait_for_messages_beside_events() -> None:
    """Actors that have trained wait for the next message of their driver; a tracker's service writes events."""
    write_events()
    train(WARM_UP)
    messages: queue.Queue[int] = queue.Queue()
    threading.Timer(min(QUIET_SECONDS, 1e6), messages.put, (1,)).start()
    messages.get()
    train(60)
    leave()


@situation
def storage_answers_late_beside_a_profiler() -> None:
    """Rank 1 reads a shard that comes late, a profiler samples stacks."""
    sample_stacks()
    train(WARM_UP)
    if RANK == 1:
        read_late(min(QUIET_SECONDS, 1e6))
    train(60)
    leave()


@situation
def helpers_end_and_training_goes_on() -> None:
    """Each rank's saver, which went on for long, is done; training goes on, and takes next to nothing of the CPU."""
    save(15)
    train(WARM_UP)
    train(int(min(QUIET_SECONDS, 120) / 0.25), seconds=0.25)
    _stand_if_for_ever()


@situation
def trains_in_a_thread_beside_a_recorder() -> None:
    """The loop runs in a thread, rank 0 evaluates there for long; a recorder goes on."""
    record_metrics()
    train_in_a_thread(lambda: busy(QUIET_SECONDS) if RANK == 0 else None)


@situation
def saver_ends_beside_a_thread_that_trains() -> None:
    """The loop runs in a thread and goes on; another that went on for long, a saver, is done."""
    save(15)

    def goes_on() -> None:
        train(int(min(QUIET_SECONDS, 120) / 0.05))
        _stand_if_for_ever()

    train_in_a_thread(goes_on)


def _stand_if_for_ever() -> None:
    """The twin: rank 2 stands on a lock that nobody gives back."""
    if RANK == 2 and QUIET_SECONDS > 1000:
        threading.Event().wait()


if __name__ == "__main__":
    main()
