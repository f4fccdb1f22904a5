"""Which file systems ranks write to, and what is left on them: a checkpoint that no longer fits ends a job hours later.

Files are those that a rank has open for writing at a look, and its working directory; a file system that was written to
is remembered as long as the rank lives. A dead file server holds a thread of ours for ever: it is said, and that user's
ranks are not asked about again until it answers. What one user mounts holds nobody else's.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from stallwatch.formats.outside_text import path_bytes, path_of
from stallwatch.model.snapshot import DiskSample
from stallwatch.node.aside import OneCallAtATime
from stallwatch.sensors.sensor import LATE_SECONDS

LOOK_SECONDS = 10.0
_MOST_FILES = 512  # of one rank: with its loaders' shared memory it has thousands open
_MOST_DISKS = 8
_MOST_THREADS = 64  # one a user
_NO_DISKS = ("/dev/", "/proc/", "/sys/", "/memfd:")  # shared memory has its own warning
_Identity = tuple[int, int]  # pid and start ticks


class RankDisks:
    """One look at a time of each user, in a thread of its own; what it brought is fetched, never waited for."""

    def __init__(self, proc: str, monotonic_ns: Callable[[], int]) -> None:
        self._proc = proc
        self._now_ns = monotonic_ns
        self._known: dict[_Identity, dict[int, DiskSample]] = {}  # by device number
        self._under_way: dict[int, OneCallAtATime[None]] = {}  # by user
        self._due_ns = 0

    def look(self, ranks: Iterable[tuple[_Identity, int]]) -> None:
        """Given ranks and their users, begin a look at those of each user, when one is due and none is under way."""
        now_ns = self._now_ns()
        if now_ns < self._due_ns:
            return
        by_user: dict[int, list[_Identity]] = {}
        for identity, uid in ranks:
            by_user.setdefault(uid, []).append(identity)
        self._due_ns = now_ns + int(LOOK_SECONDS * 1e9)
        self._under_way = {uid: one for uid, one in self._under_way.items() if one.silent_seconds is not None}
        self._known = {identity: self._known.get(identity, {}) for own in by_user.values() for identity in own}
        for uid, own in by_user.items():
            if uid not in self._under_way and len(self._under_way) < _MOST_THREADS:
                self._under_way[uid] = OneCallAtATime(lambda: self._now_ns() / 1e9)
                self._under_way[uid].begin(partial(self._look, tuple(own)))

    def of(self, pid: int, start_ticks: int) -> tuple[DiskSample, ...]:
        """Return the file systems of a rank as of the last look."""
        return tuple(self._known.get((pid, start_ticks), {}).values())

    def problem(self) -> str:
        """A sentence when a look has not come back; "" otherwise."""
        seconds = max((one.silent_seconds or 0.0 for one in self._under_way.values()), default=0.0)
        return f"a file system of a rank has not answered for {seconds:.0f} s" if seconds > LATE_SECONDS else ""

    def _look(self, ranks: tuple[_Identity, ...]) -> None:
        for identity in ranks:
            before = self._known.get(identity, {})
            with contextlib.suppress(Exception):  # of one rank: the others' are looked at all the same
                self._known[identity] = look_at(identity[0], before, self._now_ns(), self._proc)


def look_at(pid: int, before: dict[int, DiskSample], now_ns: int, proc: str = "/proc") -> dict[int, DiskSample]:
    """Return the file systems that a process writes to, by device; what is not ours to read is left out."""
    seen: dict[int, tuple[str, int]] = {device: (disk.path, disk.largest_file_bytes) for device, disk in before.items()}
    for device, raw, size in _written(pid, proc):
        folder = path_of(raw)
        path, largest = seen.get(device, (folder, 0))
        if device in seen or len(seen) < _MOST_DISKS:
            # The folder of the largest file is where a person looks for the checkpoint.
            seen[device] = (folder if size > largest else path, max(size, largest))
    disks = {}
    for device, (folder, largest) in seen.items():
        try:
            place = os.fsencode(f"{proc}/{pid}/root") + path_bytes(folder)
            there, space = os.stat(place), os.statvfs(place)
        except OSError:
            continue
        if there.st_dev == device and space.f_blocks:
            disks[device] = DiskSample(
                path=folder,
                free_bytes=space.f_bavail * space.f_frsize,
                size_bytes=space.f_blocks * space.f_frsize,
                largest_file_bytes=largest,
                at_ns=now_ns,
            )
    return disks


def _written(pid: int, proc: str) -> Iterator[tuple[int, str, int]]:
    """(device, folder, size) of the working directory and of files open for writing."""
    try:
        folder = os.readlink(f"{proc}/{pid}/cwd")
        yield os.stat(f"{proc}/{pid}/cwd").st_dev, folder, 0
        files = os.open(f"{proc}/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        # By the open folder: a rank has hundreds, nearly all of them sockets.
        for number in os.listdir(files)[:_MOST_FILES]:
            try:
                path = os.readlink(number, dir_fd=files)
                if not path.startswith("/") or path.startswith(_NO_DISKS) or path.endswith(" (deleted)"):
                    continue
                file = os.stat(number, dir_fd=files)
                with open(f"{proc}/{pid}/fdinfo/{number}", encoding="ascii") as info:
                    flags = next((int(line.split()[1], 8) for line in info if line.startswith("flags:")), 0)
            except (OSError, ValueError, IndexError):
                continue
            if stat.S_ISREG(file.st_mode) and flags & os.O_ACCMODE != os.O_RDONLY:
                yield file.st_dev, os.path.dirname(path), file.st_size
    except OSError:
        return
    finally:
        os.close(files)
