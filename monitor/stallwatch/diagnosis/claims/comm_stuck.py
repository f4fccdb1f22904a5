"""Everybody has entered the same operation and it does not end. Nobody is named."""

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, is_first_use, named, point_name, waiting_facts
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.job.groups import family
from stallwatch.diagnosis.recorder import signature
from stallwatch.diagnosis.waits.graph import Wait
from stallwatch.model.verdict import Fact, Rejected
from stallwatch.progress.job_progress import many_move


def claim(analysis: Analysis) -> Saying:
    """All members have entered one operation and none finishes. Names nobody."""
    if not analysis.hangs:
        return None
    if not analysis.roots.closed:
        return Rejected("comm_stuck", "somebody has not entered") if analysis.graph.waits else None
    hidden = set(analysis.graph.unrecorded) | set(analysis.graph.perhaps)  # their own waits may end here, too
    if any(rank not in hidden for rank, _ in analysis.roots.absent) or analysis.roots.cycles:
        return Rejected("comm_stuck", "other waits end at ranks that have not entered")
    moving = [rank for rank, activity in analysis.case.activities.items() if activity.progress.moving]
    if many_move(moving, analysis.case.observed):
        return Rejected("comm_stuck", f"{named(moving)} make progress: what is entered will end")
    stuck = {wait.point for wait in analysis.graph.waits if wait.stuck}
    point = next((point for point in analysis.roots.closed if point in stuck), analysis.roots.closed[0])
    if analysis.case.groups[point.group].backend in analysis.case.untold:
        return Rejected("comm_stuck", "the recorder does not tell whether what was entered ends")
    if analysis.graph.unknown[point]:
        return Rejected("comm_stuck", f"nothing tells whether {named(analysis.graph.unknown[point])} entered")
    if not analysis.whole_world_seen:
        return Rejected("comm_stuck", "not every rank of the job was seen")
    outside = _outside(analysis.case, point.group)
    if outside:
        return Rejected("comm_stuck", f"no recorder names the members of this group: {named(outside)} may be one")
    waits = [wait for wait in analysis.graph.waits if wait.point == point]
    call = analysis.case.call(waits[0].rank, waits[0].pending)
    uneven = call is not None and not signature.is_synchronising(call.operation) and not _one_root(analysis, waits)
    sure = analysis.proven_stuck and analysis.case.groups[point.group].members_known and not uneven
    return Claim(
        cause="comm_stuck",
        culprits=(),
        confidence="likely" if sure else "possible",
        missing=(f"which root each rank named in {call.operation}: another one on some of them looks the same",)
        if uneven and call is not None
        else (),
        because=(
            Fact(f"all members have entered {point_name(analysis, point, call)}, none finishes", "flight recorders"),
            *waiting_facts(analysis),
        ),
        where="collective",
        ends_by_itself="first_use" if is_first_use(analysis, waits) else None,
        group=point.group,
        operation=call.operation if call else None,
        seq=point.seq or None,
    )


def _one_root(analysis: Analysis, waits: list[Wait]) -> bool:
    """True when all that wait are known to name one root; calls without a root have no such trouble."""
    calls = [analysis.case.activity(wait.rank).call.named_call for wait in waits]
    return all(call is not None and call.rank is not None for call in calls) and len({c.rank for c in calls if c}) == 1


def _outside(case: Case, group: int) -> list[int]:
    """Ranks that may be members of a group whose members nobody wrote down: in none of its kind so far."""
    if case.groups[group].members_known:
        return []
    kind = family(case.groups[group].description)
    users = {rank for other in case.groups if family(other.description) == kind for rank in other.ranks}
    return sorted(set(case.world) - users)
