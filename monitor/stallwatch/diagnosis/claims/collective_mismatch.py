"""Members of one group entered different things under one number, or were one call off already; or left the loop and
wait at its end."""

from itertools import pairwise

from msgspec.structs import replace

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.calls import align
from stallwatch.diagnosis.calls.align import Divergence
from stallwatch.diagnosis.calls.drift import one_off
from stallwatch.diagnosis.calls.sequences import SequenceBreak, calls_of
from stallwatch.diagnosis.claim import Claim, Saying, group_name, named, operation_of, waiting_facts
from stallwatch.diagnosis.job.groups import key
from stallwatch.diagnosis.job.leaving import cleans_up, have_left, stand_before
from stallwatch.diagnosis.recorder import signature
from stallwatch.diagnosis.waits.graph import Wait
from stallwatch.model.summary import Call
from stallwatch.model.verdict import Confidence, Fact, Mismatch, Rejected

_BY_NEW_LINES = ("site", "start")  # what the group had called before, be it once


def claim(analysis: Analysis) -> Saying:
    """Members called different things under one number, or one of them has left the loop and waits at its end."""
    divergence = analysis.divergence
    if divergence is None:
        return (
            _odd_shape(analysis)
            or _in_what_all_entered(analysis)
            or Rejected("collective_mismatch", "operation, size and dtype agree wherever members can be compared")
        )
    slipped = _slipped_before(analysis, divergence) if divergence.decided_by != "threads" else None
    earlier = slipped or _left_out_there(analysis, divergence)
    if earlier is not None:
        return earlier
    culprits, confidence = _who(analysis, divergence)
    if not culprits:
        return _parted(analysis, divergence)
    absent = {rank for rank, _ in analysis.roots.absent}
    if not divergence.open and analysis.proven_stuck and absent and not absent & set(culprits):
        return Rejected(
            "collective_mismatch",
            f"{named(culprits)} called something else under #{divergence.seq}, but that has completed",
        )
    left = _left(analysis, divergence, culprits)
    at_end = divergence.found_is_new and signature.is_barrier(divergence.found.operation)
    exhausted = divergence.expected_recurs and (left or (left is None and at_end))
    if exhausted and confidence == "certain":
        confidence = "likely"  # why it left, no recorder tells
    group = analysis.case.groups[divergence.group]
    name = group_name(analysis.case, group)
    return Claim(
        cause="data_exhausted" if exhausted else "collective_mismatch",
        culprits=culprits,
        confidence=confidence,
        because=(
            Fact(
                f"under #{divergence.seq} of {name} {named(culprits)} called {align.describe(divergence.found)}, "
                f"the others {align.describe(divergence.expected)}",
                "flight recorders",
            ),
            Fact(_reason(divergence), "flight recorders"),
            *_loop_facts(analysis, culprits, left, _others(analysis, divergence, culprits)),
            *waiting_facts(analysis),
        ),
        missing=_other_readings(analysis, culprits) if exhausted else (),
        where=None if exhausted else "collective",
        mismatch=Mismatch(divergence.kind, _value(divergence, True), _value(divergence, False)),
        group=divergence.group,
        operation=divergence.expected.operation,
        seq=divergence.seq,
        site=divergence.found.site,
    )


def _parted(analysis: Analysis, divergence: Divergence) -> Claim:
    """Nothing tells who is right: who called what, and nobody is named."""
    by = divergence.decided_by if divergence.decided_by == "threads" else "nothing"
    divergence = replace(divergence, decided_by=by)
    name = group_name(analysis.case, analysis.case.groups[divergence.group])
    facts = tuple(
        Fact(f"under #{divergence.seq} of {name} {named(ranks)} called {align.describe(call)}", "flight recorders")
        for call, ranks in divergence.parts
    )
    return Claim(
        cause="collective_mismatch",
        culprits=(),
        confidence="possible",
        because=(*facts, Fact(_reason(divergence), "flight recorders"), *waiting_facts(analysis)),
        where="collective",
        mismatch=Mismatch(divergence.kind, _value(divergence, True), _value(divergence, False)),
        group=divergence.group,
        operation=divergence.expected.operation,
        seq=divergence.seq,
        parts=tuple((ranks, _value_of(divergence, call), call.site) for call, ranks in divergence.parts),
        missing=() if divergence.decided_by == "threads" else ("an earlier step, or a third member to compare with",),
        race=divergence.decided_by == "threads",
    )


