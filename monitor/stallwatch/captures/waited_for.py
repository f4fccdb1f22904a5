"""What a thread sleeps for in a system call: the file system or the server, at which other jobs may stand too.

By /proc alone: which call (proc_pid_syscall(5)), which descriptor or path it was given, which mount that is of
(proc_pid_mountinfo(5)). Nothing that may hang is touched: of a path nothing beneath a mount point is looked at.
"""

import contextlib
import os
import platform
import socket
import struct
from collections.abc import Mapping
from ipaddress import ip_address
from typing import NamedTuple

from stallwatch.formats.outside_text import name_of
from stallwatch.formats.tcp_table import parse_tcp
from stallwatch.model.file_systems import is_fuse, is_shared
from stallwatch.model.process import TERMINAL
from stallwatch.node.procfs import ProcessDirectory

_MOUNTS_BYTES = 1 << 20
_SOCKETS_BYTES = 4 << 20
_PATH_BYTES = 4096
_PAGE_BYTES = 4096
_TERMINALS = (b"/dev/pts/", b"/dev/tty", b"/dev/console", b"/dev/hvc")
_MOST_LINKS = 40  # as the kernel's own limit, path_resolution(7)
_AT_FDCWD = (1 << 64) - 100
_MOST_CHARACTERS = 200


class _Calls(NamedTuple):
    """Numbers of system calls, by what their first argument is."""

    descriptor: frozenset[int]
    path: frozenset[int]
    directory_and_path: frozenset[int]


# <asm/unistd_64.h>, <asm-generic/unistd.h>: read, write, stat, open, fsync, getdents, recv, connect and their siblings.
_CALLS: Mapping[str, _Calls] = {
    "x86_64": _Calls(
        frozenset((0, 1, 3, 5, 8, 17, 18, 19, 20, 42, 44, 45, 46, 47, 72, 73, 74, 75, 77, 78, 217, 277, 285, 295, 296,
                   306)),
        frozenset((2, 4, 6, 21, 76, 80, 82, 83, 84, 85, 87, 89, 90, 137)),
        frozenset((257, 258, 262, 263, 264, 267, 269, 316, 332, 437, 439)),
    ),
    "aarch64": _Calls(
        frozenset((25, 32, 46, 47, 57, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 80, 82, 83, 84, 203, 206, 207, 211, 212,
                   267)),
        frozenset((43, 45, 49)),
        frozenset((34, 35, 38, 48, 56, 78, 79, 276, 291, 437, 439)),
    ),
}  # fmt: skip
# What waits there waits for something else.
_NOT_STORED = frozenset(
    ("proc", "sysfs", "tmpfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "mqueue", "hugetlbfs", "ramfs", "bpf",
     "tracefs", "debugfs", "securityfs", "pstore", "configfs", "nsfs", "pipefs", "sockfs", "autofs")
)  # fmt: skip


class Mount(NamedTuple):
    """A line of mountinfo."""

    identity: int
    point: bytes
    kind: str
    source: str


def parse_mounts(data: bytes) -> tuple[Mount, ...]:
    """Given a mountinfo, return its mounts, those that lie over others last; lines of another form are left out."""
    mounts = []
    for line in data.splitlines():
        before, _, after = line.partition(b" - ")
        words, rest = before.split(b" "), after.split(b" ")
        if len(words) > 5 and len(rest) > 1 and words[0].isdigit():
            mounts.append(Mount(int(words[0]), _unescaped(words[4]), name_of(rest[0]), name_of(_unescaped(rest[1]))))
    return tuple(mounts)


def waited_for(directory: ProcessDirectory, tid: int) -> str:
    """Given a thread that sleeps, return what for: "nfs4 filer:/vol", "ext4 /dev/sda1 of node7", "tcp 10.0.0.7:443",
    "terminal /dev/pts/3 of node7"; "" where the call is of another kind, or nothing tells."""
    calls = _CALLS.get(platform.machine())
    with contextlib.suppress(OSError, ValueError, struct.error):
        number, *arguments = directory.read(f"task/{tid}/syscall").split()[:3]
        if calls is None or len(arguments) < 2 or not number.isdigit():
            return ""  # it runs, or waits for a page
        call, first, second = int(number), int(arguments[0], 16), int(arguments[1], 16)
        if call in calls.descriptor:
            return _of_descriptor(directory, first)
        if call in calls.path:
            return _of_path(directory, _AT_FDCWD, first)
        if call in calls.directory_and_path:
            return _of_path(directory, first, second)
    return ""


