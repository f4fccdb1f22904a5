"""Reads every hook's record in the rank directories; a bad file costs one message and hides nothing else."""

import contextlib
import os
import random
import stat
import time
from collections.abc import Sequence
from itertools import islice, zip_longest
from pathlib import Path

import msgspec

from stallwatch.errors import Denied
from stallwatch.hook import layout
from stallwatch.model.snapshot import Heartbeat
from stallwatch.node import rank_files, untrusted
from stallwatch.node.heartbeat_file import RECORD_LIMIT_BYTES, prepare, to_heartbeat
from stallwatch.sensors.group_labels import GroupLabels
from stallwatch.sensors.rank_facts import RankFacts

# Somebody who fills the directory with names must not fill our time: real nodes have tens of ranks. Nor may he hide
# others' records behind his: what is read is shared out among the owners.
_MOST_RECORDS = 4096
_MOST_LOOKED_AT = 1 << 16  # names whose owner is asked for; some microseconds each
_SHOWN_PROBLEMS = 3
_FACTS = layout.facts_ends(0, 0)[1]
_TORN_TRIES = 3
_TORN_READS = 5


class HeartbeatLook(msgspec.Struct, frozen=True):
    heartbeats: tuple[Heartbeat, ...]
    up: bool
    reason: str
    errors_total: int
    full: str = ""  # a sentence where a directory takes no more files: ranks may have none for that reason


class _OpenRecord:
    """A record that stays open between reads; its name is looked at again each time, for the hook may re-create it."""

    def __init__(self, descriptor: int, status: os.stat_result) -> None:
        self.descriptor = descriptor
        self.uid = status.st_uid
        self.identity = (status.st_dev, status.st_ino)
        self.rejected = False
        self.last: Heartbeat | None = None
        self.torn = 0  # reads in a row that met a writer in mid-write

    def close(self) -> None:
        os.close(self.descriptor)


