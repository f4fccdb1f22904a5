"""What the daemon itself costs, its children included."""

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from stallwatch.node.procfs import TICKS_PER_SECOND

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TIMES, _RSS = slice(11, 15), 21  # after the command's ")" in /proc/<pid>/stat; its ended children's times too
_ENDED = (FileNotFoundError, ProcessLookupError)


class OwnUsage(msgspec.Struct, frozen=True):
    """What the daemon and its children use."""

    cpu_seconds: float
    resident_bytes: int


def own_usage(proc: Path = Path("/proc")) -> OwnUsage:
    """Return CPU and memory of this process, its living children and theirs; ended ones count their CPU.

    Raise OSError where /proc cannot be read, for want of handles for instance: part of it would look like all.
    """
    cpu_seconds, resident_bytes = 0.0, 0
    children = [*_children(proc)]
    for pid in [os.getpid(), *children, *(grandchild for child in children for grandchild in _of(proc, child))]:
        try:
            fields = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        except _ENDED:
            continue
        cpu_seconds += sum(map(int, fields[_TIMES])) / TICKS_PER_SECOND
        resident_bytes += int(fields[_RSS]) * _PAGE_BYTES
    return OwnUsage(cpu_seconds, resident_bytes)


def _children(proc: Path) -> Iterable[int]:
    # One file per thread: children belong to the thread that started them.
    own = proc / "self" / "task"
    for thread in os.listdir(own):
        try:
            yield from map(int, (own / thread / "children").read_bytes().split())
        except _ENDED:
            continue


def _of(proc: Path, pid: int) -> Iterable[int]:
    """Those that its main thread started: the launcher has no other."""
    try:
        return map(int, (proc / str(pid) / "task" / str(pid) / "children").read_bytes().split())
    except _ENDED:
        return ()
