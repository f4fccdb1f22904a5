"""The training thread as the pulse sees it: which one it is, and how often its Python frames have changed.

A thread that stands in one call shows the same frames at every look, whatever other threads of its process do; that is
seen without a tracer, at some 20 µs a look (`sys._current_frames()`).
"""

import sys
import threading
from types import FrameType
from typing import Callable, Optional

_MOST_FRAMES = 64  # innermost ones; deeper stacks change there first


class TrainingThread:
    """The thread that steps; where nobody has counted a step, the main thread."""

    def __init__(self, stepper: "Callable[[], tuple[int, int]]") -> None:
        """`stepper` returns Python's ident and the kernel's id of the thread that steps, zeros before it has."""
        self._stepper = stepper
        self._signature: Optional[int] = None
        self.frame_changes = 0

    def ids(self) -> "tuple[int, int]":
        """Python's ident, and the kernel's id in our own PID namespace."""
        ident, native_id = self._stepper()
        if ident:
            return ident, native_id
        main = threading.main_thread()
        return main.ident or 0, main.native_id or 0

    def look(self) -> None:
        """Count a change of its frames since the last look. No frame is kept: it would keep what its locals hold."""
        signature = _signature(sys._current_frames().get(self.ids()[0]))
        if signature != self._signature:
            self._signature = signature
            self.frame_changes += 1


def _signature(frame: "Optional[FrameType]") -> Optional[int]:
    places: list[tuple[int, int]] = []
    while frame is not None and len(places) < _MOST_FRAMES:
        places.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return hash(tuple(places))