class HeartbeatScan:
    """The records of all rank directories of the node."""

    def __init__(self, directories: tuple[str, ...]) -> None:
        self._directories = tuple(Path(directory) for directory in directories)
        self._records: dict[str, _OpenRecord] = {}
        self._problems: dict[str, str] = {}  # path to sentence, while the file stays bad
        self._errors_total = 0
        self._prepared: set[Path] = set()
        self._facts = RankFacts()
        self._labels = GroupLabels()
        self._chance = random.Random(0)  # noqa: S311 - a fair turn, no secret

    def read(self) -> HeartbeatLook:
        """Return every record that can be read. Down only when no directory can be read at all."""
        problem = refused = self._prepare()
        found: list[Heartbeat] = []
        names: set[str] = set()
        facts: dict[str, list[str]] = {}
        readable, crowd, full = 0, "", ""
        for directory in self._directories:
            try:
                descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError as error:
                problem = problem or f"{directory}: {error.strerror}"
                continue
            readable += 1
            try:
                listed = os.listdir(descriptor)
                full = full or _fullness(directory, os.fstatvfs(descriptor))
                # Hooks write no other names; whatever else ends so is nobody's record, and not opened.
                _note_facts(facts, directory, listed)
                records = sorted(name for name in listed if layout.parse_record_name(name) is not None)
                if len(records) > _MOST_RECORDS:
                    crowd = f"{directory} holds {len(records)} records, of which {_MOST_RECORDS} are read at a time"
                    records = self._chosen(descriptor, directory, records)
                for name in records:
                    names.add(path := f"{directory}/{name}")
                    if (heartbeat := self._record(descriptor, name, path)) is not None:
                        found.append(heartbeat)
            finally:
                os.close(descriptor)
        self._forget(names)
        if not readable:
            return HeartbeatLook((), False, f"no rank directory can be read: {problem}", self._errors_total)
        now_ns = time.monotonic_ns()
        compared = self._labels.labelled(self._facts.compared(found, now_ns, facts), now_ns, facts)
        return HeartbeatLook(compared, True, self._reason(refused, crowd, full), self._errors_total, full)

    def reject(self, heartbeat: Heartbeat, sentence: str) -> None:
        """Note why a record that reads well is not believed; it is skipped until another file takes its name."""
        self._note(heartbeat.path, f"{os.path.basename(heartbeat.path)}: {sentence}")
        if (record := self._records.get(heartbeat.path)) is not None:
            record.rejected = True

    def remove(self, path: str) -> None:
        """Remove a record that was read, and what its process left beside it, all of a process that ended."""
        record = self._records.get(path)
        if record is not None:
            directory, name = os.path.split(path)
            rank_files.remove(Path(directory), name, record.identity, record.uid)

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
        return next((text for directory, text in problems if directory.is_dir() or not self._prepared), "")

    def _chosen(self, descriptor: int, directory: Path, names: list[str]) -> list[str]:
        """Return as many names as are read at a time, in turn of each owner; of an owner first what read well before,
        then others by chance, so that each has its day."""
        known = {name: None for name in names if self._is_good(f"{directory}/{name}")}
        others = [name for name in names if name not in known]
        self._chance.shuffle(others)
        of_owner: dict[int, list[str]] = {}
        for name in (*known, *others[:_MOST_LOOKED_AT]):
            with contextlib.suppress(OSError):
                uid = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_uid
                of_owner.setdefault(uid, []).append(name)
        turns = zip_longest(*of_owner.values())
        return list(islice((name for turn in turns for name in turn if name is not None), _MOST_RECORDS))

    def _is_good(self, path: str) -> bool:
        record = self._records.get(path)
        return record is not None and record.last is not None and not record.rejected

    def _record(self, directory: int, name: str, path: str) -> Heartbeat | None:
        try:
            record = self._open(directory, name, path)
            if record.rejected:
                return None
            record.last = self._decode(record, path)
        except FileNotFoundError:
            return None  # removed between listing and opening
        except (untrusted.Refused, layout.LayoutError, OSError) as error:
            self._note(path, _sentence(name, error))
            return None
        if record.torn < _TORN_READS:
            self._problems.pop(path, None)
        return record.last

    def _decode(self, record: _OpenRecord, path: str) -> Heartbeat | None:
        """A record is read again when it was met in mid-write. One that stays so (its writer was killed in it, or is
        stopped) keeps its last good value, and is complained of."""
        for _ in range(_TORN_TRIES):
            try:
                decoded = layout.decode(untrusted.read_bounded(record.descriptor, RECORD_LIMIT_BYTES))
            except layout.TornRecord as error:
                torn = error
                continue
            record.torn = 0
            return to_heartbeat(decoded, path, record.uid)
        record.torn += 1
        if record.torn >= _TORN_READS:
            self._note(path, _sentence(os.path.basename(path), torn))
        return record.last

    def _open(self, directory: int, name: str, path: str) -> _OpenRecord:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        known = self._records.get(path)
        if known is not None:
            if known.identity == (status.st_dev, status.st_ino) and stat.S_ISREG(status.st_mode):
                return known
            del self._records[path]
            known.close()
        descriptor = untrusted.open_regular(directory, name, RECORD_LIMIT_BYTES)
        record = self._records[path] = _OpenRecord(descriptor, os.fstat(descriptor))
        return record

    def _note(self, path: str, sentence: str) -> None:
        if self._problems.get(path) != sentence:
            self._problems[path] = sentence
            self._errors_total += 1

    def _forget(self, names: set[str]) -> None:
        for path in [path for path in self._records if path not in names]:
            self._records.pop(path).close()
        for path in [path for path in self._problems if path not in names]:
            del self._problems[path]

    def _reason(self, *problems: str) -> str:
        parts = [problem for problem in problems if problem]
        if self._problems:
            shown = sorted(self._problems.values())[:_SHOWN_PROBLEMS]
            more = len(self._problems) - len(shown)
            parts.append(f"{len(self._problems)} ignored: " + "; ".join(shown) + (f"; and {more} more" if more else ""))
        return "; ".join(parts)


def _fullness(directory: Path, room: os.statvfs_result) -> str:
    # A file system without a limit says 0 of 0.
    if room.f_blocks and room.f_bavail * room.f_frsize < layout.RECORD_BYTES:
        return f"{directory} has no room left: records and dumps are refused"
    if room.f_files and not room.f_favail:
        return f"{directory} has no inode left: records and dumps are refused"
    return ""


def _note_facts(facts: dict[str, list[str]], directory: Path, listed: Sequence[str]) -> None:
    for name in listed:
        if name.endswith(_FACTS) and (key := layout.parse_own_name(name)) is not None:
            facts.setdefault(f"{directory}/{layout.record_name(*key)}", []).append(name)


def _sentence(name: str, error: Exception) -> str:
    if isinstance(error, untrusted.Refused):
        return str(error)  # names the file itself
    return f"{name}: {error.strerror if isinstance(error, OSError) else error}"
