"""Dumps that torch wrote by itself keep their name from run to run: who could not write this time has an old one there.

A call that has completed was made by every member before: one that a member made long after that is another run's call
of the same number.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from stallwatch.formats.recorder_table import ABSENT, NUMBER_KEYS, WIDTH, CallKind, RecorderTable

# Clocks of a job's hosts differ by far less, and a restarted job takes longer to come to its calls.
_APART_NS = 30_000_000_000
# A broadcast ends on its root before the others have come, and a reduction on who only gives.
_PROVES_CALLS = 3
# Where a recorder notes no end (gloo), a retired call had ended before one that was made this long after it.
_ENDED_AFTER_NS = 10_000_000_000
_COMPARED = 4  # ranks of the run that is kept, with each that may be of another
_SEQ, _CREATED, _COMPLETED = (
    NUMBER_KEYS.index(key) for key in ("collective_seq_id", "time_created_ns", "time_discovered_completed_ns")
)
_Group = tuple[str, str, tuple[int, ...]]  # back end, description, members


class _Collective(NamedTuple):
    group: _Group
    seq: int
    created_ns: int
    ended_ns: int | None  # None: not over, or nobody knows since when


class _Window(NamedTuple):
    first_ns: int
    last_ns: int
    rank: int


def dumps_of_other_runs(tables: Mapping[int, Sequence[RecorderTable]]) -> dict[int, str]:
    """Given each rank's dumps, which say no more of when they were written, return the ranks whose dumps are of another
    run than most (of two halves, than the later), each with how far apart in time they are, as people read it."""
    runs = _apart(_windows(tables))
    if len(runs) < 2:
        return {}
    kept = max(runs, key=lambda run: (len(run), run[-1].last_ns))
    with_whom = [list(_collectives(tables[window.rank])) for window in kept[:_COMPARED]]
    found = {}
    for window in (window for run in runs if run is not kept for window in run):
        own = list(_collectives(tables[window.rank]))
        if any(_impossible(own, other) or _impossible(other, own) for other in with_whom):
            apart_ns = max(kept[0].first_ns - window.last_ns, window.first_ns - max(one.last_ns for one in kept))
            when = "before" if window.last_ns < kept[0].first_ns else "after"
            found[window.rank] = f"{apart_ns / 1e9:,.0f} s {when} the others'"
    return found


def _windows(tables: Mapping[int, Sequence[RecorderTable]]) -> list[_Window]:
    """From the first to the last call of each rank, in the order of time."""
    windows = []
    for rank, own in tables.items():
        created = [ns for table in own for ns in array("q", table.numbers)[_CREATED::WIDTH] if ns != ABSENT]
        if created:
            windows.append(_Window(min(created), max(created), rank))
    return sorted(windows)


def _apart(windows: Iterable[_Window]) -> list[list[_Window]]:
    """Those that lie near each other, together."""
    runs: list[list[_Window]] = []
    last_ns = 0
    for window in windows:
        if not runs or window.first_ns > last_ns + _APART_NS:
            runs.append([])
        runs[-1].append(window)
        last_ns = max(last_ns, window.last_ns)
    return runs


def _collectives(tables: Iterable[RecorderTable]) -> Iterator[_Collective]:
    for table in tables:
        members = {(group.name, group.description): group.ranks for group in table.groups}
        kinds, numbers = array("I", table.kind_of), array("q", table.numbers)
        last_ns = max(numbers[_CREATED::WIDTH], default=ABSENT)
        for row, index in enumerate(kinds):
            kind = table.kinds[index]
            seq, created_ns, completed_ns = (numbers[row * WIDTH + column] for column in (_SEQ, _CREATED, _COMPLETED))
            if kind.is_p2p or created_ns == ABSENT:
                continue
            named = kind.group_name, kind.group_description
            ended_ns = _ended_ns(kind, created_ns, completed_ns, last_ns)
            yield _Collective((kind.backend, named[1], members.get(named, ())), seq, created_ns, ended_ns)


def _ended_ns(kind: CallKind, created_ns: int, completed_ns: int, last_ns: int) -> int | None:
    if completed_ns != ABSENT:
        return completed_ns
    is_over = kind.retired or kind.state == "completed"
    return last_ns if is_over and last_ns - created_ns > _ENDED_AFTER_NS else None


def _impossible(one: Sequence[_Collective], other: Sequence[_Collective]) -> bool:
    """Whether calls had ended for `one` long before `other` made them, or calls of lower numbers."""
    first: dict[_Group, _Collective] = {}
    for call in other:
        first.setdefault(call.group, call)
    proofs = 0
    for call in one:
        begins = first.get(call.group)
        if begins is None or call.ended_ns is None or call.seq < begins.seq:
            continue
        proofs += call.ended_ns + _APART_NS < begins.created_ns
    return proofs >= _PROVES_CALLS
