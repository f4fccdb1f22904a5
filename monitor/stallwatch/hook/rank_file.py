"""The process' files in the rank directory: where they go, and how they are made and written.

A record is written whole by `pwrite`, never through a mapping. A store into a mapped file that somebody truncated, or
that a full tmpfs cannot back, kills the process with SIGBUS, and no `try` catches that; the directory belongs to
others, so nothing prevents it (tried: mode 0444 and leases do not bind root, seals exist only on nameless memfds). The
step therefore counts in private memory (beat.py) and the pulse thread publishes: truncation, unlinking and full disks
are then ordinary errors of one thread, and the training thread never touches a file system. The price: what a reader
sees is at most layout.PUBLISH_NS (a quarter of a second) old, which are the steps that a SIGKILL takes with it.

The file is opened anew for each write: a descriptor that is kept could be closed by the job (daemonising libraries
close all they did not open) and its number be given to a file of the job's.
"""

import itertools
import os
import stat
import time
from collections.abc import Mapping
from typing import Optional

from stallwatch.hook.identity import Process
from stallwatch.hook.layout import (
    RECORD_BYTES,
    REQUESTS,
    facts_name,
    new_mark,
    parse_own_name,
    record_name,
    temporary_name,
    writer_of,
)

SERVICE_DIRECTORY = "/run/stallwatch/ranks"
FALLBACK_DIRECTORY = "/dev/shm/stallwatch"  # noqa: S108
STALE_SECONDS = 86_400.0
STALE_ENTRIES = 10_000  # of a directory that others may fill
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def choose_directory(environment: "Mapping[str, str]") -> str:
    """The rank directory. Only the fallback is made here: the others belong to the daemon's user, and who owns the
    directory may ask for dumps. Raise OSError when it cannot be used."""
    named = environment.get("STALLWATCH_DIR", "")
    if named:
        return os.path.abspath(named)
    if os.access(SERVICE_DIRECTORY, os.W_OK | os.X_OK):
        return SERVICE_DIRECTORY
    try:
        os.mkdir(FALLBACK_DIRECTORY, 0o1777)
        os.chmod(FALLBACK_DIRECTORY, 0o1777)  # noqa: S103 - shared and sticky, as /tmp; mkdir is subject to umask
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(FALLBACK_DIRECTORY).st_mode):
            whose = strangers(FALLBACK_DIRECTORY) or f"{FALLBACK_DIRECTORY} is a link, no directory of its own"
            raise NotADirectoryError(whose) from None
    return FALLBACK_DIRECTORY


