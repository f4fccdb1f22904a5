"""Memory that CPython keeps for itself: freed tuples, up to 2,000 of each length to 20 (some 5 MB), which it gives
back when all generations are collected. That is done as objects in cycles become many, which ours do not: a reader of 8
ranks grew by 2.0 MB an hour with 190 jobs that came and went, all of it such tuples (`sys._debugmallocstats`), until
their lists were full."""

import gc
import time
from collections.abc import Callable

# A collection takes 5 ms of a sensor's child and 30 of the daemon; in as long a time the lists take 0.2 MB.
_EVERY_SECONDS = 300.0
# New objects until the youngest are collected (CPython's: 700). A tick makes some thousands, of which all but what it
# remembers are gone by its end: with 700 each was walked through while it lived, a tenth of the detectors' time.
_YOUNG = 5000


def keep_what_is_there() -> None:
    """Once, when all is imported that a process needs for its life: no collection walks through that again."""
    gc.collect()
    gc.freeze()


class FreeLists:
    """For the loop of a process that lives long."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        gc.set_threshold(_YOUNG)
        self._monotonic = monotonic
        self._due = monotonic() + _EVERY_SECONDS

    def give_back(self) -> None:
        """Have them emptied, if it is time; for a moment at which nobody waits."""
        if self._monotonic() >= self._due:
            gc.collect()
            self._due = self._monotonic() + _EVERY_SECONDS
