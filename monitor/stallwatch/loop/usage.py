"""What the daemon itself costs, its children included."""

import os
import resource
from collections.abc import Iterable
from pathlib import Path

import msgspec

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_UTIME, _RSS = 11, 21  # places after the command's ")" in /proc/<pid>/stat


class Usage(msgspec.Struct, frozen=True):
    cpu_seconds: float
    resident_bytes: int


def own_usage(proc: Path = Path("/proc")) -> Usage:
    """Return CPU and memory of this process and of its living children; ended children count their CPU."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds, resident_bytes = ended.ru_utime + ended.ru_stime, 0
    for pid in [os.getpid(), *_children(proc)]:
        try:
            fields = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        cpu_seconds += (int(fields[_UTIME]) + int(fields[_UTIME + 1])) / _TICKS_PER_SECOND
        resident_bytes += int(fields[_RSS]) * _PAGE_BYTES
    return Usage(cpu_seconds, resident_bytes)


def _children(proc: Path) -> Iterable[int]:
    # One file per thread: children belong to the thread that started them.
    for path in (proc / "self" / "task").glob("*/children"):
        try:
            yield from map(int, path.read_bytes().split())
        except OSError:
            continue
