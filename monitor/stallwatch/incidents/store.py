"""Incidents on disk: one folder each, with incident.json beside the evidence; the oldest go when there is no room."""

import errno
import logging
import os
import re
import shutil
import stat
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from stallwatch.bundle.writer import append_to, as_json
from stallwatch.captures.allowance import size_of
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.incidents.incident_names import is_incident_id, ordinal_of
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import JobKey
from stallwatch.node.atomic_file import write_atomically

_INCIDENT = msgspec.json.Decoder(Incident)

FILE = "incident.json"
SILENCES = "silences.json"  # beside the incidents: what people have silenced
_MOST_OF_SILENCES = 8 << 20
MOST_OF_OWNER = 500
# At once: while the disk's child removes, it takes nothing else, and the loop waits 2 s for it. A hundred bundles on a
# busy node took longer, and the verdict that came meanwhile was not written.
MOST_REMOVED = 16
_LOOK = re.compile(r"(?:process|stacks|heartbeat|flight_recorder[^-]*)-(\d{1,6})\.\w+")
_MAXIMUM_FILE_BYTES = 64 << 20  # stack trees of large jobs included

log = logging.getLogger(__name__)


class Left(msgspec.Struct, frozen=True):
    """What a daemon before this one left."""

    open: tuple[tuple[Incident, int], ...]  # (incident, looks taken) of those that it did not resolve
    ordinals: tuple[tuple[JobKey, int], ...]  # the highest used per life of a job
    past: tuple[Incident, ...]  # the newest others, newest first
    silences: bytes = b""  # of loop.kept_silences


