"""Ranks that all stand in sends and receives, nobody absent, wait for each other: gloo records no point-to-point, and
NCCL none whose communicator is being made."""

from collections.abc import Sequence

from stallwatch.diagnosis.activity.rank_activity import UNNAMED_TRANSFER
from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.calls import align
from stallwatch.diagnosis.calls.sequences import SequenceBreak
from stallwatch.diagnosis.claim import (
    Claim,
    Saying,
    activity_facts,
    departed_cause,
    left_alike,
    named,
    perhaps_members,
    some_stayed,
    waiting_facts,
)
from stallwatch.diagnosis.waits.graph import Strength
from stallwatch.model.verdict import Fact, Mismatch

_NO_OTHER_SIDE = "whose other side has not come"


def claim(analysis: Analysis) -> Saying:
    """All that are not waiting elsewhere stand in transfers that no recorder shows."""
    stands = set(analysis.graph.unrecorded)
    if analysis.hangs and analysis.roots.circles:
        return _circle(analysis, max(analysis.roots.circles, key=lambda ranks: (len(ranks), ranks)))
    if not analysis.hangs or not stands or analysis.roots.cycles or _closed(analysis):
        return None
    # Whose stack was not read may stand in a transfer, too.
    unseen = {
        rank
        for rank in analysis.case.observed
        if rank not in analysis.waiting and not analysis.case.activity(rank).known
    }
    absent = {rank for rank, _ in analysis.roots.absent} - unseen
    roots = absent if analysis.graph.waits else stands - analysis.in_the_one_call
    others = {*analysis.case.observed, *analysis.case.world} - set(analysis.waiting) - unseen
    perhaps = set(analysis.graph.perhaps)
    if not roots or not roots <= stands | perhaps or others:
        return None
    transfers = sorted(rank for rank in roots if analysis.case.activity(rank).call.is_transfer)
    # A wait without a name, whose rank has nothing pending in any record: of a transfer as well.
    unnamed = {rank for rank in roots & stands if _waits_unnamed(analysis, rank)} - perhaps
    if not transfers or not roots - set(transfers) <= perhaps | unnamed:
        return None
    # A rank's habits by themselves change with the phases of its program: its peers must be there to compare.
    compared = analysis.departures if analysis.whole_world_seen and left_alike(analysis.departures) else ()
    compared = compared if some_stayed(analysis, compared) else ()
    left = tuple(sorted({departure.rank for departure in compared}))
    few = 2 * len(left) < len(analysis.case.observed) or not set(left) & set(transfers)
    # Each that went another way owes somebody a message: more of them than stand in one have come to something new.
    owed = len(left) <= len(transfers) or _at_the_end(analysis, compared)
    if left and len(left) < len(analysis.case.observed) and few and owed and not unnamed:
        return _departed(analysis, left, transfers)
    if unseen or roots & perhaps:
        return None
    # A message has two ends, and two that stand in one alone, for both of whom all others wait, may be these. Where
    # others wait for one of them only, the other may wait for one of those; of many each may wait for the next. So may
    # each of two whose requests are of messages with several ranks, as those of a ring are, of which no stack tells.
    held_up = [
        {blocker.rank for blocker in analysis.graph.blockers[wait.point] if blocker.strength < Strength.SUPPOSED}
        for wait in analysis.graph.waits
    ]
    inside = {wait.rank for wait in analysis.graph.waits} | analysis.in_the_one_call
    elsewhere = set(analysis.case.world) - inside - set(transfers)
    named_ways = all(analysis.case.activity(rank).call.collective != UNNAMED_TRANSFER for rank in transfers)
    paired = len(transfers) == 2 and (named_ways or len(analysis.case.world) == 2)
    both = paired and all(held >= set(transfers) for held in held_up) and not elsewhere
    connects = all(_connects(analysis, rank) for rank in transfers)
    return Claim(
        cause="p2p_unmatched",
        culprits=tuple(transfers) if both else (),
        confidence="possible",
        because=(
            _standing(transfers),
            *waiting_facts(analysis),
            *activity_facts(analysis, transfers),
        ),
        where="collective",
        operation=analysis.case.activity(transfers[0]).call.collective,
        missing=() if connects else ("the peers of the sends and receives: gloo does not record them",),
        ends_by_itself="first_use" if connects or analysis.by_stacks_alone else None,  # which back end?
        told="" if both else _where_they_stand(analysis, transfers),
        steps=() if both or set(transfers) == set(analysis.case.observed) else (_look_first(analysis, transfers),),
    )


