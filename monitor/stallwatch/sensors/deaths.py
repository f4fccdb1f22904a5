"""Sees processes end at once, by pidfd: which rank ended first tells the cause from torchrun's clean-up after it."""

import os
import select
import time
from collections.abc import Callable

_READABLE = select.POLLIN | select.POLLHUP


class DeathWatch:
    """Watches processes and notes the moment each one ends (CLOCK_MONOTONIC, also when nobody asks meanwhile)."""

    def __init__(self, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._monotonic_ns = monotonic_ns
        self._poll = select.poll()
        self._alive: dict[int, Callable[[int], None]] = {}  # pidfd to whom it is told

    def watch(self, pid: int, ended: Callable[[int], None]) -> int | None:
        """Call `ended` with the time when `pid` ends; the caller checks start ticks after this and owns the returned
        pidfd. None where the kernel has no pidfd (before 5.3): its end is then seen by the next read.

        Raise ProcessLookupError when it has ended already.
        """
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except OSError:
            return None
        self._alive[descriptor] = ended
        self._poll.register(descriptor, _READABLE)
        return descriptor

    def forget(self, descriptor: int) -> None:
        """Stop watching; the descriptor stays the caller's."""
        if self._alive.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def look(self) -> None:
        """Tell the ends that came since the last look, without waiting."""
        self._tell(self._poll.poll(0))

    def wait(self, descriptor: int, seconds: float | None = None) -> tuple[bool, bool]:
        """Wait until `descriptor` can be read, a process ends (and is told), or so many seconds have passed; return
        whether the first and whether the second is so."""
        self._poll.register(descriptor, _READABLE)
        try:
            events = self._poll.poll(None if seconds is None else seconds * 1e3)
        finally:
            self._poll.unregister(descriptor)
        ended = self._tell([event for event in events if event[0] != descriptor])
        return any(event[0] == descriptor for event in events), ended

    def _tell(self, events: list[tuple[int, int]]) -> bool:
        at_ns, any_ended = self._monotonic_ns(), False
        for descriptor, _ in events:
            ended = self._alive.get(descriptor)
            if ended is not None:
                self.forget(descriptor)
                ended(at_ns)
                any_ended = True
        return any_ended
