"""The rank directory, which belongs to others: which one it is, whose it is, who reads there, and how files are made in
it beside the record."""

import itertools
import os
import stat
import time
from collections.abc import Mapping
from typing import Optional

from stallwatch.hook.layout import (
    REQUESTS,
    new_mark,
    parse_own_name,
    temporary_name,
)

SERVICE_DIRECTORY = "/run/stallwatch/ranks"
FALLBACK_DIRECTORY = "/dev/shm/stallwatch"  # noqa: S108
STALE_SECONDS = 86_400.0
STALE_ENTRIES = 10_000  # of a directory that others may fill
CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


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


def write_private(path: str, data: bytes) -> None:
    """Write a file that other users may not read, atomically: the directory's group may where the directory hands its
    group down (set-group-id) and is no stranger's, else only the owner and who has CAP_DAC_READ_SEARCH. Raise
    OSError."""
    directory = os.path.dirname(path)
    group_reads = os.stat(directory).st_mode & stat.S_ISGID and trusted_owner(directory) is not None
    mode = 0o640 if group_reads else 0o600
    # Neither of the two names can be told from the other: who watches the directory cannot take the second one either.
    temporary = os.path.join(directory, temporary_name(os.path.basename(path), new_mark()))
    descriptor = os.open(temporary, CREATE, mode)
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
                _remove_if_stale(entry, oldest)


def _remove_if_stale(entry: "os.DirEntry[str]", oldest: float) -> None:
    try:
        status = entry.stat(follow_symlinks=False)
        if status.st_uid == os.geteuid() and status.st_mtime < oldest and stat.S_ISREG(status.st_mode):
            os.unlink(entry.path)
    except FileNotFoundError:  # its owner renamed it, or another rank tidies up as well
        pass
