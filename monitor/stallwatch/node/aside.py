"""Calls that may hang in the kernel or with the network, each in a thread that may be lost: for a process that must
answer about the rest all the same. What node.worker is among processes."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from stallwatch.node.procfs import stat_of

T = TypeVar("T")


class Silent(Exception):
    """The call has not come back for `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer for {seconds:.1f} s")
        self.seconds = seconds


class OneCallAtATime(Generic[T]):
    """One call at a time: while one has not come back, none is begun, and no second one joins it where it hangs."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._began = 0.0
        self._is_back = threading.Event()
        self._is_back.set()
        self._came: tuple[T] | Exception | None = None  # of the last call
        self._thread: threading.Thread | None = None

    @property
    def silent_seconds(self) -> float | None:
        """How long the call has not come back; None when none is under way."""
        return None if self._is_back.is_set() else self._monotonic() - self._began

    def begin(self, function: Callable[[], T], name: str | None = None) -> bool:
        """Begin a call and wait for nothing; return whether it was begun. `name`: of its thread. Raise RuntimeError,
        MemoryError where no thread is to be had."""
        if not self._is_back.is_set():
            return False
        self._began, self._came = self._monotonic(), None
        self._is_back.clear()
        self._thread = threading.Thread(target=self._run, args=(function,), name=name, daemon=True)
        try:
            self._thread.start()
        except BaseException:  # no memory, or at a limit of threads: nothing is under way
            self._thread = None
            self._is_back.set()
            raise
        return True

    def wait(self, seconds: float) -> bool:
        """Return as soon as no call is under way, whether that is so within `seconds`."""
        return self._is_back.wait(max(0.0, seconds))

    def answer(self, seconds: float = 0.0) -> T:
        """Return what the last call returned, or raise what it raised. Raise Silent when it does not come back within
        `seconds`."""
        if not self.wait(seconds):
            raise Silent(self._monotonic() - self._began)
        assert self._came is not None
        if isinstance(self._came, Exception):
            raise self._came
        return self._came[0]

    def call(self, function: Callable[[], T], seconds: float, otherwise: T) -> T:
        """Return what a function that raises nothing returns, in time; else `otherwise`."""
        if not self.begin(function):
            return otherwise
        try:
            return self.answer(seconds)
        except Silent:
            return otherwise

    def is_in_kernel(self) -> bool:
        """Whether the call waits in the kernel, where no signal reaches it."""
        try:
            return stat_of(self._thread.native_id or 0, "/proc/self/task").state == "D" if self._thread else False
        except (OSError, ValueError):
            return False

    def _run(self, function: Callable[[], T]) -> None:
        try:
            self._came = (function(),)
        except Exception as error:  # noqa: BLE001 - the guard of lost work: it is raised where it is asked for
            self._came = error
        self._is_back.set()