def _left(analysis: Analysis, divergence: Divergence, culprits: tuple[int, ...]) -> bool | None:
    return have_left(analysis.case, culprits, _others(analysis, divergence, culprits))


def _others(analysis: Analysis, divergence: Divergence, culprits: tuple[int, ...]) -> list[int]:
    return [rank for rank in analysis.case.streams[divergence.group] if rank not in culprits]


def _loop_facts(
    analysis: Analysis, culprits: tuple[int, ...], left: bool | None, others: list[int]
) -> tuple[Fact, ...]:
    if left is None:
        return ()
    has, stands = ("has", "stands") if len(culprits) == 1 else ("have", "stand")
    before = "before the loop that the others are in" if stand_before(analysis.case, culprits, others) else ""
    said = (
        f"{has} left the loop that the others are in"
        if left
        else f"{stands} {before or 'in the same loop as the others'}"
    )
    return (Fact(f"{named(culprits)} {said}", "py-spy and source"),)


def _other_readings(analysis: Analysis, culprits: tuple[int, ...]) -> tuple[str, ...]:
    """Leaving a loop looks the same whatever the reason was."""
    if any(analysis.case.activity(rank).exceptions.handled for rank in culprits):
        return ()
    way = "a `finally` that runs with an exception as well" if cleans_up(analysis.case, culprits[0]) else "no stack"
    return (
        f"why {named(culprits)} left the loop: the data may have ended, or an exception that was caught (rank_raised); "
        f"{'it stands in ' + way if way != 'no stack' else 'stacks and recorders show both alike'}",
    )


def _odd_shape(analysis: Analysis) -> Claim | None:
    """Everybody stands in one operation whose sizes may differ in health, and one rank brings a size it never had."""
    for point in analysis.roots.closed:
        waits = [wait for wait in analysis.graph.waits if wait.point == point]
        calls = {wait.rank: analysis.case.call(wait.rank, wait.pending) for wait in waits}
        odd = [
            departure
            for departure in analysis.departures
            if calls.get(departure.rank) == departure.found
            and any(usual.operation == departure.found.operation for usual in departure.expected)
        ]
        if not odd or 2 * len(odd) > len(waits):
            continue
        ranks = tuple(sorted(departure.rank for departure in odd))
        found = odd[0].found
        usual = next(call for call in odd[0].expected if call.operation == found.operation)
        name = group_name(analysis.case, analysis.case.groups[point.group])
        return Claim(
            cause="collective_mismatch",
            culprits=ranks,
            confidence="likely",
            because=(
                Fact(
                    f"{named(ranks)} entered {found.operation} #{point.seq} of {name} with {found.shape}, "
                    f"in every earlier step with {usual.shape}",
                    f"flight recorder of {named(ranks)}",
                ),
                *waiting_facts(analysis),
            ),
            where="collective",
            mismatch=Mismatch("size" if found.dtype == usual.dtype else "dtype", usual.shape, found.shape),
            group=point.group,
            operation=found.operation,
            seq=point.seq or None,
            site=found.site,
        )
    return None


def _who(analysis: Analysis, divergence: Divergence) -> tuple[tuple[int, ...], Confidence]:
    members = len(analysis.case.groups[divergence.group].ranks)
    departed = tuple(d.rank for d in analysis.departures if d.rank in analysis.case.streams[divergence.group])
    if divergence.decided_by == "threads":
        return (), "likely"
    if divergence.decided_by == "nothing":
        called = {rank for _, ranks in divergence.parts for rank in ranks}
        return (departed, "likely") if departed and set(departed) < called else ((), "possible")
    whole = divergence.voters == members
    if divergence.decided_by == "majority":
        return divergence.culprits, "certain" if whole and 3 * len(divergence.culprits) <= members else "likely"
    left = divergence.decided_by in _BY_NEW_LINES and departed and not set(departed) & set(divergence.culprits)
    if left or (divergence.decided_by == "slip" and not whole and 2 * len(divergence.culprits) >= divergence.voters):
        return (), "possible"  # another may have left what its peers do: in a first step all lines are new
    sure = whole and divergence.decided_by not in ("start", "site", "slip")
    return divergence.culprits, "likely" if sure else "possible"


