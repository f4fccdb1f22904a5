"""GPUs that somebody wants for himself: a reset, a change of MIG or a new driver fails while any process has a device
open. A file in the daemon's run directory says until when nothing of ours opens one; it ends by itself, by the clock of
this boot, which nobody sets."""

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from stallwatch.encoding import json_of
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.node.atomic_file import write_atomically

FILE = "gpus-released.json"
LONGEST_SECONDS = 24 * 3600.0  # who forgets it is watched again tomorrow
_MOST_BYTES = 4096
_DEVICES = "/dev/nvidia"


class Release(msgspec.Struct, frozen=True):
    """Until when GPUs are left alone, on whose word."""

    until_boottime_seconds: float
    until: str  # the same for people
    by: str


class Released(NamedTuple):
    """Why GPUs are left alone now."""

    reason: str  # a sentence
    seconds: float  # that are left


class Holder(NamedTuple):
    """A process that has a GPU's device open."""

    pid: int
    name: str
    is_ours: bool


_RELEASE = msgspec.json.Decoder(Release)


def released(file: str | Path, boottime: float | None = None) -> Released | None:
    """Return that GPUs are to be left alone, None where they are not: what cannot be read says nothing."""
    if not str(file):
        return None
    try:
        release = _RELEASE.decode(_read(file))
    except (OSError, *NOT_JSON):
        return None
    left = release.until_boottime_seconds - (_boottime() if boottime is None else boottime)
    if not 0 < left <= LONGEST_SECONDS:
        return None
    end = "`stallwatch release-gpus --for 0` ends it"
    return Released(f"left alone until {release.until} for {release.by}; {end}", left)


def release(file: Path, seconds: float, until: str, by: str) -> None:
    """Have GPUs left alone for `seconds`; 0 ends it. Raise OSError."""
    if seconds <= 0:
        file.unlink(missing_ok=True)
        return
    said = json_of(Release(_boottime() + min(seconds, LONGEST_SECONDS), until, by))
    # The folder is the daemon's, and the privileged side, which reads it, is another user.
    write_atomically(file, said, mode=0o644, makes_folder=False)


def holders(root: Path = Path("/proc")) -> Iterator[Holder]:
    """Yield who has a GPU's device open, of the processes that we may look into."""
    for folder in root.iterdir():
        if folder.name.isdigit() and _holds_gpu(folder):
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                name = (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
                yield Holder(int(folder.name), name, any(word.startswith(b"stallwatch.") for word in words))


def _read(file: str | Path) -> bytes:
    """The beginning of a regular file, "" of anything else: it may lie in a folder of another user. Raise OSError."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MOST_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    finally:
        os.close(descriptor)


def _holds_gpu(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        for number in os.listdir(folder / "fd"):
            with contextlib.suppress(OSError):
                if os.readlink(folder / "fd" / number).startswith(_DEVICES):
                    return True
    return False


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
