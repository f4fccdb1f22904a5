"""The directory where hooks write, and one record in it as the model's Heartbeat."""

import contextlib
import fcntl
import os
import stat
import time
from pathlib import Path
from typing import Any

import msgspec

from stallwatch.errors import Denied
from stallwatch.formats.outside_text import name_of
from stallwatch.hook import layout
from stallwatch.model.snapshot import CounterLook, GroupCounter, Heartbeat
from stallwatch.node import untrusted

# The hook's own order (hook: $STALLWATCH_DIR, else the first of these that it can write to).
DEFAULT_DIRECTORIES = (Path("/run/stallwatch/ranks"), Path("/dev/shm/stallwatch"))  # noqa: S108 - the hook's own
# A later layout may be longer than ours; its record is still read and then refused by name of its version.
RECORD_LIMIT_BYTES = 1 << 20
_ACCESS_LISTS = ("system.posix_acl_access", "system.posix_acl_default")


def rank_directories(configured: str) -> tuple[Path, ...]:
    """Where to look: the configured directory, else every one that a hook may have chosen before we came."""
    return (Path(configured),) if configured else DEFAULT_DIRECTORIES


def prepare(directory: Path) -> None:
    """Create the rank directory (1777, as /tmp) and our own .daemon (0755) in it, before a job can take the name.

    Whoever owns the directory may remove the records of all others, and hooks obey him: where a user of the node has
    made it first, root takes it over, with all records in it. Raise Denied when somebody else holds a name and is not
    ours to move, or we may not create it.
    """
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not stat.S_ISDIR(directory.lstat().st_mode):
            raise Denied(f"{directory} is not a directory", "Remove it or set daemon.rank_directory.")
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            _own(descriptor, directory)
            _make_requests(descriptor, directory)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Denied(
            f"{error.filename or directory}: {error.strerror}",
            "Create it for the daemon's user (deploy/systemd/stallwatch.tmpfiles) or set daemon.rank_directory.",
        ) from error


def _own(descriptor: int, directory: Path) -> None:
    """See to it that nobody but root or we may remove others' records. Raise Denied or OSError."""
    status, user = os.fstat(descriptor), os.geteuid()
    if status.st_uid not in (0, user):
        if user != 0 or not directory.parent.stat().st_mode & stat.S_IWOTH:
            raise Denied(
                f"{directory} belongs to uid {status.st_uid}, who may remove the records of others in it: "
                "ranks there will not be asked for their recorders",
                f"As root: `chown root {directory} && chmod 1777 {directory}`, which keeps running jobs' records. "
                f"Without root: `export STALLWATCH_DIR={directory}-{user}` for the daemon and for the job.",
            )
        os.fchown(descriptor, 0, 0)
        for name in _ACCESS_LISTS:
            with contextlib.suppress(OSError):  # there is none, or this file system has no lists
                os.removexattr(descriptor, name)
    elif status.st_uid != user or stat.S_IMODE(status.st_mode) == 0o1777:
        return
    os.fchmod(descriptor, 0o1777)


def _make_requests(parent: int, directory: Path) -> None:
    """Make our own folder, if need be in the place of somebody else's. Raise Denied or OSError."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(layout.REQUESTS, 0o755, dir_fd=parent)
    status = os.stat(layout.REQUESTS, dir_fd=parent, follow_symlinks=False)
    if not (stat.S_ISDIR(status.st_mode) and status.st_uid in (0, os.geteuid())):
        aside = f"{layout.REQUESTS}.{layout.new_mark()}"
        try:
            os.rename(layout.REQUESTS, aside, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError as error:
            raise Denied(
                f"{directory}/{layout.REQUESTS} belongs to uid {status.st_uid}: ranks will not be asked for their "
                "recorders",
                "Remove it; the daemon makes its own.",
            ) from error
        os.mkdir(layout.REQUESTS, 0o755, dir_fd=parent)
        status = os.stat(layout.REQUESTS, dir_fd=parent, follow_symlinks=False)
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != 0o755:
        # Ranks of every user look there, whatever our umask is.
        os.chmod(layout.REQUESTS, 0o755, dir_fd=parent)  # noqa: S103
    _hold(parent, (status.st_dev, status.st_ino))


_LOCK_TRIES, _BETWEEN_TRIES_SECONDS = 5, 0.005
_held: dict[tuple[int, int], int] = {}  # a descriptor of each folder of ours, for as long as this process lives


def _hold(parent: int, identity: tuple[int, int]) -> None:
    """Let hooks see that somebody reads here (hook/rank_directory.is_read): a lock ends with its process, however that
    ends."""
    if identity in _held:
        return
    folder = os.open(layout.REQUESTS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=parent)
    _held[identity] = folder
    for _ in range(_LOCK_TRIES):  # a hook that asks has the lock for some microseconds; a file system may have none
        with contextlib.suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        time.sleep(_BETWEEN_TRIES_SECONDS)


def to_heartbeat(record: layout.Record, path: str, uid: int) -> Heartbeat:
    """Name the fields of a decoded record as the model does."""
    body: dict[str, Any] = {
        name: name_of(value) if type(value) is str else value for name, value in record._asdict().items()
    }
    body["groups"] = tuple(GroupCounter(*group) for group in record.groups)
    body["looks"] = tuple(CounterLook(*look) for look in record.looks)
    return Heartbeat(path=path, uid=uid, **body)


def read_heartbeat(path: Path) -> Heartbeat:
    """Read one record. Raise Refused, layout.LayoutError or OSError; whose process it claims is not checked here."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        descriptor = untrusted.open_regular(directory, path.name, RECORD_LIMIT_BYTES)
    finally:
        os.close(directory)
    try:
        return read_open(descriptor, str(path), os.fstat(descriptor).st_uid)
    finally:
        os.close(descriptor)


def read_open(descriptor: int, path: str, uid: int) -> Heartbeat:
    """Read a record that is open, of this path and owner. Raise layout.LayoutError, TornRecord where it was met
    in mid-write, or OSError."""
    # One read: it lies in memory, and a longer one is of a later version, which its head tells.
    return to_heartbeat(layout.decode(os.pread(descriptor, layout.RECORD_BYTES, 0)), path, uid)


def request_body(request_id: int, rung: str, at_ns: int = 0) -> bytes:
    """The daemon's dump request, as the hook reads it. `at_ns` (CLOCK_MONOTONIC): dump at that moment, not sooner."""
    return msgspec.json.encode({"id": request_id, "rung": rung, **({"at_ns": at_ns} if at_ns else {})})
