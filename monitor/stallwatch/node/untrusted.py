"""Opens files that a job wrote or names: beneath their directory, through no link, regular files only, bounded in size,
and none that the kernel makes up."""

import ctypes
import errno
import functools
import os
import stat
from collections.abc import Callable, Collection

from stallwatch.errors import StallwatchError

# linux/openat2.h; the number is the same on every architecture. Kernels before 5.6 and some container filters lack it.
_SYS_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_RESOLVE_IN_ROOT = 0x10  # "/" and ".." end at the directory

_READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

_NAMES_ONLY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40  # as path_resolution(7)

_SPARSE_BYTES = 1 << 20
_NO_OPENAT2 = (errno.ENOSYS, errno.EPERM)  # an old kernel, a container's filter

# File systems that hold no data of anybody's but what the kernel says, to each reader by *his* rights and not by mode
# bits: what a job names is never read from there with ours (linux/magic.h, and the sources of those it leaves out).
_KERNEL_FILE_SYSTEMS = {
    0x9FA0: "proc",
    0x62656572: "sysfs",
    0x64626720: "debugfs",
    0x74726163: "tracefs",
    0x73636673: "securityfs",
    0x62656570: "configfs",
    0x27E0EB: "cgroup",
    0x63677270: "cgroup2",
    0xCAFE4A11: "bpf",
    0x6165676C: "pstore",
    0xDE5E81E4: "efivarfs",
    0x1CD1: "devpts",
    0x19800202: "mqueue",
    0x6E736673: "nsfs",
    0x50494446: "pidfs",
    0x42494E4D: "binfmt_misc",
    0x7655821: "resctrl",
    0x65735543: "fusectl",
    0xF97CFF8C: "selinuxfs",
    0x43415D53: "smackfs",
    0x5A3C69F0: "apparmorfs",
    0xABBA1974: "xenfs",
    0x67596969: "rpc_pipefs",
    0x6E667364: "nfsd",
    0x6F70726F: "oprofilefs",
    0x9FA2: "usbfs",
    0x9FA1: "openpromfs",
    0x534F434B: "sockfs",
    0x50495045: "pipefs",
    0x09041934: "anon_inodefs",
    0x444D4142: "dma-buf",
    0x6C6F6F70: "binderfs",
    0x64646178: "daxfs",
    0x62646576: "bdev",
    0x11307854: "mtd_inode_fs",
    0x5345434D: "secretmem",
}


class FileRefused(StallwatchError):
    """The file is not one that we read; the message is a sentence that names it."""


class _FileSystem(ctypes.Structure):
    """struct statfs: its type comes first, in a word; the rest is not wanted (120 bytes on 64-bit Linux)."""

    _fields_ = (("type", ctypes.c_ulong), ("rest", ctypes.c_ubyte * 248))


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _openat2(directory: int, name: str, flags: int, resolve: int) -> int:
    """Raise OSError as open does; ENOSYS where the kernel or a filter does not offer the call."""
    how = _OpenHow(flags, 0, resolve)
    descriptor = int(_libc().syscall(_SYS_OPENAT2, directory, os.fsencode(name), ctypes.byref(how), ctypes.sizeof(how)))
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return descriptor


def open_regular(directory: int, name: str, limit_bytes: int) -> int:
    """Given a directory's descriptor and a name beneath it, return a descriptor for reading.

    Raise FileRefused when it is a link, no regular file or too large; OSError when it cannot be opened. What it is is
    asked before opening: opening a FIFO or a device is already an act.
    """
    _check(os.stat(name, dir_fd=directory, follow_symlinks=False), name, limit_bytes)
    flags = _READ_FLAGS | os.O_NOFOLLOW
    try:
        resolve = _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS
        descriptor = _openat2(directory, name, flags, resolve)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EXDEV):
            raise FileRefused(f"{name}: leads out of its directory or through a link; not opened") from error
        if error.errno not in _NO_OPENAT2:
            raise
        if "/" in name:
            raise FileRefused(f"{name}: this kernel cannot resolve paths beneath a directory") from error
        descriptor = os.open(name, flags, dir_fd=directory)
    try:
        _check(os.fstat(descriptor), name, limit_bytes)
        refuse_kernels_own(descriptor, name)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_in_root(
    root: int,
    path: str,
    limit_bytes: int,
    check: Callable[[int], None] | None = None,
    *,
    users: Collection[int] = (),
) -> int:
    """Given the descriptor of a (container's) root directory and an absolute path in it, return a descriptor for
    reading; links as of `open_place`. `check` sees the file, not opened yet, and may raise. Raise FileRefused or
    OSError."""
    return _reopened(open_place(root, path, users=users), path, limit_bytes, check)


def open_held(process: int, name: str, limit_bytes: int, check: Callable[[int], None] | None = None) -> int:
    """Given the descriptor of a /proc/<pid> and the name of a file that the process has open ("fd/1"), return one of
    our own for reading it. `check`, FileRefused and OSError as of `open_in_root`.

    By this name the file is opened anew, by our rights: that the process has it open says nothing of its own.
    """
    descriptor = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=process)
    return _reopened(_no_kernels_own(descriptor, name), name, limit_bytes, check)