def is_read(directory: str) -> bool:
    """Whether a daemon reads a rank directory: it holds a lock on its own folder there for as long as it lives."""
    import fcntl  # by who prints what attach() gave him alone

    try:
        folder = os.open(os.path.join(directory, REQUESTS), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(folder)
    return False


def trusted_owner(directory: str) -> "Optional[int]":
    """Return who owns a rank directory where he may be heard: he is root or our own user, or nobody but them could have
    made it. A name below a directory that is open to all (/dev/shm, /tmp) is whoever's who came first: None. Raise
    OSError."""
    own = (0, os.geteuid())
    owner = os.stat(directory).st_uid
    path = os.path.realpath(directory)
    while owner not in own and path != "/":
        if os.stat(path).st_uid not in own and os.stat(os.path.dirname(path)).st_mode & stat.S_IWOTH:
            return None
        path = os.path.dirname(path)
    return owner


def strangers(directory: str) -> str:
    """Say whose a rank directory is that another user has made, or that is none, and what root can do; "" of every
    other one. Never raises."""
    try:
        status = os.lstat(directory)
        if status.st_uid in (0, os.geteuid()) and not stat.S_ISDIR(status.st_mode):
            return "" if os.path.isdir(directory) else f"{directory} is no directory"  # a link of ours to one is good
        if not stat.S_ISDIR(status.st_mode):
            return f"{directory} is no directory, but a file of uid {status.st_uid}; as root: `rm {directory}`"
        if trusted_owner(directory) is not None:
            return ""
    except OSError:
        return ""
    return (
        f"{directory} belongs to uid {status.st_uid}, whom no other user's rank obeys; "
        f"as root: `chown root {directory} && chmod 1777 {directory}`"
    )


class RankFile:
    """One process' record, and the place of its other files."""

    def __init__(self, directory: str, rank: int, process: Process) -> None:
        """Create the file with its space reserved. Raise OSError."""
        self.directory = directory
        self.rank = rank
        self._process = process
        # A pid is not enough: containers that share a directory have the same small ones, and anybody may hold a name.
        self.key = f"{process.pid}-{new_mark()}"
        self.path = self.path_of(record_name(rank, self.key))
        self.facts_path = self.path_of(facts_name(rank, self.key, new_mark()))
        # Everybody may read it: the daemon's sensor has no rights over other users' files.
        descriptor = os.open(self.path, _CREATE, 0o644)
        try:
            os.fchmod(descriptor, 0o644)
            os.posix_fallocate(descriptor, 0, RECORD_BYTES)
            self._inode = _inode(os.fstat(descriptor))
        except OSError:
            os.unlink(self.path)
            raise
        finally:
            os.close(descriptor)

    def write(self, image: bytes) -> None:
        """Write the whole record. Raise FileNotFoundError when the file is no longer the one we made, or not ours any
        more, OSError when it cannot be written."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError:
            raise FileNotFoundError(f"{self.path} was given to another user") from None
        try:
            if _inode(os.fstat(descriptor)) != self._inode or self._is_of_another(descriptor):
                raise FileNotFoundError(f"{self.path} was replaced")
            written = os.pwrite(descriptor, image, 0)
        finally:
            os.close(descriptor)
        if written != len(image):
            raise OSError(f"only {written} of {len(image)} bytes fit into {self.path}")

    def _is_of_another(self, descriptor: int) -> bool:
        """Disks reuse inode numbers at once: the same number does not prove the same file."""
        names = writer_of(os.pread(descriptor, 64, 0))
        return names is not None and names != self._process[:3]

    def path_of(self, name: str) -> str:
        """Return the path of a file of this name beside the record."""
        return os.path.join(self.directory, name)

    def remove(self) -> None:
        """Remove the record and the facts beside it."""
        for path in (self.path, self.facts_path):
            try:
                os.unlink(path)
            except OSError:
                pass


def write_private(path: str, data: bytes) -> None:
    """Write a file that other users may not read, atomically: the directory's group may where the directory hands its
    group down (set-group-id) and is no stranger's, else only the owner and who has CAP_DAC_READ_SEARCH. Raise
    OSError."""
    directory = os.path.dirname(path)
    group_reads = os.stat(directory).st_mode & stat.S_ISGID and trusted_owner(directory) is not None
    mode = 0o640 if group_reads else 0o600
    # Neither of the two names can be told from the other: who watches the directory cannot take the second one either.
    temporary = os.path.join(directory, temporary_name(os.path.basename(path), new_mark()))
    descriptor = os.open(temporary, _CREATE, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)


def remove_stale_files(directory: str) -> None:
    """Where no daemon tidies up, remove what our user's processes left STALE_SECONDS ago. A live process writes its
    record several times a second."""
    oldest = time.time() - STALE_SECONDS
    with os.scandir(directory) as entries:
        for entry in itertools.islice(entries, STALE_ENTRIES):
            if parse_own_name(entry.name) is not None:
                status = entry.stat(follow_symlinks=False)
                if status.st_uid == os.geteuid() and status.st_mtime < oldest and stat.S_ISREG(status.st_mode):
                    os.unlink(entry.path)


def _inode(status: os.stat_result) -> "tuple[int, int]":
    return status.st_dev, status.st_ino
