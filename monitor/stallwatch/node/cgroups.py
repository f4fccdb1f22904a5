"""A process' cgroups, of either version: where that of its memory is, what it uses, and how often the kernel killed in
it; and how often their quotas of the CPU were used up."""

import os
import re
from typing import NamedTuple

# A v1 limit of "none" is this, rounded to pages (PAGE_COUNTER_MAX).
_NO_LIMIT = 1 << 62


class MemoryGroup(NamedTuple):
    """The cgroup that bounds a process' memory."""

    directory: str
    version: int


def memory_group(membership: str, mount: str = "/sys/fs/cgroup") -> MemoryGroup | None:
    """Given the text of /proc/<pid>/cgroup, return the directory that counts its memory; None when none can be seen."""
    for line in membership.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            candidates, version = (f"{mount}{path}", f"{mount}/unified{path}"), 2
        elif "memory" in controllers.split(","):
            # In a container the path may be the host's, and the mount its own cgroup.
            candidates, version = (f"{mount}/memory{path}", f"{mount}/memory"), 1
        else:
            continue
        for directory in candidates:
            group = MemoryGroup(directory, version)
            if os.path.exists(events_file(group)):
                return group
    return None


def events_file(group: MemoryGroup) -> str:
    """The file that counts out-of-memory kills; in v1 since Linux 4.13."""
    return f"{group.directory}/{'memory.events' if group.version == 2 else 'memory.oom_control'}"


def out_of_memory_kills(events: str) -> int | None:
    """None when it cannot be read or does not count them."""
    try:
        with open(events, encoding="ascii") as file:
            return kills_in(file.read())
    except (OSError, ValueError):
        return None


def kills_in(events: str) -> int | None:
    """Given what such a file says, return the kills that it counts; None where it counts none (v1 to Linux 4.12)."""
    found = re.search(r"^oom_kill (\d+)$", events, re.MULTILINE)
    return int(found[1]) if found else None


def usage_and_limit(group: MemoryGroup) -> tuple[int, int | None] | None:
    """Return bytes used and the limit; a limit of None is no limit. None when it cannot be read."""
    names = (
        ("memory.current", "memory.max") if group.version == 2 else ("memory.usage_in_bytes", "memory.limit_in_bytes")
    )
    try:
        used, limit = (_read(f"{group.directory}/{name}") for name in names)
    except (OSError, ValueError):
        return None
    return None if used is None else (used, None if limit is None or limit >= _NO_LIMIT else limit)


def periods(membership: str, mount: str = "/sys/fs/cgroup") -> dict[str, tuple[int, int]]:
    """Given the text of /proc/<pid>/cgroup, return by directory (periods of its quota of the CPU so far, those in which
    that was used up): of its own cgroup and of those above it, which may have one too; empty where none can be seen."""
    found = {}
    for line in membership.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number != "0" and "cpu" not in controllers.split(","):
            continue
        top = f"{mount}/{controllers}" if controllers else mount
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            directory = "/".join((top, *parts[:depth]))
            if (counts := _periods(f"{directory}/cpu.stat")) is not None:
                found[directory] = counts
    return found


def _periods(path: str) -> tuple[int, int] | None:
    try:
        with open(path, encoding="ascii") as file:
            values = dict(line.split(maxsplit=1) for line in file if " " in line)
        return int(values["nr_periods"]), int(values["nr_throttled"])
    except (OSError, ValueError, KeyError):
        return None


def _read(path: str) -> int | None:
    with open(path, encoding="ascii") as file:
        text = file.read().strip()
    return None if text == "max" else int(text)
