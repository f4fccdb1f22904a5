"""What the facts of ranks add to their records: what differs between those of one job (versions, and the environment
that shapes communication), and the names of the groups in which they have operations pending.

Ranks are started from one environment; a variable that reaches only some of them, or a library of another version, is a
job that hangs or diverges later. Only what differs is passed on, so that snapshots stay small.
"""

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from stallwatch.formats.tested import newer_than_tested
from stallwatch.formats.tolerant import decode_json
from stallwatch.formats.unreadable import Unreadable
from stallwatch.model.rank_variables import is_alike_in_health
from stallwatch.model.snapshot import GroupCounter, Heartbeat
from stallwatch.node import rank_files, untrusted

_LIMIT_BYTES = 256 << 10
_AGAIN_NS = 60_000_000_000  # facts are written anew when torch is loaded: a rank's are looked at once a minute
_MOST_READ_OF_USER = 16  # in one look: what somebody writes there costs the others no time
_MOST_NAMES = 5
_TEXT_CHARACTERS = 80
_LONGEST_NAME = 100  # characters; the hook's own are shorter
_FIRST_WAIT_NS = 1_000_000_000
_LONGEST_WAIT_NS = 60_000_000_000


class Facts(msgspec.Struct, frozen=True):
    """What a rank's hook wrote down once."""

    environment: dict[str, str] = {}
    versions: dict[str, str | None] = {}
    process_groups: dict[str, str] = {}  # "nccl 3" to "mesh_tp 1a2b3c4d"


FactsNames = Mapping[str, Sequence[str]]  # by record's path, the names of files that may be its facts
Stamp = tuple[tuple[str, int, int, int, int], ...]
Differences = tuple[tuple[str, str], ...]
PendingGroups = tuple[tuple[str, int, str], ...]  # as Heartbeat has them
_Job = tuple[int, str, str]  # user, name, epoch
_Values = dict[str, dict[str, str]]  # by path of a record: its facts by name
_Compared = dict[str, tuple[Differences, Differences]]


class RememberedFacts:
    """Remembers each record's facts by the identity of its process."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], _Kept] = {}
        self._left: dict[int, int] = {}  # of this look, by user: how many files are read yet
        self._compared: dict[_Job, tuple[_Values, _Compared]] = {}  # facts of a job's ranks, and what that came to

    def compared(
        self, heartbeats: Sequence[Heartbeat], now_ns: int, names: FactsNames | None = None
    ) -> dict[str, tuple[Differences, Differences]]:
        """Return by path of a record its values of the names that differ within its job here, and its versions that are
        newer than the tested ones; nothing of one that has neither."""
        live = {(beat.path, beat.start_ticks) for beat in heartbeats}
        self._known = {key: kept for key, kept in self._known.items() if key in live}
        self._left.clear()
        jobs: defaultdict[_Job, list[Heartbeat]] = defaultdict(list)
        for beat in heartbeats:
            if not (beat.is_child or beat.ended):
                jobs[beat.uid, beat.training_job, beat.epoch].append(beat)
        before, self._compared = self._compared, {}
        for job, beats in jobs.items():
            values = {beat.path: self._of(beat, now_ns, names) for beat in beats}
            known = before.get(job)
            # Facts change once in a job's life, and are asked for at each look.
            self._compared[job] = known if known is not None and known[0] == values else (values, _compared(values))
        return {path: found for _, of_job in self._compared.values() for path, found in of_job.items()}

    def _of(self, beat: Heartbeat, now_ns: int, names: FactsNames | None) -> dict[str, str]:
        kept = self._known.setdefault((beat.path, beat.start_ticks), _Kept())
        left = self._left.setdefault(beat.uid, _MOST_READ_OF_USER)
        if (kept.read_ns is None or now_ns - kept.read_ns >= _AGAIN_NS or not kept.values) and left > 0:
            record, of_facts = Path(beat.path), None if names is None else names.get(beat.path, ())
            stamp = stamp_of(record, of_facts)
            if stamp is None or stamp != kept.stamp:
                self._left[beat.uid] = left - 1
                kept.stamp = stamp
                kept.values = _read(record, beat.uid, of_facts) or kept.values
            kept.read_ns = now_ns
        return kept.values


class _Kept:
    """What a record's facts said when they were read, and which file that was: the same is not read again."""

    def __init__(self) -> None:
        self.read_ns: int | None = None
        self.stamp: Stamp | None = None
        self.values: dict[str, str] = {}


def _compared(values: _Values) -> _Compared:
    """Of one job; nothing of a record that has neither differences nor newer versions."""
    differences = differing(values) if len(values) > 1 else {}
    both = {path: (differences.get(path, ()), untested(of_rank)) for path, of_rank in values.items()}
    return {path: found for path, found in both.items() if any(found)}


