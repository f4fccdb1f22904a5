"""Which ranks a capture has paused at this moment, in a table that its parent can read when the capture is no more."""

import contextlib
import os
import struct
import threading
from collections.abc import Iterator

_ENTRY = struct.Struct("<QQ")  # as node.privileged_server reads it


class Held:
    """Which processes py-spy pauses now, in memory that outlives us: who is left stopped is let go on."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` is of a file in memory, full of zeros."""
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._taken: set[int] = set()

    @contextlib.contextmanager
    def paused(self, pid: int, start_ticks: int) -> Iterator[None]:
        """While it lasts, the process counts as one that we may have stopped."""
        with self._lock:
            slot = next(number for number in range(len(self._taken) + 1) if number not in self._taken)
            self._taken.add(slot)
        os.pwrite(self._descriptor, _ENTRY.pack(pid, start_ticks), slot * _ENTRY.size)
        try:
            yield
        finally:
            os.pwrite(self._descriptor, _ENTRY.pack(0, 0), slot * _ENTRY.size)
            with self._lock:
                self._taken.discard(slot)
