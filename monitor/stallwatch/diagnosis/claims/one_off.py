"""A call too many or too few that happened to pair with another: the difference that shows comes later, elsewhere, or,
where sizes may differ in health, not at all."""

from itertools import pairwise

from stallwatch.diagnosis.analysis import Story
from stallwatch.diagnosis.calls import align
from stallwatch.diagnosis.calls.align import Divergence
from stallwatch.diagnosis.calls.sequences import Departure, program
from stallwatch.diagnosis.claim import Claim, group_name, operation_of, waiting_facts
from stallwatch.model.verdict import Fact, Mismatch


def before(story: Story, divergence: Divergence) -> Claim | None:
    """Given where two members differ, name the one that was one call off already, if one alone was."""
    if divergence.decided_by == "majority":
        return None  # a third member has told who differs
    departure = _alone(story, divergence.group, divergence.seq)
    if departure is None:
        return None
    then = Fact(
        f"under #{divergence.seq} members then called {align.describe(divergence.found)} and "
        f"{align.describe(divergence.expected)}",
        "flight recorders",
    )
    return _claim(story, departure, divergence.group, divergence.seq, divergence.expected.operation, (then,))


def in_what_all_entered(story: Story) -> Claim | None:
    """Everybody stands in calls that look alike, and one alone had come there by a call of its own."""
    for point in story.roots.closed:
        departure = _alone(story, point.group, point.seq + 1) if point.seq else None
        if departure is None:
            continue
        wait = next(wait for wait in story.graph.waits if wait.point == point)
        return _claim(story, departure, point.group, point.seq, operation_of(story, wait), ())
    return None


def _alone(story: Story, group: int, seq: int) -> Departure | None:
    """The one member that first called something of its own in the group, under a lower number than `seq`.

    Only where all members were recorded: a rank's habits by themselves change with the phases of its program.
    """
    members = story.case.groups[group]
    if not members.members_known or len(story.case.streams[group]) < len(members.ranks):
        return None
    departed = [d for d in story.departures if d.seq and story.case.group_of[d.rank, d.found.stream] == group]
    if not departed:
        return None
    first = min(departed, key=lambda departure: departure.seq)
    alone = sum(departure.seq == first.seq for departure in departed) == 1
    known = alone and first.seq < seq and bool(first.expected) and (len(members.ranks) > 2 or _is_habit(story, first))
    return first if known else None


def _is_habit(story: Story, departure: Departure) -> bool:
    """True when the rank had gone the usual way more than once: of two members, a habit of one round is the other's
    word against its own."""
    calls = program(story.case, departure.rank)[: departure.place]
    before = calls[-1]
    usual = set(departure.expected)
    return sum(here == before and after in usual for here, after in pairwise(calls)) > 1


def _claim(
    story: Story, departure: Departure, group: int, seq: int, operation: str, then: tuple[Fact, ...]
) -> Claim | None:
    name = group_name(story.case, story.case.groups[group])
    usual, found = departure.expected[0], departure.found
    is_new = found not in program(story.case, departure.rank)[: departure.place]
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
            *waiting_facts(story),
        ),
        where="collective",
        mismatch=Mismatch("count", *counts),
        group=group,
        operation=operation,
        seq=seq,
        site=found.site,
    )
