"""Files in a directory that several nodes share: what of them is atomic on a file server, and what tells a change.

No node's clock is used: how old a file is, the server's tells.
"""

import errno
import hashlib
import os
import secrets
import stat
from pathlib import Path

from stallwatch.fleet.place import MOST_BYTES
from stallwatch.node.atomic_file import write_atomically


def names_in(folder: Path) -> list[str]:
    """What stands in a folder; nothing in one that is not there."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def create_file(path: Path, data: bytes) -> None:
    """Create a file, which one node alone can do. Raise FileExistsError when it is there."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def replace_file(path: Path, data: bytes) -> None:
    """Put a file by a rename: who reads sees the old or the new one whole."""
    write_atomically(path, data, makes_folder=False)


def read_file(path: Path) -> bytes:
    """As `read_dated`, without when."""
    return read_dated(path)[0]


def read_dated(path: Path) -> tuple[bytes, float]:
    """What a regular file holds, at most one byte more than MOST_BYTES, and when that was written, by the file server's
    clock. Raise OSError with EINVAL for what is no regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        return file.read(MOST_BYTES + 1), status.st_mtime


def read_or_nothing(path: Path) -> bytes:
    """As `read_file`; b"" where there is no such file."""
    try:
        return read_file(path)
    except FileNotFoundError:
        return b""


def modified_seconds(path: Path) -> float:
    """When it was changed last, by the file server's clock; 0.0 where it cannot be asked."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def changes_in(folder: Path) -> int:
    """A number that changes with the files in a folder: each is another inode when it is put again."""
    try:
        with os.scandir(folder) as entries:
            files = sorted((entry.name, entry.inode()) for entry in entries if not entry.name.startswith("."))
    except FileNotFoundError:
        return 0
    return int.from_bytes(hashlib.sha256(repr(files).encode()).digest()[:6], "big") if files else 0


def changes_of(path: Path) -> int:
    """A number that changes with a file, never 0."""
    status = path.stat()
    return (status.st_ino << 20 ^ status.st_mtime_ns) & ((1 << 48) - 1) or 1


def server_seconds(folder: Path) -> float:
    """What time it is for the server of this folder: that of a file just made there."""
    probe = folder / f".clock-{secrets.token_hex(8)}"
    create_file(probe, b"")
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)
