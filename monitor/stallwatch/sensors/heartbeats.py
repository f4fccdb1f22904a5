"""Reads every hook's record in the rank directories; a bad file costs one message and hides nothing else."""

import os
import time
from pathlib import Path

import msgspec

from stallwatch.errors import Denied
from stallwatch.hook import layout
from stallwatch.model.snapshot import Heartbeat
from stallwatch.node import rank_files, untrusted
from stallwatch.node.capabilities import any_permitted
from stallwatch.node.heartbeat_file import (
    DEFAULT_DIRECTORIES,
    RECORD_LIMIT_BYTES,
    LayoutError,
    TornRecord,
    prepare,
    read_open,
)
from stallwatch.sensors.rank_facts import Differences, GroupLabels, PendingGroups, RememberedFacts
from stallwatch.sensors.record_names import Record, RecordNames

_SHOWN_PROBLEMS = 3
_TORN_TRIES = 3
_TORN_READS = 5
_TIDY_SHARE = 50  # of the time at most one part in so many


class HeartbeatLook(msgspec.Struct, frozen=True):
    """The records of one tick."""

    heartbeats: tuple[Heartbeat, ...]
    up: bool
    reason: str
    errors_total: int
    full: str = ""  # a sentence where a directory takes no more files: ranks may have none for that reason


def only_user(directories: tuple[str, ...]) -> int | None:
    """Given where hooks write, return whose ranks a daemon is for that somebody without rights has started for himself:
    in the directories that a node's users share his own, since he may look into no others'. None: everybody's."""
    shared = set(directories) == set(map(str, DEFAULT_DIRECTORIES))
    return None if os.geteuid() == 0 or not shared or any_permitted() else os.geteuid()


