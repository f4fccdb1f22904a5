"""Real hangs that look odd from outside: ranks that compute now and then, several that compute for ever, a main thread
that is gone, processes that carry a rank's variables and are none. Started as `hangs_without_a_hook.py NAME`. What must
be said is in the decorator; see common.py."""

import hashlib
import os
import threading

from tests.controls.common import RANK, WARM_UP, busy, hang, main, train
from tests.controls.strays import leave_main_thread, start_daemon

_LOCK = threading.Lock()


def _stands() -> None:
    _LOCK.acquire()
    _LOCK.acquire()


@hang(causes=("not_entered", "waiting"), culprits=(2,))
def tries_a_dear_call_now_and_then() -> None:
    """Rank 2 tries something that takes it a second and a half, four times a minute, and that never succeeds."""
    train(WARM_UP)
    if RANK == 2:
        while True:
            busy(1.5)
            threading.Event().wait(13)  # here
    train(60)


@hang(culprits=(1, 2))
def two_compute_for_ever() -> None:
    """Ranks 1 and 2 compute in a loop that never ends, the others wait."""
    train(WARM_UP)
    digest = b""
    while RANK in (1, 2):
        digest = hashlib.sha256(digest * 64).digest()  # here
    train(60)


@hang(culprits=(2,), where=("lock",), by_stacks=("undecided",))
def main_thread_is_gone() -> None:
    """The main thread of each rank has ended, another trains (an embedded interpreter); that of rank 2 stands."""

    def loop() -> None:
        train(WARM_UP)
        if RANK == 2:
            _stands()
        train(60)
        os._exit(0)

    threading.Thread(target=loop, name="training-loop").start()
    leave_main_thread()


@hang(culprits=(2,), where=("lock",))
def daemon_of_rank_0_beside_a_lock() -> None:
    """Rank 0 has started a service with torch and a rank's variables, which init has adopted; rank 2 stands."""
    if RANK == 0:
        start_daemon("time.sleep(600)")
    train(WARM_UP)
    if RANK == 2:
        _stands()
    train(60)


@hang(causes=("rank_exited",), culprits=(2,))
def leaves_and_its_daemon_stays() -> None:
    """Rank 2 ends with exit code 0 in mid-training, and a service that it has started lives on."""
    if RANK == 2:
        start_daemon("time.sleep(600)")
    train(WARM_UP)
    if RANK == 2:
        os._exit(0)
    train(60)


@hang(culprits=(2,), where=("lock",))
def in_containers_of_one_rank_beside_a_shell() -> None:
    """Each rank is in a pid namespace of its own, that of rank 0 has a second program with its variables; 2 stands."""
    if RANK == 0:
        start_daemon("time.sleep(600)")
    train(WARM_UP)
    if RANK == 2:
        _stands()
    train(60)


if __name__ == "__main__":
    main()
