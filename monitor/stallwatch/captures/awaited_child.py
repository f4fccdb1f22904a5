"""For which child a thread waits, by the system call in which it sleeps."""

import platform
from collections.abc import Mapping
from typing import NamedTuple

from stallwatch.captures.system_call import system_call
from stallwatch.node.procfs import ProcessDirectory

_P_PID = 1  # of waitid(2)
_INT_BITS = 32


class _WaitCalls(NamedTuple):
    """Numbers of system calls."""

    wait4: int
    waitid: int


_CALLS: Mapping[str, _WaitCalls] = {"x86_64": _WaitCalls(61, 247), "aarch64": _WaitCalls(260, 95)}


def awaited_child(directory: ProcessDirectory, tid: int) -> int | None:
    """Given a thread that waits for a child, return which, as its own PID namespace numbers it; None: any of them, or
    nothing tells."""
    calls, call = _CALLS.get(platform.machine()), system_call(directory, tid)
    if calls is None or call is None or call.number not in calls or len(call.arguments) < 2:
        return None
    first, second = call.arguments[:2]
    pid = first if call.number == calls.wait4 else second if first == _P_PID else 0
    pid &= (1 << _INT_BITS) - 1
    return pid if 0 < pid < 1 << (_INT_BITS - 1) else None
