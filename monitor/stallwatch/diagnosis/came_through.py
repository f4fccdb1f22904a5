"""Calls that did not fit have completed, and ranks came to the end of their program after that."""

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import named
from stallwatch.diagnosis.ends import end_of, exit_code
from stallwatch.formats.rank_ranges import verb
from stallwatch.model.verdict import Fact


def came_through(analysis: Analysis) -> tuple[int, ...]:
    """Ranks that ended in order after their peers' calls had parted, in a group in which these still wait; none where
    one of them is who called otherwise, or any rank ended in another way.

    NCCL pairs calls by their order alone and completes what does not fit: from there on it moves and counts wrong, and
    one rank comes to the end of its program where the others are left in their last call.
    """
    apart, shifted = analysis.divergence, analysis.shifted
    if shifted is not None:
        group, culprits = shifted.group, {shifted.departure.rank}
    elif apart is not None and not apart.open:
        group, culprits = apart.group, {*apart.culprits}
    else:
        return ()
    gone = tuple(rank for rank, activity in analysis.case.activities.items() if activity.end.gone)
    if not culprits or culprits & {*gone} or any(exit_code(end_of(analysis, rank)) != 0 for rank in gone):
        return ()
    return gone if any(wait.point.group == group for wait in analysis.graph.waits) else ()


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
