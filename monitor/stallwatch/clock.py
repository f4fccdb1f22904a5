"""Time, handed in from outside so that tests and replays own it.

Invariant: ages and durations come from `monotonic_ns` alone; `wall_ns` is for people and file names and is never
subtracted (wall clocks step).
"""

import time
from typing import Protocol


class Clock(Protocol):
    def monotonic_ns(self) -> int:
        """CLOCK_MONOTONIC in nanoseconds: the same clock for every process of the node."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        ...


class SystemClock:
    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()