def _of_descriptor(directory: ProcessDirectory, number: int) -> str:
    target = os.readlink(b"fd/%d" % number, dir_fd=directory.descriptor)
    if target.startswith(b"socket:["):
        return _peer(directory, target[8:-1])
    if target.startswith(_TERMINALS):
        return f"{TERMINAL}{name_of(target)} of {socket.gethostname()}"
    if not target.startswith(b"/"):
        return ""
    lines = dict(line.split(b":", 1) for line in directory.read(f"fdinfo/{number}").splitlines() if b":" in line)
    identity = int(lines.get(b"mnt_id", b"-1"))
    return next((_words(mount) for mount in _mounts(directory) if mount.identity == identity), "")


def _of_path(directory: ProcessDirectory, at: int, address: int) -> str:
    path = _text_at(directory, address)
    if not path.startswith(b"/"):
        base = b"cwd" if at & 0xFFFFFFFF == _AT_FDCWD & 0xFFFFFFFF else b"fd/%d" % at
        path = os.readlink(base, dir_fd=directory.descriptor) + b"/" + path
    return _words(_mount_of(directory, path, _mounts(directory)))


def _text_at(directory: ProcessDirectory, address: int) -> bytes:
    """A path in the memory of the process, which is read page by page: the next one may not be there."""
    memory = os.open("mem", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory.descriptor)
    try:
        first = min(_PAGE_BYTES - address % _PAGE_BYTES, _PATH_BYTES)
        text = os.pread(memory, first, address)
        if b"\0" not in text:
            text += os.pread(memory, _PATH_BYTES - first, address + first)
    finally:
        os.close(memory)
    return text.partition(b"\0")[0]


def _mount_of(directory: ProcessDirectory, path: bytes, mounts: tuple[Mount, ...]) -> Mount | None:
    """Walk the path as its process sees it. Links are followed in the root file system alone: another may hang."""
    points = {mount.point: mount for mount in mounts}
    at, links = b"", 0
    left = [part for part in path.split(b"/") if part not in (b"", b".")]
    while left:
        part = left.pop(0)
        below = os.path.dirname(at).rstrip(b"/") if part == b".." else at + b"/" + part
        if below in points and below:
            return _holding(b"/".join((below, *left)), points)
        link = b""
        if part != b".." and links < _MOST_LINKS:
            with contextlib.suppress(OSError):  # no link
                link = os.readlink(b"root" + below, dir_fd=directory.descriptor)
        links += bool(link)
        at = below if not link else b"" if link.startswith(b"/") else at
        left = [part for part in link.split(b"/") if part not in (b"", b".")] + left
    return points.get(b"/")


def _holding(path: bytes, points: Mapping[bytes, Mount]) -> Mount | None:
    while path and path not in points:
        path = path.rpartition(b"/")[0]
    return points.get(path or b"/")


def _mounts(directory: ProcessDirectory) -> tuple[Mount, ...]:
    return parse_mounts(directory.read_whole("mountinfo", _MOUNTS_BYTES))


def _is_shared(mount: Mount) -> bool:
    return is_shared(mount.kind) or (is_fuse(mount.kind) and ":" in mount.source)  # one of FUSE that names a server


def _words(mount: Mount | None) -> str:
    if mount is None or mount.kind in _NOT_STORED:
        return ""
    where = "" if _is_shared(mount) else f" of {socket.gethostname()}"
    return f"{mount.kind} {mount.source}"[:_MOST_CHARACTERS] + where


def _peer(directory: ProcessDirectory, inode: bytes) -> str:
    number = int(inode)
    for name in ("net/tcp", "net/tcp6"):
        table = directory.read_whole(name, _SOCKETS_BYTES).decode("ascii", "replace")
        for found in parse_tcp(table):
            if found.inode == number and found.peer_port:  # else it listens
                address = ip_address(found.peer_address)
                here = f" of {socket.gethostname()}" if address.is_loopback else ""
                return f"tcp {f'[{address}]' if address.version == 6 else address}:{found.peer_port}{here}"
    return ""


def _unescaped(text: bytes) -> bytes:
    r"""A space is \040 there."""
    parts = text.split(b"\\")
    return parts[0] + b"".join(
        bytes((int(part[:3], 8) & 255,)) + part[3:] if len(part) > 2 and part[:3].isdigit() else b"\\" + part
        for part in parts[1:]
    )