def differing(values: _Values) -> dict[str, Differences]:
    """Given each record's values by name, return those of the names in which records with facts differ.

    A variable that is missing on some is a difference, a library that only some have loaded is none.
    """
    known = {path: of_rank for path, of_rank in values.items() if of_rank}
    names = sorted({name for of_rank in known.values() for name in of_rank})
    unlike = []
    for name in names:
        is_variable = is_alike_in_health(name)
        found = {of_rank.get(name) for of_rank in known.values() if is_variable or name in of_rank}
        if len(found) > 1:
            unlike.append(name)
    return {
        path: tuple((name, of_rank.get(name, "not set")[:_TEXT_CHARACTERS]) for name in unlike[:_MOST_NAMES])
        for path, of_rank in known.items()
        if unlike
    }


def untested(values: Mapping[str, str]) -> Differences:
    """Given a record's values by name, return the libraries that record operations, and their versions, of which newer
    ones than any that was tried."""
    said = (("torch", values.get("version of torch", "")), ("NCCL", values.get("version of nccl", "")))
    return tuple((what, version[:_TEXT_CHARACTERS]) for what, version in said if newer_than_tested(what, version))


def stamp_of(record: Path, names: Iterable[str] | None) -> Stamp | None:
    """Given a record's path and the names of files that may be its facts, return what tells these files from others and
    from older ones; None where nobody knows the names. Facts are written whole and renamed into place: the same file
    says the same."""
    if names is None:
        return None
    found = []
    for name in names:
        with contextlib.suppress(OSError):
            status = os.stat(record.with_name(name), follow_symlinks=False)
            found.append((name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return tuple(found)


def read_facts(record: Path, uid: int, names: Iterable[str] | None = None) -> Facts | None:
    """Given a record's path and owner, return its process' facts; None where there are none, or not its rank's own.
    `names`: those of its directory that may be they, where that is known."""
    try:
        facts: Facts = decode_json(rank_files.read_facts(record, uid, _LIMIT_BYTES, names), Facts)
    except (OSError, untrusted.FileRefused, Unreadable):
        return None
    return facts


def _read(record: Path, uid: int, names: Iterable[str] | None) -> dict[str, str]:
    """Values by name; none where there are no facts."""
    if (facts := read_facts(record, uid, names)) is None:
        return {}
    variables = {name: value for name, value in facts.environment.items() if is_alike_in_health(name)}
    return {**{f"version of {name}": version for name, version in facts.versions.items() if version}, **variables}


class _Names:
    """Names of one process' groups, and when to ask for those that are missing."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.wait_ns = _FIRST_WAIT_NS
        self.stamp: Stamp | None = None  # of the facts that said so
        self.again_ns = 0


class GroupLabels:
    """Remembers the names that hooks know of groups: the same on every rank."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], _Names] = {}  # by record and start of its process

    def labelled(
        self, heartbeats: Sequence[Heartbeat], now_ns: int, names: FactsNames | None = None
    ) -> dict[str, PendingGroups]:
        """Return the names of the groups in which each record's rank has operations pending, by its path; a group
        without one is left out."""
        live = {(beat.path, beat.start_ticks) for beat in heartbeats}
        self._known = {key: known for key, known in self._known.items() if key in live}
        named = {beat.path: self._named(beat, now_ns, names) for beat in heartbeats}
        return {path: groups for path, groups in named.items() if groups}

    def _named(self, beat: Heartbeat, now_ns: int, names: FactsNames | None) -> PendingGroups:
        pending = beat.open_groups
        if not pending:
            return ()
        known = self._known.setdefault((beat.path, beat.start_ticks), _Names())
        if now_ns >= known.again_ns and any(_key(group) not in known.names for group in pending):
            _ask(known, beat, now_ns, None if names is None else names.get(beat.path, ()))
        named = [(group, known.names.get(_key(group), "")) for group in pending]
        return tuple((group.recorder, group.pg_id, name) for group, name in named if name)


def _ask(known: _Names, beat: Heartbeat, now_ns: int, of_facts: Sequence[str] | None) -> None:
    record = Path(beat.path)
    stamp = stamp_of(record, of_facts)
    names = known.names
    if stamp is None or stamp != known.stamp:
        facts = read_facts(record, beat.uid, of_facts)
        names = {} if facts is None else {key: name[:_LONGEST_NAME] for key, name in facts.process_groups.items()}
    known.stamp = stamp
    # A group that has no name may never get one: it is asked for less and less often.
    known.wait_ns = _FIRST_WAIT_NS if names != known.names else min(2 * known.wait_ns, _LONGEST_WAIT_NS)
    known.names = names
    known.again_ns = now_ns + known.wait_ns


def _key(group: GroupCounter) -> str:
    return f"{group.recorder} {group.pg_id}"
