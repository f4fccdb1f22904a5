"""The training thread as the pulse sees it: which one it is, and how often its Python frames have changed.

A thread that stands in one call shows the same frames at every look, whatever other threads of its process do; that is
seen without a tracer, at some 20 µs a look (`sys._current_frames()`). Who has stepped since the last one has moved, and
is not looked at.
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
        self._steps = 0
        self._has_stepped = False
        self.frame_changes = 0

    def ids(self) -> "tuple[int, int]":
        """Python's ident, and the kernel's id in our own PID namespace."""
        ident, native_id = self._stepper()
        if ident:
            return ident, native_id
        main = threading.main_thread()
        return main.ident or 0, main.native_id or 0

    def look(self, steps: int = 0) -> None:
        """Count a change of its frames since the last look, or of the number of steps. No frame is kept: it would keep
        what its locals hold."""
        if steps != self._steps:
            self._steps = steps
            self._has_stepped = True
            self.frame_changes += 1
            return
        signature = _signature(sys._current_frames().get(self.ids()[0]))
        if signature != self._signature:
            # The first look at it after its steps has none to be compared with: it may have stood since.
            self.frame_changes += not self._has_stepped
            self._signature = signature
        self._has_stepped = False


def _signature(frame: "Optional[FrameType]") -> Optional[int]:
    places: list[tuple[int, int]] = []
    while frame is not None and len(places) < _MOST_FRAMES:
        places.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return hash(tuple(places))
