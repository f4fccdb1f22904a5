"""Calls that may hang in the kernel or with the network, in a thread that may be lost."""

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Aside(Generic[T]):
    """Each call is waited for once; while one has not come back, none is begun."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._asking: threading.Thread | None = None

    def call(self, function: Callable[[], T], otherwise: T) -> T:
        """Return what a function that raises nothing returns, in time; else `otherwise`."""
        if self._asking is not None and self._asking.is_alive():
            return otherwise
        answers: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._asking = threading.Thread(target=lambda: answers.put(function()), daemon=True)
        self._asking.start()
        try:
            return answers.get(timeout=self._seconds)
        except queue.Empty:
            return otherwise
