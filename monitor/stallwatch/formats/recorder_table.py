"""A recorder's entries as columns: what repeats (operation, shapes, call site) once, and a few numbers an entry.

A ring of 2,000 entries holds some tens of different calls; kept apart, 512 of them fit into memory and pass quickly
from the process that parses to the one that thinks. `expand` makes the model's values of them.
"""

import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from stallwatch.model.evidence import CodeFrame, GroupStatus, Operation, RecordedGroup, Recorder

# Order of the numbers of an entry in `numbers`; ABSENT where the dump does not say.
NUMBER_KEYS: Final = (
    "record_id",
    "collective_seq_id",
    "p2p_seq_id",
    "op_id",
    "time_created_ns",
    "time_discovered_started_ns",
    "time_discovered_completed_ns",
)
WIDTH: Final = len(NUMBER_KEYS)
ABSENT: Final = -1


class CallKind(msgspec.Struct, frozen=True):
    """What is equal in every entry that one call site of the program writes."""

    pg_id: int
    group_name: str
    group_description: str
    name: str
    backend: str
    state: str
    retired: bool
    is_p2p: bool
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    timeout_ms: int | None
    thread_id: str | None
    thread_name: str | None
    site: int  # index into `sites`


class RecorderTable(msgspec.Struct):
    """A flight recorder as columns: entries that are alike share one description, so that a full ring is small on a
    pipe."""

    source: str
    look: int
    backend: str
    version: str
    comm_lib_version: str
    groups: tuple[RecordedGroup, ...]
    status: tuple[GroupStatus, ...]
    kinds: list[CallKind]
    sites: list[tuple[int, ...]]  # each a stack, as indexes into `frames`
    frames: list[CodeFrame]
    kind_of: bytes  # array of "I": an entry's index into `kinds`
    numbers: bytes  # array of "q": WIDTH numbers an entry
    durations_ms: bytes  # array of "d", or empty when no entry has one
    caveats: tuple[str, ...] = ()
    cut_short: bool = False  # entries were lost, the newest perhaps among them


class TableBuilder:
    """Collects entries; equal kinds, sites and frames are kept once."""

    def __init__(self) -> None:
        self._kinds: dict[CallKind, int] = {}
        self._sites: dict[tuple[int, ...], int] = {}
        self._frames: dict[CodeFrame, int] = {}
        self.kind_of = array("I")
        self.numbers = array("q")
        self._durations: dict[int, float] = {}

    def frame(self, frame: CodeFrame) -> int:
        """The index of a frame."""
        return self._frames.setdefault(frame, len(self._frames))

    def site(self, frames: tuple[int, ...]) -> int:
        """The index of a call's stack."""
        return self._sites.setdefault(frames, len(self._sites))

    def kind(self, kind: CallKind) -> int:
        """The index of a kind of call."""
        return self._kinds.setdefault(kind, len(self._kinds))

    def add(self, kind: int, numbers: Iterable[int], duration_ms: float | None = None) -> None:
        """Given the index of its kind, its numbers in their fixed order and how long it took, add an entry."""
        if duration_ms is not None:
            self._durations[len(self.kind_of)] = duration_ms
        self.kind_of.append(kind)
        self.numbers.extend(numbers)

    def extend(self, kinds: list[int], numbers: "array[int]") -> None:
        """Add several entries at once."""
        self.kind_of.extend(kinds)
        self.numbers.extend(numbers)

    def kind_at(self, index: int) -> CallKind:
        """The kind of call under an index."""
        return self.kinds[index]

    def frames_of(self, kind: CallKind) -> tuple[CodeFrame, ...]:
        """The stack of a kind of call, innermost first."""
        frames = list(self._frames)
        return tuple(frames[frame] for frame in list(self._sites)[kind.site])

    def kind_with(self, kind: CallKind, frames: tuple[CodeFrame, ...]) -> int:
        """The index of a kind that came from another table, whose call site is `frames`."""
        site = self.site(tuple(self.frame(frame) for frame in frames))
        return self.kind(kind if kind.site == site else msgspec.structs.replace(kind, site=site))

    @property
    def kinds(self) -> list[CallKind]:
        """All kinds of calls, by index."""
        return list(self._kinds)

    def table(
        self,
        source: str,
        look: int,
        backend: str,
        version: str,
        comm_lib_version: str,
        groups: tuple[RecordedGroup, ...],
        status: tuple[GroupStatus, ...],
        caveats: tuple[str, ...],
        *,
        cut_short: bool,
    ) -> RecorderTable:
        """The table, once all entries are in it."""
        durations = array("d")
        if self._durations:
            durations = array("d", [math.nan]) * len(self.kind_of)
            for row, duration_ms in self._durations.items():
                durations[row] = duration_ms
        return RecorderTable(
            source=source,
            look=look,
            backend=backend,
            version=version,
            comm_lib_version=comm_lib_version,
            groups=groups,
            status=status,
            kinds=list(self._kinds),
            sites=list(self._sites),
            frames=list(self._frames),
            kind_of=self.kind_of.tobytes(),
            numbers=self.numbers.tobytes(),
            durations_ms=durations.tobytes(),
            caveats=caveats,
            cut_short=cut_short,
        )


class CallSites:
    """Call sites shared by all recorders of an incident, so that 512 ranks of one program hold each stack once."""

    def __init__(self) -> None:
        self._frames: dict[CodeFrame, CodeFrame] = {}
        self._sites: dict[tuple[CodeFrame, ...], tuple[CodeFrame, ...]] = {}

    def of(self, table: RecorderTable) -> list[tuple[CodeFrame, ...]]:
        """The stacks of a table, equal frames being one object."""
        frames = [self._frames.setdefault(frame, frame) for frame in table.frames]
        stacks = [tuple(frames[index] for index in site) for site in table.sites]
        return [self._sites.setdefault(stack, stack) for stack in stacks]


def expand(table: RecorderTable, stacks: CallSites | None = None, rows: Sequence[int] | None = None) -> Recorder:
    """The recorder that a table stands for; only the given rows of it, when `rows` is given."""
    sites = (stacks or CallSites()).of(table)
    kind_of, numbers, durations = array("I", table.kind_of), array("q", table.numbers), array("d", table.durations_ms)
    operations = []
    for row in range(len(kind_of)) if rows is None else rows:
        kind = table.kinds[kind_of[row]]
        record_id, seq, p2p_seq, op_id, created, started, completed = numbers[row * WIDTH : (row + 1) * WIDTH]
        duration = durations[row] if durations else math.nan
        operations.append(
            Operation(
                record_id,
                kind.pg_id,
                kind.group_name,
                kind.group_description,
                seq,
                p2p_seq,
                op_id,
                kind.name,
                kind.backend,
                kind.state,
                kind.retired,
                kind.is_p2p,
                kind.input_sizes,
                kind.output_sizes,
                kind.input_dtypes,
                kind.output_dtypes,
                created if created != ABSENT else None,
                started if started != ABSENT else None,
                completed if completed != ABSENT else None,
                kind.timeout_ms,
                None if math.isnan(duration) else duration,
                sites[kind.site],
                kind.thread_id,
                kind.thread_name,
            )
        )
    return Recorder(
        source=table.source,
        look=table.look,
        backend=table.backend,
        version=table.version,
        groups=table.groups,
        status=table.status,
        operations=tuple(operations),
        comm_lib_version=table.comm_lib_version,
        cut_short=table.cut_short,
    )
