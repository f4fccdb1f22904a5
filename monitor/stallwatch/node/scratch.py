"""A folder for files that live as long as one child: in memory where there is room, since /tmp may be full, hang, or be
closed to a service (ProtectSystem=strict)."""

import os
import tempfile

_IN_MEMORY = "/dev/shm"  # noqa: S108 - mkdtemp makes a folder of its own in it, closed to others
_ROOM_BYTES = 64 << 20  # a container's whole /dev/shm by default: never the last of a job's


def scratch_folder(memory: str = _IN_MEMORY) -> "tempfile.TemporaryDirectory[str]":
    """Raise OSError when there is no place at all."""
    return tempfile.TemporaryDirectory(prefix="stallwatch-", dir=memory if _has_room(memory) else None)


def _has_room(folder: str) -> bool:
    try:
        space = os.statvfs(folder)
    except OSError:
        return False
    return space.f_bavail * space.f_frsize > 2 * _ROOM_BYTES and os.access(folder, os.W_OK | os.X_OK)