def _reason(divergence: Divergence) -> str:
    return {
        "majority": "most members called the same thing",
        "history": "in earlier steps the group called the expected thing at this place",
        "line": "from the same line of code the others had always called what they call now",
        "slip": "under an earlier number they had called the same from a line that the group had never used",
        "site": "the group had never called anything from the line of the others before",
        "start": "the expected call is the one that the group began with, as a loop that goes round again would",
        "sisters": "groups of the same kind called the expected thing under this number",
        "nothing": "nothing tells which of them is right: no majority, no earlier step",
        "threads": "all members called the same two things, each from two threads: which comes first is chance",
    }[divergence.decided_by]


def _value(divergence: Divergence, expected: bool) -> str:
    return _value_of(divergence, divergence.expected if expected else divergence.found)


def _value_of(divergence: Divergence, call: Call) -> str:
    if divergence.kind == "op":
        alone = len({other.operation for other, _ in divergence.parts}) == len(divergence.parts)
        return call.operation if alone else align.describe_call(call)
    odd = align.odd_member(divergence.expected, divergence.found)
    if odd is not None and call.members:
        return f"{call.members[odd[0] - 1]} as member {odd[0]} of {len(call.members)}"
    return call.dtype if divergence.kind == "dtype" else _size(call)


def _size(call: Call) -> str:
    flat = call.shape in ("", f"[{call.elements}]")
    return f"{call.elements} elements" if flat else f"{call.elements} elements {call.shape}"


# A call too many or too few that happened to pair with another: the difference that shows comes later, elsewhere, or,
# where sizes may differ in health, not at all.


def _slipped_before(analysis: Analysis, divergence: Divergence) -> Claim | None:
    """Given where two members differ, name the one that was one call off already, if one alone was."""
    if divergence.decided_by == "majority":
        return None  # a third member has told who differs
    departure = _alone(analysis, divergence.group, divergence.seq)
    if departure is None:
        return None
    then = Fact(
        f"under #{divergence.seq} members then called {align.describe(divergence.found)} and "
        f"{align.describe(divergence.expected)}",
        "flight recorders",
    )
    return _one_off(analysis, departure, divergence.group, divergence.seq, divergence.expected.operation, (then,))


def _in_what_all_entered(analysis: Analysis) -> Claim | None:
    """Everybody stands in calls that look alike, and one alone had come there by a call of its own, or without one."""
    for point in analysis.roots.closed:
        if not point.seq:
            continue
        wait = next(wait for wait in analysis.graph.waits if wait.point == point)
        departure = _alone(analysis, point.group, point.seq + 1)
        if departure is not None:
            return _one_off(analysis, departure, point.group, point.seq, operation_of(analysis, wait), ())
        left_out = _left_out(analysis, wait)
        if left_out is not None:
            return left_out
    return None


def _left_out_there(analysis: Analysis, divergence: Divergence) -> Claim | None:
    """Another member that left out what is called there, if only new lines told who is right: in a first step every
    line is new once."""
    if divergence.decided_by not in _BY_NEW_LINES:
        return None
    wait = next((w for w in analysis.graph.waits if w.point[:2] == (divergence.group, divergence.seq)), None)
    found = _left_out(analysis, wait) if wait is not None else None
    return found if found is not None and not set(found.culprits) & set(divergence.culprits) else None


def _left_out(analysis: Analysis, wait: Wait) -> Claim | None:
    """One member alone left its program where a call of this group was due, and since the number of that call it came
    from other lines than all others, who made just that call there."""
    members = analysis.case.streams[wait.point.group]
    group = analysis.case.groups[wait.point.group]
    departed = [departure for departure in analysis.departures if departure.rank in members and departure.expected]
    if len(departed) != 1 or not group.members_known or len(members) < len(group.ranks):
        return None
    rank, due = departed[0].rank, departed[0].expected[0]
    for seq in range(max(member.stream.first_seq for member in members.values()), wait.point.seq + 1):
        calls = {other: member.call_at(seq) for other, member in members.items()}
        own, theirs = calls.pop(rank), [call for call in calls.values() if call is not None]
        if own is None or len(theirs) < len(calls) or not own.site or not theirs:
            return None
        if {call.site for call in theirs} == {own.site}:
            continue
        is_due = all((*key(call), call.site) == (*key(due), due.site) for call in theirs)
        return _one_call_fewer(analysis, departed[0], wait, seq, own) if is_due else None
    return None


