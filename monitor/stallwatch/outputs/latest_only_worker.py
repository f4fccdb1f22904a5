"""A thread that handles the newest of what it is handed: what an older one said is out of date by then."""

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

logger = logging.getLogger("stallwatch.outputs")
T = TypeVar("T")


class LatestOnlyWorker(Generic[T]):
    """Handing over never waits; `handle` runs in the thread, one at a time."""

    def __init__(self, name: str, handle: Callable[[T], None]) -> None:
        self._handle = handle
        self._handed: tuple[T, ...] = ()  # none or one
        self._changed = threading.Condition()
        self._worker = threading.Thread(target=self._work, name=name, daemon=True)
        self.closing = False

    def start(self) -> None:
        """Begin its thread."""
        self._worker.start()

    def hand(self, value: T) -> None:
        """Hand it a value; one that it has not begun with is dropped."""
        with self._changed:
            self._handed = (value,)
            self._changed.notify()

    def close(self, seconds: float, cancel: Callable[[], None]) -> None:
        """End the thread: `cancel` ends what `handle` waits for."""
        with self._changed:
            self.closing = True
            self._changed.notify()
        cancel()
        if self._worker.ident is not None:
            self._worker.join(seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.closing or bool(self._handed))
                handed, self._handed = self._handed, ()
            if self.closing:
                return
            for value in handed:
                try:
                    self._handle(value)
                except Exception:  # the guard of this thread: the next value is handled
                    logger.exception("%s: what it was handed is lost", self._worker.name)
