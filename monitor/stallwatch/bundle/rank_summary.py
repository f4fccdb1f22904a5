"""A rank's recorders reduced where they are parsed: of a large incident only the summaries travel, with the entries
that say what happens now.

Most of a ring is settled history: plain collectives that completed, of a few kinds. One entry of each kind and the
newest entries go through the reduction; the rest only adds to the list of calls that they stand for.
"""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from operator import le, lt
from typing import Final, NamedTuple

import msgspec

from stallwatch.diagnosis.recorder.operations import LEAP
from stallwatch.diagnosis.recorder.reduce import reduce_rank
from stallwatch.formats.recorder_table import ABSENT, WIDTH, CallKind, RecorderTable, expand
from stallwatch.model.evidence import RankEvidence
from stallwatch.model.summary import NO_CALL, RankSummary, Stream

_KEPT_ENTRIES: Final = 128
_KEPT_ENTRIES_PER_GROUP: Final = 64
_SEQ, _OP, _CREATED = 1, 3, 4  # columns of a table's numbers


def summarise(rank: int, tables: Sequence[RecorderTable]) -> RankSummary:
    """Given all recorders of one rank, return what they say for a verdict."""
    if len(tables) == 1:
        history = _History(tables[0])
        if history.length:
            summary = history.completed(_reduce(rank, tables, history.rows_to_reduce))
            if summary is not None:
                return summary
    return _reduce(rank, tables, None)


def shorten(table: RecorderTable) -> RecorderTable:
    """The newest entries of a table."""
    kind_of, numbers, durations = array("I", table.kind_of), array("q", table.numbers), array("d", table.durations_ms)
    return msgspec.structs.replace(
        table,
        kind_of=kind_of[-_KEPT_ENTRIES:].tobytes(),
        numbers=numbers[-_KEPT_ENTRIES * WIDTH :].tobytes(),
        durations_ms=durations[-_KEPT_ENTRIES:].tobytes(),
    )


def _reduce(rank: int, tables: Sequence[RecorderTable], rows: Sequence[int] | None) -> RankSummary:
    recorders = tuple(expand(table, rows=rows) for table in tables)
    return reduce_rank(RankEvidence(rank=rank, host=None, pid=None, recorders=recorders))


class _History:
    """The settled beginning of a ring; `length` is 0 where it is not simple enough to be told by kinds."""

    def __init__(self, table: RecorderTable) -> None:
        numbers = array("q", table.numbers)
        self._table = table
        self._groups = tuple(map(_group, table.kinds))
        self._seqs, self._ops, self._created = (numbers[column::WIDTH] for column in (_SEQ, _OP, _CREATED))
        self.length = self._measure() if self._is_orderly() else 0
        self._beginning = _beginning(table.kind_of, self._groups, self.length)

    @property
    def rows_to_reduce(self) -> list[int]:
        return [*self._beginning.first_of.values(), *range(self.length, len(self._seqs))]

    def completed(self, summary: RankSummary) -> RankSummary | None:
        """Add the rows that were left out to the summary of the others; None when they cannot be placed."""
        streams = list(summary.streams)
        place = {(stream.description, stream.name): index for index, stream in enumerate(streams)}
        if len(place) != len(streams) or len(summary.program) != 1:
            return None
        call_of: dict[int, int] = {}
        for kind, row in self._beginning.first_of.items():
            stream = streams[place[self._groups[kind]]]
            call_of[kind] = array("H", stream.calls)[self._seqs[row] - stream.first_seq]
        for group, part in self._beginning.parts.items():
            if part.kinds:
                calls = array("H", map(call_of.__getitem__, part.kinds))
                streams[place[group]] = _with_calls(streams[place[group]], part.of(self._seqs), calls)
        calls_in_order = array("H", map(call_of.__getitem__, self._beginning.kinds))
        newest = array("H", summary.program[0])[len(self._beginning.first_of) :]
        program = ((calls_in_order + newest).tobytes(),)
        return msgspec.structs.replace(summary, streams=tuple(streams), program=program)

    def _is_orderly(self) -> bool:
        """One thread, one life of every group, everything in the order in which it was made."""
        threads = {kind.thread_id for kind in self._table.kinds}
        groups = {(kind.pg_id, group) for kind, group in zip(self._table.kinds, self._groups, strict=True)}
        one_life = len(groups) == len({pg_id for pg_id, _ in groups}) == len({group for _, group in groups})
        created = self._created
        if not (len(threads) == 1 and one_life and all(map(le, created, created[1:]))):
            return False
        return created[:1] > array("q", [ABSENT]) or ABSENT not in created

    def _measure(self) -> int:
        """How many entries from the start are plain, settled, and not among the newest."""
        kinds = self._table.kinds
        settles = any(kind.state in ("completed", "started") for kind in kinds)
        groups = len({kind.pg_id for kind in kinds})
        newest = max(_KEPT_ENTRIES, groups * _KEPT_ENTRIES_PER_GROUP)
        plain = tuple(_is_plain(kind, settles) for kind in kinds)
        length = _plain_length(self._table.kind_of, plain, max(0, len(self._seqs) - newest))
        for part in _beginning(self._table.kind_of, self._groups, len(self._seqs)).parts.values():
            seqs, ops = part.of(self._seqs), part.of(self._ops)
            if not (_is_counted(ops) or all(map(lt, ops, ops[1:]))):
                return 0
            if _is_counted(seqs):
                continue
            if not all(map(le, seqs, seqs[1:])):
                return 0
            if seqs and seqs[-1] - seqs[0] > LEAP:
                return 0
            # Entries of one number belong together.
            together = (row for row, seq, after in zip(part.rows, seqs, seqs[1:], strict=False) if seq == after)
            length = min(length, next(together, length))
        return length