def _at_the_end(analysis: Analysis, departures: Sequence[SequenceBreak]) -> bool:
    return all(departed_cause(analysis, departure) == "data_exhausted" for departure in departures)


def _waits_unnamed(analysis: Analysis, rank: int) -> bool:
    activity = analysis.case.activity(rank)
    waits = bool(activity.call.in_collective) and activity.call.collective is None
    return waits and not activity.place.in_store_or_init and analysis.case.recorded(rank)


def _closed(analysis: Analysis) -> bool:
    """Some collective has all its members, none of them unknown, and does not end."""
    return any(
        not analysis.graph.unknown[point] and not perhaps_members(analysis.case, point.group)
        for point in analysis.roots.closed
    )


def _at_line(analysis: Analysis, transfers: list[int]) -> str:
    """Their line, where they share it."""
    frames = {analysis.case.activity(rank).place.frame for rank in transfers}
    frame = next(iter(frames)) if len(frames) == 1 else None
    return f" at {frame.file}:{frame.line} in {frame.function}" if frame else ""


def _where_they_stand(analysis: Analysis, transfers: list[int]) -> str:
    one = len(transfers) == 1
    here = _at_line(analysis, transfers)
    return f"{named(transfers)} of them in {'a send or receive' if one else 'sends or receives'}{here} {_NO_OTHER_SIDE}"


def _look_first(analysis: Analysis, transfers: list[int]) -> str:
    """Where the transfers are: their ranks may have one too many, or their peers one too few."""
    one = len(transfers) == 1
    has, it, peer = (
        ("it has one too many", "it exchanges", "the rank")
        if one
        else ("one of them has one too many", "they exchange", "a rank")
    )
    whose = f"rank {transfers[0]}'s sends and receives" if one else f"the sends and receives of {named(transfers)}"
    return f"Look at {whose}{_at_line(analysis, transfers)}: {has}, or {peer} that {it} with there has left one out."


def _connects(analysis: Analysis, rank: int) -> bool:
    """A communicator of its own is made at a pair's first send or receive, and its recorder hears of it then; one that
    knows its groups from their creation, as gloo's does, would know this one."""
    summary = analysis.case.summaries.get(rank)
    if summary is None or not summary.backends:
        return False
    told = zip(summary.backends, summary.completion, strict=False)
    return all(completion == "states" or backend in summary.groupless for backend, completion in told)


def _circle(analysis: Analysis, ranks: tuple[int, ...]) -> Claim:
    """Their hooks tell whom each waits for, and it is one of them."""
    calls = [(rank, analysis.case.activity(rank).call.named_call) for rank in ranks]
    facts = tuple(
        Fact(f"rank {rank} stands in {call.function} with rank {call.rank}", f"hook of rank {rank}")
        for rank, call in calls
        if call is not None
    )
    return Claim(
        cause="p2p_unmatched",
        culprits=ranks,
        confidence="likely",
        because=(*facts, *waiting_facts(analysis), *activity_facts(analysis, ranks)),
        where="collective",
        operation=analysis.case.activity(ranks[0]).call.collective,
    )


def _departed(analysis: Analysis, left: tuple[int, ...], transfers: list[int]) -> Claim:
    first = next(departure for departure in analysis.departures if departure.rank == left[0])
    due = first.expected[0] if first.expected else None
    usual = align.describe(due) if due else "something else"
    cause = departed_cause(analysis, first)
    differs = due is not None and due.operation != first.found.operation
    return Claim(
        # No recorder shows a circle over groups here, only that it called one thing for another.
        "collective_mismatch" if cause == "group_order" else cause,
        left,
        "likely",
        because=(
            Fact(
                f"rank {first.rank} called {align.describe(first.found)} where it had always called {usual}",
                f"flight recorder of rank {first.rank}",
            ),
            _standing(transfers),
            *waiting_facts(analysis),
        ),
        where="collective",
        mismatch=Mismatch("op", due.operation, first.found.operation)
        if due and differs and cause == "group_order"
        else None,
        group=analysis.case.group_of[first.rank, first.found.stream],
        operation=due.operation if due else None,
        site=first.found.site,
    )


def _standing(transfers: list[int]) -> Fact:
    one = len(transfers) == 1
    who = f"{named(transfers)} {'stands' if one else 'stand'} in {'a send or receive' if one else 'sends or receives'}"
    return Fact(f"{who}, and every other rank waits for {'it' if one else 'them'}", "py-spy")
