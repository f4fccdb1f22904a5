"""What the daemon itself costs, its children included."""

import os
from collections.abc import Iterable

import msgspec

from stallwatch.node.procfs import TICKS_PER_SECOND

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TIMES, _RSS = slice(11, 15), 21  # after the command's ")" in /proc/<pid>/stat; its ended children's times too
_KEPT_NS = 5_000_000_000  # nobody scrapes more often
_ENDED = (FileNotFoundError, ProcessLookupError)


class OwnUsage(msgspec.Struct, frozen=True):
    """What the daemon and its children use."""

    cpu_seconds: float
    resident_bytes: int


class OwnUsageReader:
    """What it was at most five seconds ago: some twenty files, which each second took a tenth of the daemon's tick."""

    def __init__(self) -> None:
        self._last: OwnUsage | None = None
        self._until_ns = 0

    def at(self, now_ns: int) -> OwnUsage:
        """Raise OSError as `own_usage` does."""
        if self._last is None or now_ns >= self._until_ns:
            self._last = None
            self._last, self._until_ns = own_usage(), now_ns + _KEPT_NS
        return self._last


def own_usage(proc: str = "/proc") -> OwnUsage:
    """Return CPU and memory of this process, its living children and theirs; ended ones count their CPU.

    Raise OSError where /proc cannot be read, for want of handles for instance: part of it would look like all.
    """
    ticks, pages = 0, 0
    children = [*_children(proc)]
    for pid in [os.getpid(), *children, *(grandchild for child in children for grandchild in _of(proc, child))]:
        try:
            fields = _read(f"{proc}/{pid}/stat").rpartition(b")")[2].split()
        except _ENDED:
            continue
        ticks += sum(map(int, fields[_TIMES]))
        pages += int(fields[_RSS])
    return OwnUsage(ticks / TICKS_PER_SECOND, pages * _PAGE_BYTES)


def _read(path: str) -> bytes:
    # Without objects for path and file: of some twenty of these a second those took a tenth of a tick.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _children(proc: str) -> Iterable[int]:
    # One file per thread: children belong to the thread that started them.
    own = f"{proc}/self/task"
    for thread in os.listdir(own):
        try:
            yield from map(int, _read(f"{own}/{thread}/children").split())
        except _ENDED:
            continue


def _of(proc: str, pid: int) -> Iterable[int]:
    """Those that its main thread started: the launcher has no other."""
    try:
        return map(int, _read(f"{proc}/{pid}/task/{pid}/children").split())
    except _ENDED:
        return ()
