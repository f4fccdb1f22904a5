"""Whether another user may read a file, by the rules of the file system: for a service that may read everything
(CAP_DAC_READ_SEARCH) and must not pass on what its subject could not read."""

import errno
import os
import stat
from typing import NamedTuple

from stallwatch.node import untrusted

_ACCESS_LIST = "system.posix_acl_access"


class Person(NamedTuple):
    """Whose rights count: ids as they are outside of any user namespace."""

    uid: int
    groups: frozenset[int]  # the primary one too

    def may(self, wanted: int, status: os.stat_result) -> bool:
        """Whether the mode grants `wanted` (R_OK, X_OK or both). Root may; who has a class has no other's rights."""
        if self.uid == 0:
            return True
        shift = 6 if status.st_uid == self.uid else 3 if status.st_gid in self.groups else 0
        return (status.st_mode >> shift) & wanted == wanted


def check_open_file(person: Person, name: str, descriptor: int) -> None:
    """Raise FileRefused unless `person` may read this file, wherever it lies: for one that his process has open."""
    _check(person, descriptor, name, os.R_OK)


def check_file(person: Person, root: int, name: str, descriptor: int) -> None:
    """Given a (container's) root directory and a file that was found in it, raise Refused unless `person` may read the
    file and search every directory above the place where it really lies."""
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    found = os.fstat(descriptor)
    parts = [part for part in path.split("/") if part]
    directory = os.dup(root)
    try:
        for number, part in enumerate(parts):
            _check(person, directory, name, os.X_OK)
            last = number == len(parts) - 1
            inner = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            os.close(directory)
            directory = inner
            if not last and not stat.S_ISDIR(os.fstat(directory).st_mode):
                raise untrusted.FileRefused(f"{name}: its place changes while it is looked at")
        # The path was the kernel's word for a moment, and of its own root: the same file must be at its end.
        if not os.path.samestat(found, os.fstat(directory)):
            raise untrusted.FileRefused(f"{name}: where it lies cannot be told")
    finally:
        os.close(directory)
    _check(person, descriptor, name, os.R_OK)


def _check(person: Person, descriptor: int, name: str, wanted: int) -> None:
    if person.uid == 0:
        return
    # An access list may take from a user what the mode grants; who has one is not guessed about.
    try:
        os.getxattr(f"/proc/self/fd/{descriptor}", _ACCESS_LIST)
        listed = True
    except OSError as error:
        listed = error.errno not in (errno.ENODATA, errno.ENOTSUP)
    if listed or not person.may(wanted, os.fstat(descriptor)):
        raise untrusted.FileRefused(f"{name}: not readable for the rank's user")
