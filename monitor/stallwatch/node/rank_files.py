"""The files that a rank's hook made beside its record, found by name and owner: the directory is open to all."""

import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from stallwatch.hook import layout
from stallwatch.node import untrusted


class _Listing:
    """The names of files of ranks in one directory, which anybody may fill with others: read in turn, and whoever asked
    before a reading began is served by it."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._began = 0.0
        self._names: tuple[str, ...] = ()

    def names(self, directory: int, asked: float | None = None) -> tuple[str, ...]:
        """`asked`: when, if not now."""
        asked = time.monotonic() if asked is None else asked
        with self._turn:
            if self._began < asked:
                self._began = time.monotonic()
                with os.scandir(directory) as entries:
                    self._names = tuple(entry.name for entry in entries if entry.name.startswith("rank-"))
            return self._names


_listings: dict[tuple[int, int], _Listing] = {}


def names_in(directory: int) -> tuple[str, ...]:
    """Return the names of files that may be ranks', as they are now. Many may ask at once. Raise OSError."""
    status = os.fstat(directory)
    return _listings.setdefault((status.st_dev, status.st_ino), _Listing()).names(directory)


def find(directory: int, ends: tuple[str, str], owners: Collection[int], names: Iterable[str] | None = None) -> str:
    """Given an open directory and how a name begins and ends, return the newest such file of one of `owners`.

    `names`: those of the directory, where they are known. Raise FileNotFoundError when there is none; another user's
    is none.
    """
    found: list[tuple[int, str]] = []
    for name in names_in(directory) if names is None else names:
        if not layout.is_between(name, ends):
            continue
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_uid in owners:
            found.append((status.st_mtime_ns, name))
    if not found:
        raise FileNotFoundError(2, os.strerror(2), "…".join(ends))
    return max(found)[1]


def read_facts(record: Path, uid: int, limit_bytes: int, names: Iterable[str] | None = None) -> bytes:
    """Given a record's path and owner, return what its process wrote into its facts file.

    Raise OSError, FileNotFoundError where there is none of this user, Refused.
    """
    key = layout.parse_record_name(record.name)
    if key is None:
        raise FileNotFoundError(2, os.strerror(2), record.name)
    directory = os.open(record.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        name = find(directory, layout.facts_ends(*key), (uid,), names)
        data, status = untrusted.read_regular(directory, name, limit_bytes)
    finally:
        os.close(directory)
    if status.st_uid != uid:
        raise FileNotFoundError(2, os.strerror(2), name)
    return data


class Read(NamedTuple):
    """A record as it was opened: its name, its file (device, inode) and its owner."""

    name: str
    identity: tuple[int, int]
    owner: int


def remove(directory: Path, records: Collection[Read]) -> None:
    """Unlink records that were read, and what their processes left beside them, in one reading of the directory; never
    truncate: a late writer would die.

    Names are anybody's: what another user owns stays, whatever it is called, and so does all where another file has
    taken the record's name. Never raises.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        owners = {
            key: record.owner
            for record in records
            if (key := layout.parse_record_name(record.name)) is not None and _is_still(descriptor, record)
        }
        if owners:
            with os.scandir(descriptor) as entries:
                own = [entry.name for entry in entries if layout.parse_own_name(entry.name) in owners]
            for name in own:
                key = layout.parse_own_name(name)
                if key is not None and _is_own(descriptor, name, owners[key]):
                    with contextlib.suppress(OSError):  # gone, or not ours to remove
                        os.unlink(name, dir_fd=descriptor)
        for key in owners:
            with contextlib.suppress(OSError):
                _remove_request(descriptor, *key)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _is_still(directory: int, record: Read) -> bool:
    try:
        status = os.stat(record.name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == record.identity and status.st_uid == record.owner


def open_requests(directory: Path) -> int:
    """Return a descriptor of the daemon's own folder in a rank directory. Raise OSError; PermissionError when it is
    somebody else's, or the directory is, whose owner may put another in its place."""
    return _open_requests(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW), directory)


def _open_requests(parent: int, directory: Path, *, keep: bool = False) -> int:
    try:
        _refuse_strangers(parent, str(directory))
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(layout.REQUESTS, flags, dir_fd=parent)
    finally:
        if not keep:
            os.close(parent)
    try:
        _refuse_strangers(descriptor, f"{directory}/{layout.REQUESTS}")
    except PermissionError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_strangers(descriptor: int, name: str) -> None:
    owner = os.fstat(descriptor).st_uid
    if owner not in (0, os.geteuid()):
        raise PermissionError(errno.EACCES, f"belongs to uid {owner}, who keeps ranks from being asked", name)


def _remove_request(directory: int, rank: int, key: str) -> None:
    folder = _open_requests(directory, Path(), keep=True)
    try:
        os.unlink(layout.request_name(rank, key), dir_fd=folder)
    finally:
        os.close(folder)


def _is_own(directory: int, name: str, owner: int) -> bool:
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == owner