def _one_call_fewer(analysis: Analysis, departure: SequenceBreak, wait: Wait, seq: int, instead: Call) -> Claim:
    rank, due = departure.rank, departure.expected[0]
    name = group_name(analysis.case, analysis.case.groups[wait.point.group])
    return Claim(
        cause="collective_mismatch",
        culprits=(rank,),
        confidence="likely",
        because=(
            Fact(
                f"rank {rank} called {align.describe(departure.found)} where its peers call {align.describe(due)}: it "
                f"left that out",
                f"flight recorder of rank {rank}",
            ),
            Fact(
                f"under #{seq} of {name} it called {align.describe(instead)}, the others {align.describe(due)}",
                "flight recorders",
            ),
            *waiting_facts(analysis),
        ),
        where="collective",
        mismatch=Mismatch("count", f"one {due.operation} more", "none"),
        group=wait.point.group,
        operation=due.operation,
        seq=seq,
        site=instead.site,
    )


def _alone(analysis: Analysis, group: int, seq: int) -> SequenceBreak | None:
    """The one member that first called something of its own in the group, under a lower number than `seq`.

    Only where all members were recorded: a rank's habits by themselves change with the phases of its program.
    """
    members = analysis.case.groups[group]
    if not members.members_known or len(analysis.case.streams[group]) < len(members.ranks):
        return None
    departed = [d for d in analysis.departures if d.seq and analysis.case.group_of[d.rank, d.found.stream] == group]
    if not departed:
        return None
    first = min(departed, key=lambda departure: departure.seq)
    alone = sum(departure.seq == first.seq for departure in departed) == 1
    known = (
        alone and first.seq < seq and bool(first.expected) and (len(members.ranks) > 2 or _is_habit(analysis, first))
    )
    return first if known else None


def _is_habit(analysis: Analysis, departure: SequenceBreak) -> bool:
    """True when the rank had gone the usual way more than once: of two members, a habit of one round is the other's
    word against its own."""
    calls = calls_of(analysis.case, departure.rank)[: departure.place]
    before = calls[-1]
    usual = set(departure.expected)
    return sum(here == before and after in usual for here, after in pairwise(calls)) > 1


def _one_off(
    analysis: Analysis, departure: SequenceBreak, group: int, seq: int, operation: str, then: tuple[Fact, ...]
) -> Claim | None:
    name = group_name(analysis.case, analysis.case.groups[group])
    usual, found = departure.expected[0], departure.found
    is_new = found not in calls_of(analysis.case, departure.rank)[: departure.place]
    counts = ("none", f"one {found.operation} more") if is_new else (f"one {usual.operation} more", "none")
    return Claim(
        cause="collective_mismatch",
        culprits=(departure.rank,),
        confidence="likely",
        because=(
            Fact(
                f"rank {departure.rank} called {align.describe(found)} as #{departure.seq} of {name} where "
                f"it had always called {align.describe(usual)}: that paired, and from there on its calls are one off",
                f"flight recorder of rank {departure.rank}",
            ),
            *then,
            *waiting_facts(analysis),
        ),
        where="collective",
        mismatch=Mismatch("count", *counts),
        group=group,
        operation=operation,
        seq=seq,
        site=found.site,
    )


# Nobody waits yet, but one rank's calls pair with the wrong ones of the others: the hang comes later, or never, and
# the numbers are wrong from here on.


def one_call_off(analysis: Analysis) -> Saying:
    """Nobody waits yet, but one rank has made a call more or fewer than the others."""
    if analysis.hangs:
        return None
    for group in analysis.case.groups:
        for drift in one_off(analysis.case, group.index):
            few = drift.shift > 0
            call = analysis.case.streams[group.index][drift.culprits[0]].call_at(drift.seq)
            return Claim(
                cause="collective_mismatch",
                culprits=drift.culprits,
                confidence="likely",
                because=(Fact(drift.reason, "flight recorders"),),
                where="collective",
                mismatch=Mismatch("count", "one call more" if few else "none", "none" if few else "one call more"),
                group=group.index,
                operation=call.operation if call else None,
                seq=drift.seq,
                site=call.site if call and not few else "",
            )
    return None
