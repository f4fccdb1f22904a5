"""Members of one group entered different things under one number; or left the loop and wait at its end."""

from msgspec.structs import replace

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.calls import align
from stallwatch.diagnosis.calls.align import Divergence
from stallwatch.diagnosis.came_through import came_through, came_through_facts, uncompared
from stallwatch.diagnosis.claim import (
    Claim,
    Saying,
    group_name,
    named,
    waiting_facts,
)
from stallwatch.diagnosis.job.groups import key
from stallwatch.diagnosis.job.leaving import cleans_up, have_left, stand_before
from stallwatch.diagnosis.recorder import signature
from stallwatch.diagnosis.step import NextStep, restart
from stallwatch.diagnosis.who_differs import who_differs
from stallwatch.formats.rank_ranges import verb
from stallwatch.model.summary import Call
from stallwatch.model.verdict import Fact, Mismatch, Rejected


def claim(analysis: Analysis) -> Saying:
    """Members called different things under one number, or one of them has left the loop and waits at its end."""
    divergence = analysis.divergence
    if divergence is None and (odd := _odd_shape(analysis)) is not None:
        return odd
    if analysis.shifted is not None:
        return None  # it began with a call before: one_call_off tells of it
    if divergence is None:
        return Rejected("collective_mismatch", "operation, size and dtype agree wherever members can be compared")
    culprits, confidence = who_differs(analysis, divergence)
    if not culprits:
        return _parted(analysis, divergence)
    absent = {rank for rank, _ in analysis.roots.absent}
    through = came_through(analysis)
    if not divergence.open and analysis.proven_stuck and absent and not absent & set(culprits) and not through:
        return Rejected(
            "collective_mismatch",
            f"{named(culprits)} called something else under #{divergence.seq}, but that has completed",
        )
    left = _left(analysis, divergence, culprits)
    at_end = divergence.found_is_new and signature.is_barrier(divergence.found.operation)
    exhausted = divergence.expected_recurs and (left or (left is None and at_end))
    if (exhausted or through or not divergence.open) and confidence == "certain":
        confidence = "likely"  # why one left, no recorder tells; what has completed holds nobody
    if not divergence.open and not through and _has_gone_on(analysis, divergence):
        confidence = "possible"
    name = group_name(analysis.case, analysis.case.groups[divergence.group])
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
            *came_through_facts(analysis),
            *_loop_facts(analysis, culprits, left, _others(analysis, divergence, culprits)),
            *waiting_facts(analysis),
        ),
        missing=(*(_other_readings(analysis, culprits) if exhausted else ()), *uncompared(analysis)),
        where=None if exhausted else "collective",
        mismatch=Mismatch(divergence.kind, _value(divergence, True), _value(divergence, False)),
        group=divergence.group,
        operation=divergence.expected.operation,
        seq=divergence.seq,
        site=divergence.found.site,
        paired=_since(analysis, divergence) if not divergence.open and analysis.graph.waits else "",
    )


def _has_gone_on(analysis: Analysis, divergence: Divergence) -> bool:
    """Whether its members have completed calls after it, and all of them fit: what these wait in now, something else
    may hold."""
    members = analysis.case.streams[divergence.group].values()
    until = min(member.stream.completed for member in members)
    later = [[member.call_at(seq) for member in members] for seq in range(divergence.seq + 1, until + 1)]
    return bool(later) and all(len({key(call) for call in calls if call is not None}) == 1 for calls in later)


def _since(analysis: Analysis, divergence: Divergence) -> str:
    """Of calls that did not fit and have completed: whether those after it fit, by one of either side."""
    members = analysis.case.streams[divergence.group]
    sides = (divergence.culprits, _others(analysis, divergence, divergence.culprits))
    one, other = (next((members[rank] for rank in ranks if rank in members), None) for ranks in sides)
    if one is None or other is None:
        return "that completed"
    last = min(one.stream.last_seq, other.stream.last_seq)
    calls = [(one.call_at(seq), other.call_at(seq)) for seq in range(divergence.seq + 1, last + 1)]
    fits = [key(mine) == key(theirs) for mine, theirs in calls if mine is not None and theirs is not None]
    if not fits:
        return "that completed"
    return f"that completed, and the calls after it {'are alike' if all(fits) else 'do not fit'}"


_APART: tuple[NextStep, ...] = (
    'Give what calls from a thread of its own a process group of its own, `dist.new_group(backend="gloo")`, as '
    "`process_group=` of torch.distributed.checkpoint.async_save: the calls of one group must come in one order on "
    "every rank.",
    "Or have the training thread wait for that thread's result before it calls anything in the same group.",
    restart(
        "Stop the job and start it from its last checkpoint: this wait never ends, and may come again at any time."
    ),
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
        steps=_APART if divergence.decided_by == "threads" else (),
        steps_are_all=divergence.decided_by == "threads",
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
    if left:
        said = f"{verb(culprits, 'has', 'have')} left the loop that the others are in"
    elif stand_before(analysis.case, culprits, others):
        said = f"{verb(culprits, 'stands', 'stand')} before the loop that the others are in"
    else:
        said = f"{verb(culprits, 'stands', 'stand')} in the same loop as the others"
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