def open_place(root: int, path: str, *, users: Collection[int] = ()) -> int:
    """Given the descriptor of a (container's) root directory and an absolute path in it, return a descriptor that only
    names what is there (O_PATH), whatever kind of file it is.

    Links lead within that root, and are followed where they belong to one of `users`, to root or to whoever owns that
    root: somebody else's would say what is read. Raise FileRefused or OSError.
    """
    try:
        place = _openat2(root, path.lstrip("/"), os.O_PATH | os.O_CLOEXEC, _RESOLVE_IN_ROOT | _RESOLVE_NO_SYMLINKS)
    except OSError as error:
        if error.errno not in (errno.ELOOP, *_NO_OPENAT2):
            raise
        place = _walked(root, path, {0, os.fstat(root).st_uid, *users})
    return _no_kernels_own(place, path)


def _walked(root: int, path: str, trusted: Collection[int]) -> int:
    """Go there step by step; each step is beneath what the last one found, so nothing can be swapped in between."""
    way = [os.dup(root)]
    left, links = [part for part in reversed(path.split("/")) if part], 0
    try:
        while left:
            part = left.pop()
            if part in (".", ".."):
                if part == ".." and len(way) > 1:
                    os.close(way.pop())
                continue
            step = os.open(part, _NAMES_ONLY, dir_fd=way[-1])
            if not stat.S_ISLNK(os.fstat(step).st_mode):
                way.append(step)
                continue
            try:
                links += 1
                target = _target(step, path, trusted, links)
            finally:
                os.close(step)
            if target.startswith("/"):
                while len(way) > 1:
                    os.close(way.pop())
            left += [part for part in reversed(target.split("/")) if part]
        return os.dup(way[-1])
    finally:
        for each in way:
            os.close(each)


def _target(link: int, path: str, trusted: Collection[int], links: int) -> str:
    refuse_kernels_own(link, path)
    owner = os.fstat(link).st_uid
    if owner not in trusted:
        raise FileRefused(f"{path}: leads through a link of uid {owner}; not followed")
    if links > _MOST_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return os.readlink("", dir_fd=link)


def refuse_kernels_own(descriptor: int, name: str) -> None:
    """Raise FileRefused when the file, open or only named (O_PATH), lies in procfs, sysfs or another file system of the
    kernel's own; OSError when that cannot be told. Which mount or link led there is all one."""
    found = _FileSystem()
    if _libc().fstatfs(descriptor, ctypes.byref(found)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    if kind := _KERNEL_FILE_SYSTEMS.get(found.type):
        raise FileRefused(f"{name}: lies in {kind}, which the kernel shows by the reader's rights; not opened")


def _no_kernels_own(place: int, name: str) -> int:
    try:
        refuse_kernels_own(place, name)
    except BaseException:
        os.close(place)
        raise
    return place


def _reopened(place: int, name: str, limit_bytes: int, check: Callable[[int], None] | None) -> int:
    """Given an O_PATH descriptor, which is closed here, return one for reading."""
    try:
        _check(os.fstat(place), name, limit_bytes)
        if check is not None:
            check(place)
        # What O_PATH found is opened for reading by its own name in /proc, so nothing can be swapped in between.
        return os.open(f"/proc/self/fd/{place}", _READ_FLAGS)
    finally:
        os.close(place)


def read_bounded(descriptor: int, limit_bytes: int) -> bytes:
    """Return what the file holds from its start, at most `limit_bytes`."""
    parts = []
    at = 0
    while at < limit_bytes:
        part = os.pread(descriptor, min(limit_bytes - at, 1 << 20), at)
        if not part:
            break
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def read_regular(directory: int, name: str, limit_bytes: int) -> tuple[bytes, os.stat_result]:
    """Open as `open_regular` does and return content and status."""
    descriptor = open_regular(directory, name, limit_bytes)
    try:
        return read_bounded(descriptor, limit_bytes), os.fstat(descriptor)
    finally:
        os.close(descriptor)


def check_holes(descriptor: int, name: str) -> None:
    """Raise FileRefused for a large file with holes: it costs its writer nothing and its reader all that it announces.
    Nobody writes a dump so; a log that was cut at its beginning may be so."""
    size = os.fstat(descriptor).st_size
    if size <= _SPARSE_BYTES:
        return
    try:
        hole = os.lseek(descriptor, 0, os.SEEK_HOLE)
    except OSError:
        return  # a file system that does not tell
    os.lseek(descriptor, 0, os.SEEK_SET)
    if hole < size:
        raise FileRefused(f"{name}: {size} bytes, with holes; not read")


def _check(status: os.stat_result, name: str, limit_bytes: int) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise FileRefused(f"{name}: a symbolic link; not followed")
    if not stat.S_ISREG(status.st_mode):
        raise FileRefused(f"{name}: not a regular file; not opened")
    if status.st_size > limit_bytes:
        raise FileRefused(f"{name}: {status.st_size} bytes, more than the {limit_bytes} that are read")