class IncidentStore:
    """The folder `incidents` below the state directory, 0700: stacks and logs of other people's jobs."""

    def __init__(self, state_directory: Path) -> None:
        self.folder = state_directory / "incidents"

    def prepare(self) -> None:
        """Create the folder. Raise OSError, also when it is there and somebody else's."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.folder))

    def save(self, incident: Incident) -> None:
        """Write incident.json, whole or not at all. Raise OSError."""
        self.write(self.folder / incident.incident_id / FILE, as_json(incident))

    def write(self, path: Path, data: bytes) -> None:
        """Write a file of an incident, whole or not at all. Raise OSError."""
        write_atomically(path, data)

    def append(self, path: Path, data: bytes) -> None:
        """Add to a file of an incident. Raise OSError."""
        append_to(path, data)

    def problem(self) -> str:
        """A sentence while the disk does not answer."""
        return ""

    def be_ready(self) -> None:
        """Nothing is to be started: calls are made here."""

    def rest(self) -> None:
        """Nothing is to be ended."""

    def left(self, past: int) -> Left:
        """Return what a daemon before this one left, and up to `past` incidents that it resolved."""
        left_open = self.left_open()
        open_ids = {incident.incident_id for incident, _ in left_open}
        newest = tuple(incident for incident in self.newest(past) if incident.incident_id not in open_ids)
        return Left(left_open, self.ordinals(), newest, self._silences())

    def _silences(self) -> bytes:
        try:
            with (self.folder / SILENCES).open("rb") as file:
                return file.read(_MOST_OF_SILENCES)
        except OSError:
            return b""

    def load(self, incident_id: str) -> Incident | None:
        """Return an incident by its id, None where there is none or it cannot be read."""
        return self._read(self.folder / incident_id) if is_incident_id(incident_id) else None

    def newest(self, limit: int) -> tuple[Incident, ...]:
        """Return up to `limit` incidents, newest first, of those that can be read."""
        found: list[Incident] = []
        for folder in sorted(self._folders(), key=_modified, reverse=True):
            if len(found) >= limit:
                break
            incident = self._read(folder)
            if incident is not None:
                found.append(incident)
        return tuple(sorted(found, key=lambda incident: incident.opened_wall_ns, reverse=True))

    def left_open(self) -> tuple[tuple[Incident, int], ...]:
        """Return (incident, looks taken) of those that a daemon before this one did not resolve.

        A mere suspicion is not one: its evidence is incomplete, and a hang that lasts is suspected again at once.
        """
        left = []
        for folder in self._folders():
            incident = self._read(folder)
            if incident is None or incident.is_over:
                continue
            # Of health and pace there is no report: findings are the whole of it.
            if incident.state == "suspect" or (incident.report is None and incident.severity == "none"):
                self.discard(incident.incident_id)
                continue
            left.append((incident, looks_in(folder)))
        return tuple(left)

    def ordinals(self) -> tuple[tuple[JobKey, int], ...]:
        """Return the highest ordinal used per life of a job."""
        highest: dict[JobKey, int] = {}
        for folder in self._folders():
            incident = self._read(folder)
            if incident is not None:
                highest[incident.job] = max(highest.get(incident.job, 0), ordinal_of(incident.incident_id))
        return tuple(highest.items())

    def discard(self, incident_id: str) -> None:
        """Remove an incident and its evidence."""
        if is_incident_id(incident_id):
            shutil.rmtree(self.folder / incident_id, ignore_errors=True)

    def take_in(self, bundle: Path) -> None:
        """Copy a bundle that was kept elsewhere to its place here. Raise OSError; it may be half there then."""
        if is_incident_id(bundle.name):
            shutil.copytree(bundle, self.folder / bundle.name, symlinks=True, dirs_exist_ok=True)

    def take_in_all(self, spare: Path) -> tuple[str, ...]:
        """Move the bundles here that a daemon before this one left in a spare folder; return their names."""
        left = IncidentStore(spare)
        names = []
        for folder in left._folders():
            self.take_in(folder)
            if (incident := self._read(self.folder / folder.name)) is not None:
                self.save(replace(incident, bundle=str(self.folder / folder.name)))
            left.discard(folder.name)
            names.append(folder.name)
        return tuple(names)

    def retain(self, keep_bytes: int, oldest_wall_ns: int, keep: Collection[str]) -> tuple[str, ...]:
        """Remove folders older than `oldest_wall_ns`, of each user the oldest of more than MOST_OF_OWNER, then, until
        all take at most `keep_bytes`, the oldest of whose take the most: what one user causes is not the end of
        another's evidence, and many small ones take inodes and time.

        Never one of `keep`, and MOST_REMOVED in all: who gets so many names asks again. Return the names of what went.
        """
        folders = [_Folder(folder, _modified(folder), size_of(folder)) for folder in self._folders()]
        gone = [one for one in folders if one.modified_ns < oldest_wall_ns and one.path.name not in keep]
        kept = sorted((one for one in folders if one not in gone), key=lambda one: (one.modified_ns, one.path.name))
        total = sum(one.size for one in kept)
        if total > keep_bytes or len(kept) > MOST_OF_OWNER:
            owners = {one: self._owner(one.path) for one in kept}
            for one in _too_many(owners, keep):
                gone.append(one)
                del owners[one]
                total -= one.size
            while total > keep_bytes and (first := _oldest_of_most(owners, keep)) is not None:
                gone.append(first)
                del owners[first]
                total -= first.size
        removed = tuple(one.path.name for one in gone[:MOST_REMOVED])
        for name in removed:
            self.discard(name)
        return removed

    def _owner(self, folder: Path) -> str:
        incident = self._read(folder)
        return incident.job.owner if incident is not None else ""

    def _folders(self) -> Iterator[Path]:
        try:
            entries = list(self.folder.iterdir())
        except OSError:
            return
        yield from (e for e in entries if is_incident_id(e.name) and e.is_dir() and not e.is_symlink())

    def _read(self, folder: Path) -> Incident | None:
        path = folder / FILE
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MAXIMUM_FILE_BYTES:
                log.warning("incident unreadable path=%s reason=no regular file of a size that we write", path)
                return None
            return _INCIDENT.decode(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, *NOT_JSON) as error:
            log.warning("incident unreadable path=%s reason=%s", path, error)
            return None


class _Folder(NamedTuple):
    path: Path
    modified_ns: int
    size: int


def _too_many(owners: dict[_Folder, str], keep: Collection[str]) -> list[_Folder]:
    """Given whose each folder is, oldest first, return those that their owner has too many of."""
    over = Counter(owners.values())
    too_many = []
    for folder, owner in owners.items():
        if over[owner] > MOST_OF_OWNER and folder.path.name not in keep:
            over[owner] -= 1
            too_many.append(folder)
    return too_many


def _oldest_of_most(owners: dict[_Folder, str], keep: Collection[str]) -> _Folder | None:
    """Given whose each folder is, oldest first, return the one to remove next; None where none may go."""
    sizes: Counter[str] = Counter()
    for folder, owner in owners.items():
        sizes[owner] += folder.size
    may_go = [(folder, owner) for folder, owner in owners.items() if folder.path.name not in keep]
    most = max((sizes[owner] for _, owner in may_go), default=0)
    return next((folder for folder, owner in may_go if sizes[owner] == most), None)


def looks_in(bundle: Path) -> int:
    """Return the highest look whose files are in a bundle: those of look n end in -n, of the first in nothing."""
    matches = (_LOOK.fullmatch(path.name) for path in bundle.glob("ranks/*/*"))
    return max((int(match[1]) for match in matches if match), default=1)


def _modified(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0