class HeartbeatScan:
    """The records of all rank directories of the node."""

    def __init__(self, directories: tuple[str, ...], user: int | None = None) -> None:
        """`user`: whose records alone count; None: everybody's."""
        self._directories = tuple(Path(directory) for directory in directories)
        self._names = {directory: RecordNames(str(directory), user) for directory in self._directories}
        self._names_of = {str(directory): names for directory, names in self._names.items()}
        # Paths of records that speak for ranks which are followed, as the reader of ranks knows them: these are read at
        # every look, whatever else their user leaves there, and only their facts are read.
        self.speaking: frozenset[str] = frozenset()
        self._problems: dict[str, str] = {}  # path to sentence, while the file stays bad
        self._errors_total = 0
        self._prepared: set[Path] = set()
        self._to_remove: dict[Path, dict[str, rank_files.Read]] = {}
        self._tidy_at = 0.0
        self._facts = RememberedFacts()
        self._labels = GroupLabels()

    def read(self) -> HeartbeatLook:
        """Return every record that can be read. Down only when no directory can be read at all."""
        problem = refused = self._prepare()
        found: list[Heartbeat] = []
        crowds: list[str] = []
        readable, full = 0, ""
        for directory in self._directories:
            names = self._names[directory]
            try:
                descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError as error:
                problem = problem or f"{directory}: {error.strerror}"
                continue
            readable += 1
            try:
                names.list(descriptor)
                full = full or _fullness(directory, os.fstatvfs(descriptor))
                for name, record in names.chosen(self.speaking):
                    heartbeat = self._record(descriptor, names, name, record, f"{directory}/{name}")
                    if heartbeat is not None:
                        found.append(heartbeat)
            except OSError as error:
                problem = problem or f"{directory}: {error.strerror}"
            finally:
                os.close(descriptor)
            crowds += names.crowds()
        self._forget_problems()
        if not readable:
            return HeartbeatLook((), False, f"no rank directory can be read: {problem}", self._errors_total)
        found.sort(key=lambda heartbeat: heartbeat.path)
        now_ns = time.monotonic_ns()
        speaking = [heartbeat for heartbeat in found if heartbeat.path in self.speaking]
        facts = {heartbeat.path: self._facts_of(heartbeat) for heartbeat in speaking}
        differing = self._facts.compared(speaking, now_ns, facts)
        pending = self._labels.labelled(speaking, now_ns, facts)
        heartbeats = tuple(_with_facts(one, differing.get(one.path), pending.get(one.path)) for one in found)
        reason = self._reason(refused, *crowds[:_SHOWN_PROBLEMS], full)
        return HeartbeatLook(heartbeats, True, reason, self._errors_total, full)

    def reject(self, heartbeat: Heartbeat, sentence: str) -> None:
        """Note why a record that reads well is not believed; it is skipped until another file takes its name."""
        self._note(heartbeat.path, f"{os.path.basename(heartbeat.path)}: {sentence}")
        if (record := self._find(heartbeat.path)) is not None:
            record.rejected = True
            record.close()

    def knows(self, path: str) -> bool:
        """Whether that path is a record that is read."""
        return self._find(path) is not None

    def remove(self, path: str) -> None:
        """Have a record that was read removed (`tidy`), and what its process left beside it, all of a process that
        ended."""
        record = self._find(path)
        if record is not None:
            directory, name = os.path.split(path)
            self._to_remove.setdefault(Path(directory), {})[name] = rank_files.Read(name, record.identity, record.uid)

    def tidy(self) -> None:
        """Remove what is to be removed. The directory is read through for it, which anybody may have filled: where that
        takes long it is done seldom."""
        if time.monotonic() < self._tidy_at or not self._to_remove:
            return
        # By what it takes of a core: a node that is busy takes its time with everything, and is tidied all the same.
        began = time.thread_time()
        for directory, records in self._to_remove.items():
            rank_files.remove(directory, tuple(records.values()))
        self._to_remove.clear()
        self._tidy_at = time.monotonic() + _TIDY_SHARE * (time.thread_time() - began)

    def close(self) -> None:
        """Close every record."""
        for names in self._names.values():
            names.close()

    def _find(self, path: str) -> Record | None:
        directory, name = os.path.split(path)
        names = self._names_of.get(directory)
        return None if names is None else names.find(name)

    def _facts_of(self, heartbeat: Heartbeat) -> tuple[str, ...]:
        directory, name = os.path.split(heartbeat.path)
        return self._names_of[directory].facts_of(name, heartbeat.uid)

    def _prepare(self) -> str:
        """Create what hooks need in the first directory that we may create, and our folder in every one that is there.
        A refusal is a reason to show, not to stop; it is no reason where another directory serves."""
        problems: list[tuple[Path, str]] = []
        self._prepared = {directory for directory in self._prepared if directory.is_dir()}
        for directory in self._directories:
            if directory in self._prepared or (self._prepared and not directory.is_dir()):
                continue
            try:
                prepare(directory)
            except Denied as error:
                problems.append((directory, f"{error}. {error.help}"))
            else:
                self._prepared.add(directory)
        there = (text for directory, text in problems if directory.is_dir())  # hooks are where one is
        return next(there, problems[0][1] if problems and not self._prepared else "")

    def _record(self, directory: int, names: RecordNames, name: str, record: Record, path: str) -> Heartbeat | None:
        """What a record says now. A file that has not changed is not read again, whether it was good or bad."""
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if (status.st_dev, status.st_ino) != record.identity or status.st_uid != record.uid:
                self._problems.pop(path, None)
                record = names.renew(name, status)
            if record.rejected:
                return None
            if record.is_unchanged(status):
                if record.torn:
                    self._torn(record, path)
                return record.last
            record.last = self._decode(self._open(directory, name, record, path), record, path)
        except FileNotFoundError:
            names.forget(name)  # removed since it was listed
            self._problems.pop(path, None)
            return None
        except (untrusted.FileRefused, LayoutError, OSError) as error:
            self._note(path, _sentence(name, error))
            record.last = None
            record.close()
            return None
        if record.torn < _TORN_READS:
            self._problems.pop(path, None)
        return record.last

    def _decode(self, descriptor: int, record: Record, path: str) -> Heartbeat | None:
        """A record is read again when it was met in mid-write. One that stays so (its writer was killed in it, or is
        stopped) keeps its last good value, and is complained of."""
        try:
            for _ in range(_TORN_TRIES):
                try:
                    heartbeat = read_open(descriptor, path, record.uid)
                except TornRecord as error:
                    record.complaint = _sentence(os.path.basename(path), error)
                    continue
                record.torn = 0
                return heartbeat
        finally:
            if descriptor != record.descriptor:
                os.close(descriptor)
        self._torn(record, path)
        return record.last

    def _torn(self, record: Record, path: str) -> None:
        record.torn += 1
        if record.torn >= _TORN_READS:
            self._note(path, record.complaint)

    def _open(self, directory: int, name: str, record: Record, path: str) -> int:
        """A record that speaks stays open between reads."""
        if record.descriptor is None:
            descriptor = untrusted.open_regular(directory, name, RECORD_LIMIT_BYTES)
            if path not in self.speaking:
                return descriptor
            record.descriptor = descriptor
        return record.descriptor

    def _note(self, path: str, sentence: str) -> None:
        if self._problems.get(path) != sentence:
            self._problems[path] = sentence
            self._errors_total += 1

    def _forget_problems(self) -> None:
        for path in [path for path in self._problems if not self.knows(path)]:
            del self._problems[path]

    def _reason(self, *problems: str) -> str:
        parts = [problem for problem in problems if problem]
        if self._problems:
            shown = sorted(self._problems.values())[:_SHOWN_PROBLEMS]
            more = len(self._problems) - len(shown)
            parts.append(f"{len(self._problems)} ignored: " + "; ".join(shown) + (f"; and {more} more" if more else ""))
        return "; ".join(parts)


def _with_facts(
    heartbeat: Heartbeat, differing: tuple[Differences, Differences] | None, pending: PendingGroups | None
) -> Heartbeat:
    if differing is None and pending is None:
        return heartbeat
    differs, untested = differing or ((), ())
    return msgspec.structs.replace(heartbeat, differs=differs, untested=untested, pending_groups=pending or ())


def _fullness(directory: Path, room: os.statvfs_result) -> str:
    # A file system without a limit says 0 of 0.
    if room.f_blocks and room.f_bavail * room.f_frsize < layout.RECORD_BYTES:
        return f"{directory} has no room left: records and dumps are refused"
    if room.f_files and not room.f_favail:
        return f"{directory} has no inode left: records and dumps are refused"
    return ""


def _sentence(name: str, error: Exception) -> str:
    if isinstance(error, untrusted.FileRefused):
        return str(error)  # names the file itself
    return f"{name}: {error.strerror if isinstance(error, OSError) else error}"
