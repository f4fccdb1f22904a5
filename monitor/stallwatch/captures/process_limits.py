"""What limits a rank from outside: its own /dev/shm, its open files, the memory of its cgroup."""

import contextlib
import os
import re
from typing import Any

from stallwatch.node.cgroups import events_file, memory_group, out_of_memory_kills, usage_and_limit
from stallwatch.node.procfs import ProcessDirectory

_SOFT_LIMIT = re.compile(r"Max open files\s+(\d+)")


def look_around(pid: int, proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> dict[str, Any]:
    """Return fields of model.evidence.ProcessLook; what is not ours to read is left out.

    Raise ProcessLookupError when the process is gone.
    """
    found: dict[str, Any] = {}
    with ProcessDirectory(pid, proc) as directory:
        pids = directory.status().namespace_pids
        found["namespace_pid"] = pids[-1] if pids else None
        with contextlib.suppress(PermissionError, ValueError):
            found["open_files"] = _open_files(directory)
        with contextlib.suppress(PermissionError):
            group = memory_group(os.fsdecode(directory.read("cgroup")), cgroups)
            if group is not None:
                found["memory_bytes"] = usage_and_limit(group)
                found["out_of_memory_kills"] = out_of_memory_kills(events_file(group))
    with contextlib.suppress(OSError):
        space = os.statvfs(f"{proc}/{pid}/root/dev/shm")
        found["shared_memory_bytes"] = (
            (space.f_blocks - space.f_bavail) * space.f_frsize,
            space.f_blocks * space.f_frsize,
        )
    return found


def _open_files(directory: ProcessDirectory) -> tuple[int, int] | None:
    limit = _SOFT_LIMIT.search(directory.read("limits").decode("ascii", "replace"))
    return (len(directory.names("fd")), int(limit[1])) if limit else None
