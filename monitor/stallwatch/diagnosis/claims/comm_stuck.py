"""Everybody has entered the same operation and it does not end. Nobody is named."""

from stallwatch.diagnosis.analysis import Story
from stallwatch.diagnosis.claim import Claim, Saying, is_first_use, named, point_name, waiting_facts
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.job.groups import family
from stallwatch.diagnosis.recorder import signature
from stallwatch.diagnosis.waits.graph import Wait
from stallwatch.model.verdict import Fact, Rejected
from stallwatch.progress.job import many_move


def claim(story: Story) -> Saying:
    if not story.hangs:
        return None
    if not story.roots.closed:
        return Rejected("comm_stuck", "somebody has not entered") if story.graph.waits else None
    hidden = set(story.graph.unrecorded) | set(story.graph.perhaps)  # their own waits may end here, too
    if any(rank not in hidden for rank, _ in story.roots.absent) or story.roots.cycles:
        return Rejected("comm_stuck", "other waits end at ranks that have not entered")
    moving = [rank for rank, activity in story.case.activities.items() if activity.moving]
    if story.graph.moving and many_move(moving, story.case.observed):
        return Rejected("comm_stuck", f"{named(moving)} make progress: what is entered will end")
    stuck = {wait.point for wait in story.graph.waits if wait.stuck}
    point = next((point for point in story.roots.closed if point in stuck), story.roots.closed[0])
    if story.case.groups[point.group].backend in story.case.untold:
        return Rejected("comm_stuck", "the recorder does not tell whether what was entered ends")
    if story.graph.unknown[point]:
        return Rejected("comm_stuck", f"nothing tells whether {named(story.graph.unknown[point])} entered")
    if not story.whole_world_seen:
        return Rejected("comm_stuck", "not every rank of the job was seen")
    outside = _outside(story.case, point.group)
    if outside:
        return Rejected("comm_stuck", f"no recorder names the members of this group: {named(outside)} may be one")
    waits = [wait for wait in story.graph.waits if wait.point == point]
    call = story.case.call(waits[0].rank, waits[0].pending)
    uneven = call is not None and not signature.is_synchronising(call.operation) and not _one_root(story, waits)
    sure = story.proven_stuck and story.case.groups[point.group].members_known and not uneven
    return Claim(
        cause="comm_stuck",
        culprits=(),
        confidence="likely" if sure else "possible",
        missing=(f"which root each rank named in {call.operation}: another one on some of them looks the same",)
        if uneven and call is not None
        else (),
        because=(
            Fact(f"all members have entered {point_name(story, point, call)}, none finishes", "flight recorders"),
            *waiting_facts(story),
        ),
        where="collective",
        ends_by_itself="first_use" if is_first_use(story, waits) else None,
        group=point.group,
        operation=call.operation if call else None,
        seq=point.seq or None,
    )


def _one_root(story: Story, waits: list[Wait]) -> bool:
    """True when all that wait are known to name one root; calls without a root have no such trouble."""
    calls = [story.case.activity(wait.rank).named_call for wait in waits]
    return all(call is not None and call.rank is not None for call in calls) and len({c.rank for c in calls if c}) == 1


def _outside(case: Case, group: int) -> list[int]:
    """Ranks that may be members of a group whose members nobody wrote down: in none of its kind so far."""
    if case.groups[group].members_known:
        return []
    kind = family(case.groups[group].description)
    users = {rank for other in case.groups if family(other.description) == kind for rank in other.ranks}
    return sorted(set(case.world) - users)
