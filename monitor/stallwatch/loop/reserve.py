"""Memory that is kept for the moment at which none is to be had: what fails then can be counted, said and cleared away.

A limit of the address space and strict overcommit come as MemoryError. Where the kernel ends a process instead (a
limit of its control group), systemd starts it again, and alone (OOMPolicy=continue)."""

import mmap
import time
from collections.abc import Callable

# A line of log with its traceback takes 0.1 MB, a snapshot of 16 ranks that is encoded 0.4 MB.
_BYTES = 2 << 20
_AGAIN_SECONDS = 60.0


class Reserve:
    """Address space that nothing is written to, so it costs the node no memory."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, size_bytes: int = _BYTES) -> None:
        self._monotonic = monotonic
        self._size_bytes = size_bytes
        self._again = monotonic()
        self._held: mmap.mmap | None = None
        self.keep()

    def is_held(self) -> bool:
        """Whether there is any."""
        return self._held is not None

    def keep(self) -> None:
        """Take it (again) where there is twice as much: what has just been given is not taken from who needs it."""
        if self._held is not None or self._monotonic() < self._again:
            return
        self._again = self._monotonic() + _AGAIN_SECONDS
        try:
            mmap.mmap(-1, 2 * self._size_bytes).close()
            self._held = mmap.mmap(-1, self._size_bytes)
        except (OSError, MemoryError):
            self._held = None

    def give(self) -> None:
        """Let it go: there is no memory now."""
        held, self._held = self._held, None
        if held is not None:
            held.close()
            self._again = self._monotonic() + _AGAIN_SECONDS
