"""A process as /proc shows it at one moment, in one value to which two add. A tick (ProcessSample) reads a process that
lives, so what detectors reckon with each second is known, and none of them has to ask; a look of an incident
(ProcessLook) may be of one that has ended, or of another tool's file, thread by thread, and all of it may be unknown.
Ticks are of sysconf(_SC_CLK_TCK)."""

import re
from collections.abc import Iterable

import msgspec

# Letters of a state, by proc(5).
STOPPED = frozenset("Tt")  # by a signal, or by a tracer
TRACED = "t"
ENDED = frozenset("ZX")  # it is a zombie, or gone altogether
TERMINAL = "terminal "  # what a thread waits on begins so, where it is one
SHELL_SIGNAL = 128  # a shell in between, and Python's own exit, say 128 + the signal


# Threads of a control group that is frozen (a paused container, a job that a scheduler suspends): version 1 of control
# groups puts them into state D and leaves most at the wait in which they were, version 2 leaves them in state S.
_FROZEN = re.compile(r"^__refrigerator|^do_freezer_trap")


def is_frozen(wchans: Iterable[str | None]) -> bool:
    """Given where the threads of a process sleep, say whether its control group is frozen."""
    return any(wchan is not None and _FROZEN.match(wchan) for wchan in wchans)


class ChildProcess(msgspec.Struct, frozen=True):
    """A child of a rank as /proc shows it. CPU in clock ticks."""

    pid: int
    state: str
    command: str = ""
    cpu_ticks: int | None = None
    wchan: str | None = None
    namespace_pid: int | None = None  # in its own PID namespace; None: it lives in ours
    waits_on: str = ""  # as ThreadState.waits_on, of its main thread
    parent_pid: int | None = None
    # Of the programs that it had run and that have ended: a shell, make or xargs do hardly anything themselves, and who
    # works for them may live for milliseconds. Programs of a loop that polls are among them.
    reaped_ticks: int = 0
    # That it has read and written by system calls, those programs included; None: nothing tells.
    moved_bytes: int | None = None


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """None is "not ours to read", or nobody asked."""

    pid: int | None = None
    state: str | None = None  # R S D T t Z X
    wchan: str | None = None
    tracer_pid: int | None = None
    cpu_ticks: int | None = None  # whole process, spinning NCCL threads and our pulse included
    read_bytes: int | None = None  # by system calls: page cache and network file systems count too
    write_bytes: int | None = None
    children: tuple[ChildProcess, ...] = ()
    open_files: tuple[int, int] | None = None  # open file handles of the process, its limit
