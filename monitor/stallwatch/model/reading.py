"""A value that was read, or the reason why it was not: unknown is neither zero nor healthy."""

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Known(msgspec.Struct, Generic[T], frozen=True, tag="known"):
    """A value, and when it was read."""

    value: T
    at_ns: int  # CLOCK_MONOTONIC


class Absent(Exception):
    """The node does not have what should be read, which is normal and said: no GPU, no driver."""


class Resting(Absent):
    """It is not to be read for a time, because somebody asked for that."""

    def __init__(self, reason: str, seconds: float) -> None:
        super().__init__(reason)
        self.seconds = seconds  # until it may be worth to ask again


class Unavailable(msgspec.Struct, frozen=True, tag="unavailable"):
    """Why there is no value, and since when that is known."""

    reason: str  # a sentence: "NVML has not answered for 40 s"
    at_ns: int  # CLOCK_MONOTONIC


def known(reading: Known[T] | Unavailable | None) -> T | None:
    """The value, where there is one."""
    return reading.value if isinstance(reading, Known) else None
