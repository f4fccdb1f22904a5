"""Jobs that somebody ends: `ended.py trains|sleeps|stands`, started as a rank. ENDED_IGNORES: a signal that it ignores,
as a program does that saves first. ENDED_IN_TURN: asked to end, a rank writes for so many seconds times its rank, and
leaves in order. See endings.py."""

import os
import signal
import threading
import time

from tests.controls.common import RANK, WARM_UP, main, situation, train

if name := os.environ.get("ENDED_IGNORES"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)


def _leave(*_: object) -> None:
    time.sleep(float(os.environ["ENDED_IN_TURN"]) * (RANK + 1))
    os._exit(0)


if "ENDED_IN_TURN" in os.environ:
    signal.signal(signal.SIGTERM, _leave)


@situation
def trains() -> None:
    """Nothing is wrong with it."""
    train(100_000)


@situation
def sleeps() -> None:
    """Rank 2 may go on by itself: nobody is told for two minutes."""
    train(WARM_UP)
    if RANK == 2:
        time.sleep(1e6)
    train(60)


@situation
def stands() -> None:
    """Rank 2 will not go on: people are told at once."""
    train(WARM_UP)
    if RANK == 2:
        held = threading.Lock()
        held.acquire()
        held.acquire()
    train(60)


if __name__ == "__main__":
    main()
