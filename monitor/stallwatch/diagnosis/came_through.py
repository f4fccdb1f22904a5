"""Calls that did not fit have completed, and ranks came to the end of their program after that."""

from collections.abc import Iterable

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import named
from stallwatch.diagnosis.ends import end_of, exit_code
from stallwatch.diagnosis.job.groups import key
from stallwatch.diagnosis.waits.graph import Wait
from stallwatch.diagnosis.who_differs import who_differs
from stallwatch.formats.rank_ranges import verb
from stallwatch.model.verdict import Fact


def came_through(analysis: Analysis) -> tuple[int, ...]:
    """Ranks that ended in order after their peers' calls had parted, in a group in which these still wait at the end of
    their program; none where one of them is who called otherwise, or any rank ended in another way.

    NCCL pairs calls by their order alone and completes what does not fit: from there on it moves and counts wrong, and
    one rank comes to the end of its program where the others are left in their last call. Where they wait in what they
    had called before, their loop goes on, and who ended has left it.
    """
    gone = tuple(rank for rank, activity in analysis.case.activities.items() if activity.end.gone)
    group, culprits = _parted(analysis)
    in_order = all(exit_code(end_of(analysis, rank)) == 0 for rank in gone)
    if not culprits or not in_order or not may_have_come_through(analysis, gone):
        return ()
    return gone if any(_is_new(analysis, wait) for wait in analysis.graph.waits if wait.point.group == group) else ()


def may_have_come_through(analysis: Analysis, gone: Iterable[int]) -> bool:
    """Whether calls that did not fit have completed in a group of all these ranks, and none of them is known to have
    made them: they have come to their end by that, or have left."""
    group, culprits = _parted(analysis)
    return group is not None and {*gone} <= {*analysis.case.groups[group].ranks} - {*culprits}


def _parted(analysis: Analysis) -> tuple[int | None, tuple[int, ...]]:
    """The group in which calls that did not fit have completed, None where there is none; and whose these were."""
    apart, shifted = analysis.divergence, analysis.shifted
    if shifted is not None:
        return shifted.group, (shifted.departure.rank,)
    if apart is not None and not apart.open:
        return apart.group, who_differs(analysis, apart)[0]
    return None, ()


def _is_new(analysis: Analysis, wait: Wait) -> bool:
    """Whether it waits in what it had never called in that group, from that line."""
    call, member = analysis.case.call(wait.rank, wait.pending), analysis.case.streams[wait.point.group].get(wait.rank)
    if call is None or member is None or not wait.point.seq:
        return False
    before = {(key(one), one.site) for one in member.calls_before(wait.point.seq)}
    return (key(call), call.site) not in before


def came_through_facts(analysis: Analysis) -> tuple[Fact, ...]:
    """That ranks came to their end in order, if any did."""
    if not (ranks := came_through(analysis)):
        return ()
    said = f"{named(ranks)} ended with exit code 0 after that: what does not fit is paired by its order"
    return (Fact(said, "/proc and flight recorders"),)


def uncompared(analysis: Analysis) -> tuple[str, ...]:
    """What would tell whether one that came to its end had called as its peers."""
    ranks = [rank for rank in came_through(analysis) if not analysis.case.recorded(rank)]
    return (f"what {named(ranks)} called before {verb(ranks, 'it', 'they')} ended",) if ranks else ()
