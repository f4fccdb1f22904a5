"""Training that looks odd from outside and is no hang: ranks that compute now and then, several that compute alone, a
main thread that is gone, processes that carry a rank's variables and are none. Started as
`training_without_a_hook.py NAME`; see common.py."""

import os
import threading
import time

import torch.distributed as dist  # noqa: TID251

from tests.controls.common import (
    QUIET_SECONDS,
    RANK,
    STEP_SECONDS,
    WARM_UP,
    busy,
    compute,
    main,
    one_rank_waits,
    situation,
    train,
)
from tests.controls.strays import leave_main_thread, start_daemon

_IDLES = "while os.getppid() and time.sleep(1) is None and os.path.exists('/proc/%d'): pass"

_SUSPENDED = f"""
own = os.getpid()
if os.fork() == 0:
    time.sleep(10); os.kill(own, signal.SIGSTOP)
    time.sleep({QUIET_SECONDS / 2}); os.kill(own, signal.SIGCONT)
    os._exit(0)
"""


def _goes_on() -> None:
    train(WARM_UP + int(QUIET_SECONDS / STEP_SECONDS))


def _idles() -> str:
    """Until the rank has ended."""
    return _IDLES % os.getpid()


@situation
def service_of_a_rank_fails() -> None:
    """A service with torch and a rank's variables, which init has adopted, computes for a while and fails."""
    if RANK == 0:
        start_daemon(f"e = time.monotonic() + {QUIET_SECONDS / 2}\nwhile time.monotonic() < e: sum(range(1000))\n1 / 0")
    _goes_on()


@situation
def service_of_a_rank_is_suspended() -> None:
    """Such a service is stopped (Ctrl-Z in the shell in which it runs), and goes on later."""
    if RANK == 1:
        start_daemon(_SUSPENDED + _idles())
    _goes_on()


@situation
def main_thread_has_ended() -> None:
    """The main thread of each rank has ended; another one trains (an embedded interpreter)."""

    def loop() -> None:
        _goes_on()
        dist.barrier()
        os._exit(0)

    threading.Thread(target=loop, name="training-loop").start()
    leave_main_thread()


@situation
def ranks_in_containers_beside_a_shell() -> None:
    """Each rank is in a pid namespace of its own; in that of rank 0 somebody has another program with its variables."""
    if RANK == 0:
        start_daemon(_idles())
    _goes_on()


@situation
def two_validate_by_themselves() -> None:
    """Ranks 1 and 2 validate their shards, each by itself; the others wait in a barrier."""
    train(WARM_UP)
    if RANK == 1:
        busy(QUIET_SECONDS)
    if RANK == 2:
        compute(QUIET_SECONDS)
    dist.barrier()
    train(60)


@one_rank_waits
def fetches_and_unpacks_now_and_then(seconds: float) -> None:
    """Rank 1 takes pieces from a store that answers each quarter of a minute, and unpacks each; the others wait."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(min(12.0, seconds))
        busy(2.0)


if __name__ == "__main__":
    main()
