"""Where a process that has ended saw its files: in its mount namespace, whose root a process that still lives there
leads to. A service may be shown a tree of its own (PrivateTmp=, ProtectHome=), and a container has one: by the same
path lie other files."""

import contextlib
import errno
import os
from collections.abc import Iterable

from stallwatch.node.procfs import ProcessDirectory

_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_INIT = 1


def mount_namespace(process: ProcessDirectory) -> str:
    """The mount namespace of a process as the kernel names it: "mnt:[4026531841]". Raise OSError where it may not be
    seen."""
    return os.readlink("ns/mnt", dir_fd=process.descriptor)


def open_root_in(namespace: str, pids: Iterable[int] = ()) -> int:
    """Return a descriptor (O_PATH) of the root directory of a process in this mount namespace ("": ours): ourselves,
    process 1, or one of `pids`. Raise OSError when none of them is in it, or none may be looked at."""
    if namespace in ("", os.readlink("/proc/self/ns/mnt")):
        return os.open("/", _FLAGS)
    for pid in (_INIT, *pids):
        with contextlib.suppress(OSError), ProcessDirectory(pid) as process:
            if mount_namespace(process) == namespace:
                return os.open("root", _FLAGS, dir_fd=process.descriptor)
    raise OSError(errno.ENOENT, "nobody lives any more who sees the files that it saw")
