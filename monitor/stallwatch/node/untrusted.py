"""Opens files that a job wrote: beneath their directory, through no link, regular files only, bounded in size."""

import ctypes
import errno
import functools
import os
import stat
from collections.abc import Callable

from stallwatch.errors import StallwatchError

# linux/openat2.h; the number is the same on every architecture. Kernels before 5.6 and some container filters lack it.
_SYS_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_RESOLVE_IN_ROOT = 0x10  # links are followed, but "/" and ".." end at the directory

_READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

_NO_OPENAT2 = (errno.ENOSYS, errno.EPERM)  # an old kernel, a container's filter


class Refused(StallwatchError):
    """The file is not one that we read; the message is a sentence that names it."""


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

    Raise Refused when it is a link, no regular file or too large; OSError when it cannot be opened. What it is is asked
    before opening: opening a FIFO or a device is already an act.
    """
    _check(os.stat(name, dir_fd=directory, follow_symlinks=False), name, limit_bytes)
    flags = _READ_FLAGS | os.O_NOFOLLOW
    try:
        resolve = _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS
        descriptor = _openat2(directory, name, flags, resolve)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EXDEV):
            raise Refused(f"{name}: leads out of its directory or through a link; not opened") from error
        if error.errno not in _NO_OPENAT2:
            raise
        if "/" in name:
            raise Refused(f"{name}: this kernel cannot resolve paths beneath a directory") from error
        descriptor = os.open(name, flags, dir_fd=directory)
    try:
        _check(os.fstat(descriptor), name, limit_bytes)
    except Refused:
        os.close(descriptor)
        raise
    return descriptor


def open_in_root(root: int, path: str, limit_bytes: int, check: Callable[[int], None] | None = None) -> int:
    """Given the descriptor of a (container's) root directory and an absolute path in it, return a descriptor for
    reading; links are followed within that root. `check` sees the file, not opened yet, and may raise. Raise Refused
    or OSError."""
    descriptor = open_place(root, path)
    try:
        _check(os.fstat(descriptor), path, limit_bytes)
        if check is not None:
            check(descriptor)
        # What O_PATH found is opened for reading by its own name in /proc, so nothing can be swapped in between.
        return os.open(f"/proc/self/fd/{descriptor}", _READ_FLAGS)
    finally:
        os.close(descriptor)


def open_place(root: int, path: str) -> int:
    """As `open_in_root`, whatever kind of file it is: return a descriptor that only names it (O_PATH)."""
    relative = path.lstrip("/")
    try:
        return _openat2(root, relative, os.O_PATH | os.O_CLOEXEC, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    except OSError as error:
        if error.errno not in _NO_OPENAT2:
            raise
        return os.open(relative, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=root)


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


def _check(status: os.stat_result, name: str, limit_bytes: int) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise Refused(f"{name}: a symbolic link; not followed")
    if not stat.S_ISREG(status.st_mode):
        raise Refused(f"{name}: not a regular file; not opened")
    if status.st_size > limit_bytes:
        raise Refused(f"{name}: {status.st_size} bytes, more than the {limit_bytes} that are read")
