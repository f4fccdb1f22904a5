"""What tests start ends with them: a mutant that is ended in the middle of a test leaves the processes of that test."""

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None)


@contextlib.contextmanager
def nothing() -> Iterator[None]:
    """In it a process below us whose parent is gone becomes our child, in whatever session it is, and who asks us to
    end interrupts us; at its end there is none."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for asked in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(asked, signal.default_int_handler)
    try:
        yield
    finally:
        end_children()


def end_with(parent: int) -> None:
    """In a fork of `parent`: it ends when that one is killed."""
    for asked in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(asked, signal.SIG_DFL)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def end_children() -> None:
    """Kill every child of ours, and those that come to us as their parents end, until there is none."""
    while children := _children():
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def _children() -> list[int]:
    found = (task / "children" for task in Path("/proc/self/task").iterdir())
    return [int(pid) for one in found for pid in one.read_text(encoding="ascii").split()]
