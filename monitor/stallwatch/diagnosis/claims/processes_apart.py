"""Every rank waits for a process of its own, as where a checkpoint is written beside training. These have groups of
their own, which no recorder of the ranks holds: most stand in a collective, and those of a few have not come to it."""

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, named
from stallwatch.model.verdict import Fact


def claim(analysis: Analysis) -> Saying:
    """Most ranks' processes stand in a collective, and those of a few have not come to it."""
    case = analysis.case
    children = {rank: child for rank in case.observed if (child := case.activity(rank).helpers.child) is not None}
    inside = [rank for rank, child in children.items() if child.in_collective]
    outside = [rank for rank in children if rank not in inside]
    still = all(case.activity(rank).progress.moving is False for rank in case.observed)
    if not outside or 2 * len(outside) >= len(case.observed) or not still:
        return None
    if analysis.graph.waits or case.unobserved or len(children) < len(case.observed):
        return None
    places = {children[rank].where for rank in outside}
    facts = [Fact(f"processes of {named(inside)} stand in a collective of their own", "py-spy")]
    facts += [Fact(f"that of rank {rank}, {children[rank].pid}, does not", "py-spy") for rank in outside]
    return Claim(
        cause="not_entered",
        culprits=tuple(outside),
        confidence="likely",
        because=(*facts, *activity_facts(analysis, outside)),
        where=places.pop() if len(places) == 1 else "unknown",
        told_waiting=tuple(inside),
    )
