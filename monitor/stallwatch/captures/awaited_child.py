"""For which child a thread waits, by the system call in which it sleeps (proc_pid_syscall(5))."""

import platform
from collections.abc import Mapping
from typing import NamedTuple

from stallwatch.node.procfs import ProcessDirectory

_P_PID = 1  # of waitid(2)
_INT_BITS = 32


class _WaitCalls(NamedTuple):
    """Numbers of system calls: <asm/unistd_64.h>, <asm-generic/unistd.h>."""

    wait4: int
    waitid: int


_CALLS: Mapping[str, _WaitCalls] = {"x86_64": _WaitCalls(61, 247), "aarch64": _WaitCalls(260, 95)}


def awaited_child(directory: ProcessDirectory, tid: int) -> int | None:
    """Given a thread that waits for a child, return which, as its own PID namespace numbers it; None: any of them, or
    nothing tells."""
    calls = _CALLS.get(platform.machine())
    try:
        number, *arguments = directory.read(f"task/{tid}/syscall").split()[:3]
        call, first, second = int(number), int(arguments[0], 16), int(arguments[1], 16)
    except (OSError, ValueError, IndexError):
        return None
    if calls is None or call not in calls:
        return None
    pid = first if call == calls.wait4 else second if first == _P_PID else 0
    pid &= (1 << _INT_BITS) - 1
    return pid if 0 < pid < 1 << (_INT_BITS - 1) else None
