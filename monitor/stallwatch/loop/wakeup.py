"""Sleeping until there is something to do: people, signals, children of the sensors, or the time itself."""

import contextlib
import os
import select
from collections.abc import Iterable


class Wakeup:
    """`ring` is safe from any thread and from signal handlers."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def ring(self) -> None:
        """End the sleep, from any thread or signal."""
        with contextlib.suppress(BlockingIOError, OSError):  # full: it rings already; closed: nobody sleeps
            os.write(self._writing, b"!")

    def wait(self, seconds: float, descriptors: Iterable[int] = ()) -> None:
        """Return after so many seconds, when it rings, or when one of `descriptors` can be read."""
        poll = select.poll()
        for descriptor in (self._reading, *descriptors):
            poll.register(descriptor, select.POLLIN)
        poll.poll(max(seconds, 0.0) * 1e3)
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reading, 4096):
                pass

    def close(self) -> None:
        """Close both ends; nobody can wake the loop afterwards."""
        for descriptor in (self._reading, self._writing):
            os.close(descriptor)
