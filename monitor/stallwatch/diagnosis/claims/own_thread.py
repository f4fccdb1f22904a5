"""Ranks that others wait for stand at a lock while another thread of theirs stands in a collective of its own: the lock
is most likely that thread's, and who lacks in that collective closes the circle.

Recorders show the two waits and no link between them: without this the ranks at the lock would be accused.
"""

from stallwatch.diagnosis.analysis import Story
from stallwatch.diagnosis.claim import (
    Claim,
    Saying,
    activity_facts,
    common_where,
    named,
    operation_of,
    point_name,
    waiting_facts,
)
from stallwatch.diagnosis.waits.graph import Wait
from stallwatch.model.verdict import Fact


def claim(story: Story) -> Saying:
    absent = {rank for rank, _ in story.roots.absent}
    if not story.hangs or not absent:
        return None
    beside = {wait.rank: wait for wait in story.graph.waits if wait.rank in absent}
    if any(rank not in beside or story.case.activity(rank).where != "lock" for rank in absent):
        return None
    points = {wait.point for wait in beside.values()}
    if len(points) != 1:
        return None
    wait = beside[min(absent)]
    lacking = tuple(sorted(_lacking(story, wait) - absent))
    # Only who waits, too, closes the circle; one that works will come.
    if not lacking or not set(lacking) <= set(story.waiting) or 2 * len(lacking) > len(story.case.observed):
        return None
    call = story.case.call(wait.rank, wait.pending)
    return Claim(
        cause="not_entered",
        culprits=lacking,
        confidence="possible",
        because=(
            Fact(
                f"{named(absent)} {'waits' if len(absent) == 1 else 'wait'} for a lock, while another thread of the "
                f"same process waits in {point_name(story, wait.point, call)}: likely that thread holds it",
                "flight recorders and py-spy",
            ),
            *waiting_facts(story),
            *activity_facts(story, lacking),
        ),
        where=common_where(story, lacking),
        group=wait.point.group,
        operation=operation_of(story, wait),
        seq=wait.point.seq or None,
        missing=("which thread holds the lock: no recorder tells",),
    )


def _lacking(story: Story, wait: Wait) -> set[int]:
    """Members that have not entered; of a group whose members nobody wrote down, every rank that has no such call."""
    blockers = {blocker.rank for blocker in story.graph.blockers[wait.point]}
    group = story.case.groups[wait.point.group]
    if blockers or group.members_known:
        return blockers
    entered = story.case.streams[wait.point.group]
    return {rank for rank in story.case.world if rank not in entered and story.case.recorded(rank)}
