"""A call too many or too few that happened to pair with another: the one member of a group that did it.

The difference that shows comes later, elsewhere, or, where sizes may differ in health, not at all.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import pairwise

import msgspec

from stallwatch.diagnosis.calls.align import BY_NEW_LINES, Divergence
from stallwatch.diagnosis.calls.drift import apart_by_lines
from stallwatch.diagnosis.calls.programs import calls_of, place_of
from stallwatch.diagnosis.calls.sequences import SequenceBreak
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.job.groups import key
from stallwatch.model.summary import Call


class ShiftedCalls(msgspec.Struct, frozen=True):
    """One member whose calls in a group are one off, and where the others meet it so."""

    departure: SequenceBreak  # the call of its own, or what it called where another was due
    group: int  # index in the case
    seq: int
    instead: Call | None  # what it called under `seq`, where it left out the call that was due; None: it made its own


def find_shifted(
    case: Case,
    departures: Sequence[SequenceBreak],
    divergence: Divergence | None,
    entered: Iterable[tuple[int, int]],
    waited_for: Set[tuple[int, int]],
) -> ShiftedCalls | None:
    """Given where members differ, return the one that was one call off already; where they do not, the one that came so
    to a call that all have entered. None where not one alone was.

    `entered`: calls that all members have entered, `waited_for`: calls that somebody waits in; as (group, number).
    """
    if divergence is None:
        found = (
            _made_its_own(case, departures, group, seq, seq) or _left_out(case, departures, group, seq)
            for group, seq in entered
        )
        return next(filter(None, found), None) or _by_lines(case, waited_for)
    group, seq = divergence.group, divergence.seq
    # Two threads' order is chance, and where most agree a third member has told who differs.
    if divergence.decided_by not in ("threads", "majority"):
        own = _made_its_own(case, departures, group, seq, seq - 1)
        if own is not None:
            return own
    # In a first step every line is new once: of another member that left out what is called here more is known.
    if divergence.decided_by in BY_NEW_LINES and (group, seq) in waited_for:
        left_out = _left_out(case, departures, group, seq)
        if left_out is not None and left_out.departure.rank not in divergence.culprits:
            return left_out
    return None


def _made_its_own(
    case: Case, departures: Sequence[SequenceBreak], group: int, seq: int, last_seq: int
) -> ShiftedCalls | None:
    """The one member that first called something of its own in the group, under no higher number than `last_seq`.

    Only where all members were recorded: a rank's habits by themselves change with the phases of its program.
    """
    members = case.groups[group]
    if not _are_whole(case, group):
        return None
    departed = [one for one in departures if one.seq and case.group_of[one.rank, one.found.stream] == group]
    if not departed:
        return None
    first = min(departed, key=lambda departure: departure.seq)
    if first.seq > last_seq or not first.expected or sum(one.seq == first.seq for one in departed) > 1:
        return None
    if len(members.ranks) <= 2 and not _is_habit(case, first):
        return None
    return ShiftedCalls(first, group, seq, None)


def _are_whole(case: Case, group: int) -> bool:
    """Whether the records of all members were read to their end: what a file has lost is not left out by its rank."""
    known, read = case.groups[group], case.streams[group]
    return (
        known.members_known
        and len(read) >= len(known.ranks)
        and not any(case.summaries[rank].cut_short for rank in read)
    )


def _is_habit(case: Case, departure: SequenceBreak) -> bool:
    """True when the rank had gone the usual way more than once: of two members, a habit of one round is the other's
    word against its own."""
    calls = calls_of(case, departure.rank)[: departure.place]
    before = calls[-1]
    usual = set(departure.expected)
    return sum(here == before and after in usual for here, after in pairwise(calls)) > 1


def _left_out(case: Case, departures: Sequence[SequenceBreak], group: int, last_seq: int) -> ShiftedCalls | None:
    """One member alone left its program where a call of this group was due, and since the number of that call it came
    from other lines than all others, who made just that call there."""
    members = case.streams[group]
    departed = [one for one in departures if one.rank in members and one.expected]
    if len(departed) != 1 or not _are_whole(case, group):
        return None
    rank, due = departed[0].rank, departed[0].expected[0]
    for seq in range(max(member.stream.first_seq for member in members.values()), last_seq + 1):
        calls = {other: member.call_at(seq) for other, member in members.items()}
        own, theirs = calls.pop(rank), [call for call in calls.values() if call is not None]
        if own is None or len(theirs) < len(calls) or not own.site or not theirs:
            return None
        if {call.site for call in theirs} == {own.site}:
            continue
        is_due = all((*key(call), call.site) == (*key(due), due.site) for call in theirs)
        return ShiftedCalls(departed[0], group, seq, own) if is_due else None
    return None


def _by_lines(case: Case, waited_for: Set[tuple[int, int]]) -> ShiftedCalls | None:
    """The one of at least three members whose lines are, since one call, those of all others one number earlier, and
    which waits in a call that none of them has made; or one number later, and which lacks what they wait in."""
    found = [
        shifted
        for group in sorted({group for group, seq in waited_for if seq})
        if _are_whole(case, group)
        for shifted in _off_by_lines(case, group, {seq for other, seq in waited_for if other == group})
    ]
    return found[0] if len({shifted.departure.rank for shifted in found}) == 1 else None


def _off_by_lines(case: Case, group: int, waited_for: Set[int]) -> list[ShiftedCalls]:
    members = case.streams[group]
    apart = apart_by_lines(members)
    if len(apart) != 1:
        return []
    rank, first, lines, usual = apart[0]
    others = [member.stream.last_seq for other, member in members.items() if other != rank]
    end, waited = members[rank].stream.last_seq, max(waited_for)
    if max(others) < waited == end:
        is_off = list(lines.values()).count(lines[first]) == 1 and _runs(lines, usual, first + 1, -1)
    else:
        is_off = end < min(others) and end < waited and _runs(lines, usual, first, 1)
    made, place = members[rank].call_at(first), place_of(case, rank, group, first)
    theirs = (member.call_at(first) for other, member in members.items() if other != rank)
    due = next((call for call in theirs if call is not None and call.site == usual[first]), None)
    if not is_off or made is None or due is None or place is None:
        return []
    departure = SequenceBreak(rank, place, first, made, (msgspec.structs.replace(due, stream=made.stream),))
    return [
        ShiftedCalls(departure, group, waited, None) if end == waited else ShiftedCalls(departure, group, first, made)
    ]


def _runs(lines: Mapping[int, str], usual: Mapping[int, str], first: int, shift: int) -> bool:
    """Whether all lines from a number on are what most called so many numbers later; at least one of them."""
    pairs = [(line, usual[n + shift]) for n, line in lines.items() if n >= first and n + shift in usual]
    return bool(pairs) and all(mine == theirs for mine, theirs in pairs)
