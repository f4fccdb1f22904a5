"""A rank hit an exception and hangs in its teardown, or swallowed it and left the others waiting; or it has left the
loop that the others are in, where stacks alone tell."""

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, main_wait, named, operation_of, waiting_facts
from stallwatch.diagnosis.job.leaving import handles, have_left, raised_alone
from stallwatch.diagnosis.recorder import signature
from stallwatch.model.verdict import Confidence, Fact, Rejected


def claim(analysis: Analysis) -> Saying:
    """A rank raised, alone, and hangs in its teardown or lives on without the others."""
    if not analysis.hangs:
        return None
    suspects = {rank for rank, _ in analysis.roots.absent} | set(analysis.graph.unrecorded) | set(_parted(analysis))
    raised, tearing = [], []
    for rank, activity in analysis.case.activities.items():
        if activity.gone:
            continue
        if raised_alone(analysis.case, rank):
            # Who works on while it handles one may be trying again, or compile: that kind of program lives in `except`.
            parted = activity.exception_swallowed and (activity.handled is None or bool(activity.in_collective))
            if activity.in_teardown or (rank in suspects and parted):
                raised.append(rank)
        elif activity.in_teardown and rank in suspects:
            tearing.append(rank)
    culprits = raised or tearing
    if not culprits:
        return _handler(analysis) or _logged_beside(analysis)
    if len(culprits) == len(analysis.case.observed):
        return Rejected("rank_raised", "every rank is in its teardown")
    facts = [
        Fact(f"rank {rank} raised {analysis.case.activity(rank).exception}", _source(analysis, rank))
        if analysis.case.activity(rank).exception
        else Fact(f"rank {rank} is in its teardown while others are in the loop", "py-spy")
        for rank in culprits
    ]
    return _claim(analysis, culprits, facts, "likely" if raised else "possible")


def _claim(analysis: Analysis, culprits: list[int], facts: list[Fact], confidence: Confidence) -> Claim:
    wait = main_wait(analysis, culprits)
    return Claim(
        cause="rank_raised",
        culprits=tuple(culprits),
        confidence=confidence,
        because=(*facts, *waiting_facts(analysis), *activity_facts(analysis, culprits)),
        where="teardown" if any(analysis.case.activity(rank).in_teardown for rank in culprits) else None,
        group=wait.point.group if wait else None,
        operation=operation_of(analysis, wait) if wait else None,
        seq=wait.point.seq or None if wait else None,
    )


def _source(analysis: Analysis, rank: int) -> str:
    return "its hook" if analysis.case.activity(rank).handled else f"log of rank {rank}"


def _parted(analysis: Analysis) -> tuple[int, ...]:
    """Ranks that called something else than most, somewhere where somebody still waits."""
    divergence = analysis.divergence
    return divergence.culprits if divergence and divergence.open else ()


def _handler(analysis: Analysis) -> Claim | None:
    """Those that parted stand in an `except` that no other rank is in: which exception, nothing tells."""
    parted = _parted(analysis)
    if not parted or not all(handles(analysis.case, rank) for rank in parted):
        return None
    if any(handles(analysis.case, rank) for rank in analysis.case.observed if rank not in parted):
        return None
    stands = "stands" if len(parted) == 1 else "stand"
    fact = Fact(f"{named(parted)} {stands} in an `except` block, the others do not", "py-spy and source")
    return _claim(analysis, list(parted), [fact], "likely")


def _logged_beside(analysis: Analysis) -> Claim | None:
    """One rank has left the loop that the others are in, and the log that they share ends with a traceback."""
    parted = _parted(analysis)
    if len(parted) != 1:
        return None
    case = analysis.case
    told = case.activity(parted[0]).logged_beside
    others = [rank for rank in case.observed if rank != parted[0]]
    left = have_left(case, parted, others)
    divergence = analysis.divergence
    at_end = divergence is not None and signature.is_barrier(divergence.found.operation)
    if told is None or left is False or not (left or at_end):
        return None
    fact = Fact(
        f"the log that the ranks share ends with a traceback: {told}; rank {parted[0]} alone has left the loop",
        "the shared log",
    )
    return _claim(analysis, list(parted), [fact], "likely")


# No recorder was read, and every rank stands in communication: who has left the loop that the others are in is seen by
# the lines alone.


def left_the_loop(analysis: Analysis) -> Saying:
    """By stacks alone: fewer than half stand outside of the loop that all others are in."""
    case = analysis.case
    stands = set(analysis.graph.unrecorded)
    if not analysis.hangs or analysis.graph.waits or case.unobserved or stands != set(case.observed):
        return None
    if any(case.recorded(rank) or case.activity(rank).moving is not False for rank in case.observed):
        return None
    lines: dict[tuple[str, int], list[int]] = {}
    for rank in case.observed:
        frame = case.activity(rank).frame
        if frame is None:
            return None
        lines.setdefault((frame.file, frame.line), []).append(rank)
    most = max(lines.values(), key=len)
    left = tuple(sorted(stands - set(most)))
    if not left or 2 * len(most) <= len(stands) or not have_left(case, left, most):
        return None
    return Claim(
        cause="data_exhausted",
        culprits=left,
        confidence="possible",
        because=(
            Fact(
                f"{named(left)} {'has' if len(left) == 1 else 'have'} left the loop that {named(most)} "
                f"{'is' if len(most) == 1 else 'are'} in",
                "py-spy and source",
            ),
            *waiting_facts(analysis),
            *activity_facts(analysis, left),
        ),
        missing=("what each rank called last: stallwatch.attach() lets the flight recorder be read",),
        operation=case.activity(most[0]).collective,
    )
