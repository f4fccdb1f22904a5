"""Ranks that others wait for stand at a lock while another thread of theirs stands in a collective of its own: the lock
is most likely that thread's, and who lacks in that collective closes the circle.

Recorders show the two waits and no link between them: without this the ranks at the lock would be accused."""

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, common_where, named, point_name, waiting_facts
from stallwatch.diagnosis.waits.graph import Wait
from stallwatch.formats.rank_ranges import verb
from stallwatch.model.verdict import Fact


def claim(analysis: Analysis) -> Saying:
    """Ranks that others wait for stand at a lock that their own thread, in another collective, most likely holds."""
    absent = {rank for rank, _ in analysis.roots.absent}
    if not analysis.hangs or not absent:
        return None
    beside = {wait.rank: wait for wait in analysis.graph.waits if wait.rank in absent}
    if any(rank not in beside or analysis.case.activity(rank).place.where != "lock" for rank in absent):
        return None
    points = {wait.point for wait in beside.values()}
    if len(points) != 1:
        return None
    wait = beside[min(absent)]
    lacking = tuple(sorted(_lacking(analysis, wait) - absent))
    # Only who waits, too, closes the circle; one that works will come.
    if not lacking or not set(lacking) <= set(analysis.waiting) or 2 * len(lacking) > len(analysis.case.observed):
        return None
    call = analysis.case.call(wait.rank, wait.pending)
    return Claim(
        cause="not_entered",
        culprits=lacking,
        confidence="possible",
        because=(
            Fact(
                f"{named(absent)} {verb(absent, 'waits', 'wait')} for a lock, while another thread of the "
                f"same process waits in {point_name(analysis, wait.point, call)}: likely that thread holds it",
                "flight recorders and py-spy",
            ),
            *waiting_facts(analysis),
            *activity_facts(analysis, lacking),
        ),
        where=common_where(analysis, lacking),
        missing=("which thread holds the lock: no recorder tells",),
    ).at(analysis, wait)


def _lacking(analysis: Analysis, wait: Wait) -> set[int]:
    """Members that have not entered; of a group whose members nobody wrote down, every rank that has no such call."""
    blockers = {blocker.rank for blocker in analysis.graph.blockers[wait.point]}
    group = analysis.case.groups[wait.point.group]
    if blockers or group.members_known:
        return blockers
    entered = analysis.case.streams[wait.point.group]
    return {rank for rank in analysis.case.world if rank not in entered and analysis.case.recorded(rank)}
