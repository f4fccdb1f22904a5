"""Some ranks wait in a collective that no recorder holds, and all others in one that comes in its place: neither lets
the other go."""

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, main_wait, named, operation_of, waiting_facts
from stallwatch.formats.rank_ranges import verb
from stallwatch.model.verdict import Fact, Mismatch

# gloo's: by messages of its own between each rank and rank 0 (torch `ProcessGroupGloo::monitoredBarrier`).
_UNRECORDED = ("monitored_barrier",)


def claim(analysis: Analysis) -> Saying:
    """All ranks stand in the one or the other; who are fewer are named, and of halves nobody."""
    case = analysis.case
    waits, inside = {wait.rank for wait in analysis.graph.waits}, analysis.absent
    if not (analysis.hangs and waits and inside) or case.unobserved or not analysis.whole_world_seen:
        return None
    calls = {case.activity(rank).call.collective for rank in inside}
    wait = main_wait(analysis, inside)
    if wait is None or len(calls) != 1 or {*waits, *inside} != set(case.world):
        return None
    call = calls.pop()
    moving = {case.activity(rank).progress.moving for rank in inside}
    if call not in _UNRECORDED or True in moving:
        return None
    others = tuple(sorted(waits))
    few, most = sorted((tuple(inside), others), key=len)
    culprits = few if len(few) < len(most) else ()
    operations = {tuple(inside): call, others: operation_of(analysis, wait)}
    stands = verb(inside, "stands", "stand")
    return Claim(
        cause="collective_mismatch",
        culprits=culprits,
        confidence="likely" if culprits and moving == {False} else "possible",  # one look tells of no standstill
        because=(
            Fact(f"{named(inside)} {stands} in {call}, which no recorder holds", "py-spy"),
            *waiting_facts(analysis),
            *activity_facts(analysis, inside),
        ),
        where="collective",
        mismatch=Mismatch("op", operations[most], operations[few]) if culprits else None,
        group=wait.point.group,
        operation=operations[most],
        seq=wait.point.seq or None,
        parts=() if culprits else tuple((ranks, operations[ranks], "") for ranks in sorted(operations)),
    )
