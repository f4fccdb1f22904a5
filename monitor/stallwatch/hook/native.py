"""Threads, locks and their waits as the operating system has them, whatever stands in the place of `threading`.

gevent and eventlet replace `threading` and `_thread` by greenlets, before our import or after it. A pulse that became a
greenlet would run only when the training lets it; one that was a thread before would wait in an event loop of its own,
end with a traceback on stderr, and let a fork wait for ever (all seen with gevent 25, patched after attach()).
Threads of `_thread` are daemons and are not in `threading.enumerate()`.
"""

import _thread
import os
import sys
from typing import Any, Callable, Optional


def _original(name: str) -> Any:
    """What `_thread` held before anybody replaced it."""
    patcher = sys.modules.get("gevent.monkey")
    if patcher is not None:
        try:
            return patcher.get_original("_thread", name)
        except Exception:  # another gevent's: then what is there
            pass
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None:
        try:
            return getattr(patcher.original("_thread"), name)
        except Exception:
            pass
    return getattr(_thread, name)


_CLEAR_SECONDS = 1.0
_LAST_LOOKS, _LAST_SECONDS = 50, 0.0002  # at what is left of a thread that has ended: some microseconds of its own
# Taken when the hook is imported: who replaces them later does not replace these.
allocate_lock: "Callable[[], Any]" = _original("allocate_lock")
get_ident: "Callable[[], int]" = _original("get_ident")
RLock: "Callable[[], Any]" = _original("RLock")
_start_new_thread: "Callable[..., int]" = _original("start_new_thread")


class Flag:
    """Set or not, and waited for; as threading.Event, for one waiter at a time."""

    def __init__(self) -> None:
        self._is_set = False
        self._lock = allocate_lock()
        self._lock.acquire()

    def is_set(self) -> bool:
        """Whether it was set and not cleared since."""
        return self._is_set

    def set(self) -> None:
        """Set it and wake the waiter; set already, it stays so. May come from any thread."""
        if not self._is_set:
            self._is_set = True
            try:
                self._lock.release()
            except RuntimeError:  # another thread came first
                pass

    def clear(self) -> None:
        """One thread at a time."""
        if self._is_set:
            self._lock.acquire(True, _CLEAR_SECONDS)  # a waiter has it for a moment
            self._is_set = False

    def wait(self, seconds: float) -> bool:
        """Return whether it is set, or has been within so many seconds."""
        if self._lock.acquire(True, max(0.0, seconds)):
            self._lock.release()
            return True
        return False


class Thread:
    """Runs one function, once; what it raises is for the function itself to tell."""

    def __init__(self, function: "Callable[..., None]", *arguments: object) -> None:
        self._function: Optional[Callable[..., None]] = function
        self._arguments = arguments
        self._ended = Flag()
        self._native_id: Optional[int] = None

    def start(self) -> None:
        """Raise RuntimeError when no thread can be had."""
        _start_new_thread(self._run, ())

    def join(self, seconds: float) -> None:
        """Wait for its end, so many seconds at most. A fork must not find what the interpreter still does of it (Python
        3.12 and later warn of a second thread then)."""
        if not self._ended.wait(seconds) or self._native_id is None:
            return
        for _ in range(_LAST_LOOKS):
            if not os.path.exists(f"/proc/self/task/{self._native_id}"):
                return
            Flag().wait(_LAST_SECONDS)

    def _run(self) -> None:
        try:
            self._native_id = _thread.get_native_id()
            assert self._function is not None
            self._function(*self._arguments)
        except BaseException:  # nothing of ours is printed into a training's output
            pass
        finally:
            self._function, self._arguments = None, ()
            self._ended.set()
