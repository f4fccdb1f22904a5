"""Time, handed in from outside so that tests and replays own it.

Invariant: ages and durations come from `monotonic_ns` alone; `wall_ns` is for people and file names and is never
subtracted (wall clocks step).
"""

import time
from datetime import UTC, datetime
from typing import Protocol

SECOND_NS = 1_000_000_000


class Clock(Protocol):
    """The two clocks that the daemon reads, so that tests bring their own."""

    def monotonic_ns(self) -> int:
        """CLOCK_MONOTONIC in nanoseconds: the same clock for every process of the node."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        ...


class SystemClock:
    """The node's own clocks."""

    def monotonic_ns(self) -> int:
        """CLOCK_MONOTONIC: it stands while the machine is suspended."""
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        """CLOCK_REALTIME, which people and NTP may set at any moment."""
        return time.time_ns()


def since_boot_ns() -> int:
    """CLOCK_BOOTTIME, by which the kernel says when a process began."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def iso(wall_ns: int, timespec: str = "milliseconds") -> str:
    """Given nanoseconds since the Unix epoch, return them as documents have them: ISO 8601 in UTC, `timespec` as
    datetime.isoformat has it. Raise OverflowError, ValueError or OSError for a time that no calendar has."""
    moment = datetime.fromtimestamp(wall_ns // 1000 / 1e6, UTC)
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")
