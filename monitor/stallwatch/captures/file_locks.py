"""Who holds a lock on a file that a process waits for, by /proc/locks (proc_locks(5))."""

import os

_MOST_BYTES = 1 << 20


def parse_locks(data: bytes, pid: int) -> int | None:
    """Given /proc/locks, return the process that holds the lock which `pid` waits for: the line of the same number
    without an arrow. None: it waits for none, or the holder is not told (-1: a lock of an open file; 0: a process of
    another PID namespace). A lock that a child was forked with is its parent's here."""
    holders: dict[bytes, int] = {}
    for line in data.splitlines():
        fields = line.split()
        waits = len(fields) > 2 and fields[1] == b"->"
        try:
            owner = int(fields[5 if waits else 4])
        except (IndexError, ValueError):
            continue
        if not waits:
            holders[fields[0]] = owner
        elif owner == pid:
            holder = holders.get(fields[0], 0)
            return holder if holder > 0 else None
    return None


def holder_of(pid: int, proc: str = "/proc") -> int | None:
    """As `parse_locks`; None, too, where the list cannot be read. What stands beyond a mebibyte is not read."""
    try:
        fd = os.open(f"{proc}/locks", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return parse_locks(_read(fd), pid)
    except OSError:
        return None
    finally:
        os.close(fd)


def _read(fd: int) -> bytes:
    parts, left = [], _MOST_BYTES
    while left > 0 and (part := os.read(fd, min(left, 1 << 16))):  # the kernel gives a page or so at a time
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