class _Part(NamedTuple):
    """The rows of one group, and their kinds."""

    rows: list[int]
    kinds: list[int]
    is_all: bool  # of the table: then `rows` counts from 0

    def of(self, column: "array[int]") -> "array[int]":
        """Return the group's own part of a column."""
        return column[: len(self.rows)] if self.is_all else array("q", map(column.__getitem__, self.rows))


class _Beginning(NamedTuple):
    """What the kinds of a ring's first entries tell."""

    kinds: "array[int]"
    first_of: dict[int, int]  # kind → its first row, in the order of rows
    parts: dict[tuple[str, str], _Part]  # of every group


# Ranks of one program have made the same calls.
@lru_cache(maxsize=8)
def _beginning(kind_of: bytes, groups: tuple[tuple[str, str], ...], length: int) -> _Beginning:
    kinds, first_of = array("I", kind_of)[:length], dict[int, int]()
    is_all = len(set(groups)) == 1
    parts = {group: _Part([], [], is_all) for group in dict.fromkeys(groups)}
    of_kind = [parts[group] for group in groups]
    for row, kind in enumerate(kinds):
        first_of.setdefault(kind, row)
        of_kind[kind].rows.append(row)
        of_kind[kind].kinds.append(kind)
    return _Beginning(kinds, first_of, parts)


@lru_cache(maxsize=8)
def _plain_length(kind_of: bytes, plain: tuple[bool, ...], end: int) -> int:
    return next((row for row, kind in enumerate(array("I", kind_of)[:end]) if not plain[kind]), end)


def _is_counted(numbers: "array[int]") -> bool:
    """Whether each is the one before it plus one."""
    return bool(numbers) and numbers == _count(numbers[0], len(numbers))


@lru_cache(maxsize=8)
def _count(first: int, length: int) -> "array[int]":
    return array("q", range(first, first + length))


def _group(kind: CallKind) -> tuple[str, str]:
    return kind.group_description, kind.group_name


def _is_plain(kind: CallKind, settles: bool) -> bool:
    """A collective by itself that is over: nothing but its place in the stream is of interest. `settles`: states tell
    that, as in diagnosis.recorder.operations."""
    over = kind.state == "completed" or (kind.retired and not settles)
    return over and not kind.is_p2p and kind.name != "coalesced"


def _with_calls(stream: Stream, seqs: "array[int]", calls: "array[int]") -> Stream:
    """Add calls to a stream; `seqs`, their numbers, ascend."""
    known = array("H", stream.calls)
    first = min(seqs[0], stream.first_seq)
    dense = array("H", [NO_CALL]) * (max(seqs[-1], stream.first_seq + len(known) - 1) - first + 1)
    dense[stream.first_seq - first : stream.first_seq - first + len(known)] = known
    if seqs[-1] - seqs[0] + 1 == len(seqs):
        dense[seqs[0] - first : seqs[-1] - first + 1] = calls
    else:
        for seq, call in zip(seqs, calls, strict=True):
            dense[seq - first] = call
    return msgspec.structs.replace(
        stream, first_seq=first, calls=dense.tobytes(), completed=max(stream.completed, seqs[-1])
    )
