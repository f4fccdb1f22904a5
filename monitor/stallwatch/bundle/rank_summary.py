"""A rank's recorders reduced where they are parsed: of a large incident only the summaries travel, with the entries
that say what happens now.

Most of a ring is settled history: plain collectives that completed, of a few kinds. One entry of each kind and the
newest entries go through the reduction; the rest only adds to the list of calls that they stand for.
"""

from array import array
from collections.abc import Sequence
from operator import le, lt
from typing import Final

import msgspec

from stallwatch.diagnosis.recorder.reduce import reduce_rank
from stallwatch.formats.recorder_table import ABSENT, WIDTH, CallKind, RecorderTable, expand
from stallwatch.model.evidence import RankEvidence
from stallwatch.model.summary import NO_CALL, RankSummary, Stream

_KEPT_ENTRIES: Final = 128
_KEPT_ENTRIES_PER_GROUP: Final = 64
_LEAP: Final = 1 << 20  # numbers that no ring spans
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
        self._kinds = table.kinds
        self._kind_of = array("I", table.kind_of)
        self._seqs, self._ops, self._created = (numbers[column::WIDTH] for column in (_SEQ, _OP, _CREATED))
        self._first_of: dict[int, int] = {}  # kind → its first row
        self.length = self._measure() if self._is_orderly() else 0
        for row in range(self.length):
            self._first_of.setdefault(self._kind_of[row], row)

    @property
    def rows_to_reduce(self) -> list[int]:
        return [*sorted(self._first_of.values()), *range(self.length, len(self._kind_of))]

    def completed(self, summary: RankSummary) -> RankSummary | None:
        """Add the rows that were left out to the summary of the others; None when they cannot be placed."""
        streams = list(summary.streams)
        place = {(stream.description, stream.name): index for index, stream in enumerate(streams)}
        if len(place) != len(streams) or len(summary.program) != 1:
            return None
        call_of: dict[int, int] = {}
        for kind, row in self._first_of.items():
            stream = streams[place[_group(self._kinds[kind])]]
            call_of[kind] = array("H", stream.calls)[self._seqs[row] - stream.first_seq]
        for group, rows in self._rows_by_group(self.length).items():
            if rows:
                calls = {self._seqs[row]: call_of[self._kind_of[row]] for row in rows}
                streams[place[group]] = _with_calls(streams[place[group]], calls)
        calls_in_order = array("H", [call_of[kind] for kind in self._kind_of[: self.length]])
        newest = array("H", summary.program[0])[len(self._first_of) :]
        program = ((calls_in_order + newest).tobytes(),)
        return msgspec.structs.replace(summary, streams=tuple(streams), program=program)

    def _is_orderly(self) -> bool:
        """One thread, one life of every group, everything in the order in which it was made."""
        threads = {kind.thread_id for kind in self._kinds}
        groups = {(kind.pg_id, _group(kind)) for kind in self._kinds}
        one_life = len(groups) == len({pg_id for pg_id, _ in groups}) == len({group for _, group in groups})
        created = self._created
        return len(threads) == 1 and one_life and ABSENT not in created and all(map(le, created, created[1:]))

    def _measure(self) -> int:
        """How many entries from the start are plain, settled, and not among the newest."""
        settles = any(kind.state in ("completed", "started") for kind in self._kinds)
        plain = [_is_plain(kind, settles) for kind in self._kinds]
        groups = len({kind.pg_id for kind in self._kinds})
        newest = max(_KEPT_ENTRIES, groups * _KEPT_ENTRIES_PER_GROUP)
        end = max(0, len(self._kind_of) - newest)
        length = next((row for row, kind in enumerate(self._kind_of[:end]) if not plain[kind]), end)
        for rows in self._rows_by_group(len(self._kind_of)).values():
            seqs, ops = [self._seqs[row] for row in rows], [self._ops[row] for row in rows]
            if not (all(map(le, seqs, seqs[1:])) and all(map(lt, ops, ops[1:]))):
                return 0
            if seqs and seqs[-1] - seqs[0] > _LEAP:
                return 0
            # Entries of one number belong together.
            together = (row for row, seq, after in zip(rows, seqs, seqs[1:], strict=False) if seq == after)
            length = min(length, next(together, length))
        return length

    def _rows_by_group(self, length: int) -> dict[tuple[str, str], list[int]]:
        groups: dict[tuple[str, str], list[int]] = {}
        rows_of = [groups.setdefault(_group(kind), []) for kind in self._kinds]
        for row, kind in enumerate(self._kind_of[:length]):
            rows_of[kind].append(row)
        return groups


def _group(kind: CallKind) -> tuple[str, str]:
    return kind.group_description, kind.group_name


def _is_plain(kind: CallKind, settles: bool) -> bool:
    """A collective by itself that is over: nothing but its place in the stream is of interest. `settles`: states tell
    that, as in diagnosis.recorder.operations."""
    over = kind.state == "completed" or (kind.retired and not settles)
    return over and not kind.is_p2p and kind.name != "coalesced"


def _with_calls(stream: Stream, calls: dict[int, int]) -> Stream:
    known = array("H", stream.calls)
    first = min(min(calls), stream.first_seq)
    dense = array("H", [NO_CALL]) * (max(max(calls), stream.first_seq + len(known) - 1) - first + 1)
    dense[stream.first_seq - first : stream.first_seq - first + len(known)] = known
    for seq, call in calls.items():
        dense[seq - first] = call
    return msgspec.structs.replace(
        stream, first_seq=first, calls=dense.tobytes(), completed=max(stream.completed, max(calls))
    )
