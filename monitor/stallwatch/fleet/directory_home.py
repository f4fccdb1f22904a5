"""Whether the directory at a path is the one that was there before: a share that is unmounted leaves its mount
point behind, on which a node would meet nobody and say that all is well."""

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Final, NamedTuple

from stallwatch.fleet.place import PlaceProblem
from stallwatch.fleet.shared_files import create_file, read_or_nothing

HOME: Final = ".home"  # holds the directory's own name, made once by who comes first


class SharedRoot(NamedTuple):
    """The directory that was found at a path."""

    name: str  # that stands in it
    device: int
    inode: int


def found_home(root: Path, before: SharedRoot | None) -> SharedRoot:
    """Return the directory that is there, which is given a name where it has none. Raise PlaceProblem where it is not
    this user's alone, or another than `before`; OSError."""
    status = _own(root)
    here = (status.st_dev, status.st_ino)
    name = _name_in(root)
    if not name and (before is None or here == (before.device, before.inode)):
        name = before.name if before is not None else secrets.token_hex(8)
        with contextlib.suppress(FileExistsError):
            create_file(root / HOME, name.encode())
        name = _name_in(root)  # another may have been faster
    if before is not None and before.name != name:
        raise PlaceProblem(
            f"{root}: another directory stands there than before",
            "Is it mounted? The one before is taken again when it is back; where this one is to take its place, "
            "restart the daemon.",
        )
    return SharedRoot(name, *here)


def same_home(root: Path, before: SharedRoot) -> SharedRoot:
    """As `found_home`, for who comes often: of a directory that has not changed only its state is asked for."""
    status = _own(root)
    return before if (status.st_dev, status.st_ino) == (before.device, before.inode) else found_home(root, before)


def _name_in(root: Path) -> str:
    return read_or_nothing(root / HOME)[:64].decode("utf-8", "replace")


def _own(root: Path) -> os.stat_result:
    status = os.stat(root)
    mode, user = stat.S_IMODE(status.st_mode), os.geteuid()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == user and mode == 0o700:
        return status
    raise PlaceProblem(
        f"{root}: who may write there could speak for any node: it must be a directory of uid {user} with mode 0700, "
        f"and is of uid {status.st_uid} with mode {mode:04o}",
        f"Is it mounted? Else install -d -o '#{user}' -m 0700 {root}; the daemons of all nodes run by that uid.",
    )
