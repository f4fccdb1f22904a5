"""In which system call a thread sleeps, and what it was given (proc_pid_syscall(5)).

Numbers of calls differ between machines: <asm/unistd_64.h>, <asm-generic/unistd.h>."""

import platform
from collections.abc import Mapping
from typing import NamedTuple

from stallwatch.node.procfs import ProcessDirectory


class SystemCall(NamedTuple):
    """One that a thread sleeps in."""

    number: int
    arguments: tuple[int, ...]


def system_call(directory: ProcessDirectory, tid: int) -> SystemCall | None:
    """Given a thread, return the call that it sleeps in; None: it runs, waits for a page, or nothing tells."""
    try:
        number, *words = directory.read(f"task/{tid}/syscall").split()
        return SystemCall(int(number), tuple(int(word, 16) for word in words[:6]))
    except (OSError, ValueError):
        return None


# What futex(2) does, without the flags for private ones and for the clock: to wait, with a mask or without.
_FUTEX: Mapping[str, int] = {"x86_64": 202, "aarch64": 98}
_WAITS, _OPERATION, _TIME_OUT = frozenset((0, 9)), 1, 3
_FLAGS = 128 | 256


def futex_is_endless(directory: ProcessDirectory, tid: int) -> bool | None:
    """Given a thread, return whether it waits at a futex without a time-out (locks, events and semaphores of Python are
    such); None: it waits at none, or nothing tells."""
    call = system_call(directory, tid)
    if call is None or call.number != _FUTEX.get(platform.machine()) or len(call.arguments) <= _TIME_OUT:
        return None
    if (call.arguments[_OPERATION] & 0xFFFFFFFF) & ~_FLAGS not in _WAITS:
        return None
    return call.arguments[_TIME_OUT] == 0
