"""A rank raised and its process lives on: it hangs in its teardown, or swallowed the exception and left the others
waiting."""

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, main_wait, named, waiting_facts
from stallwatch.diagnosis.job.leaving import handles, have_left, raised_alone
from stallwatch.diagnosis.recorder import signature
from stallwatch.formats.rank_ranges import verb
from stallwatch.model.verdict import Confidence, Fact, Rejected


def claim(analysis: Analysis) -> Saying:
    """A rank raised, alone, and hangs in its teardown or lives on without the others."""
    if not analysis.hangs:
        return None
    suspects = {rank for rank, _ in analysis.roots.absent} | set(analysis.graph.unrecorded) | set(_parted(analysis))
    raised, tearing = [], []
    for rank, activity in analysis.case.activities.items():
        if activity.end.gone:
            continue
        if raised_alone(analysis.case, rank):
            # Who works on while it handles one may be trying again, or compile: that kind of program lives in `except`.
            raised_in = activity.exceptions.raised
            swallowed = raised_in is not None and raised_in.swallowed
            parted = swallowed and (activity.exceptions.handled is None or bool(activity.call.in_collective))
            if activity.place.in_teardown or (rank in suspects and parted):
                raised.append(rank)
        elif activity.place.in_teardown and rank in suspects:
            tearing.append(rank)
    culprits = raised or tearing
    if not culprits:
        return _handler(analysis) or _logged_beside(analysis)
    if len(culprits) == len(analysis.case.observed):
        return Rejected("rank_raised", "every rank is in its teardown")
    facts = [
        Fact(f"rank {rank} raised {analysis.case.activity(rank).exceptions.text}", _raised_by(analysis, rank))
        if analysis.case.activity(rank).exceptions.text
        else Fact(f"rank {rank} is in its teardown while others are in the loop", "py-spy")
        for rank in culprits
    ]
    return _claim_of(analysis, culprits, facts, "likely" if raised else "possible")


def _claim_of(analysis: Analysis, culprits: list[int], facts: list[Fact], confidence: Confidence) -> Claim:
    wait = main_wait(analysis, culprits)
    return Claim(
        cause="rank_raised",
        culprits=tuple(culprits),
        confidence=confidence,
        because=(*facts, *waiting_facts(analysis), *activity_facts(analysis, culprits)),
        where="teardown" if any(analysis.case.activity(rank).place.in_teardown for rank in culprits) else None,
    ).at(analysis, wait)


def _raised_by(analysis: Analysis, rank: int) -> str:
    return "its hook" if analysis.case.activity(rank).exceptions.handled else f"log of rank {rank}"


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
    stands = verb(parted, "stands", "stand")
    fact = Fact(f"{named(parted)} {stands} in an `except` block, the others do not", "py-spy and source")
    return _claim_of(analysis, list(parted), [fact], "likely")


def _logged_beside(analysis: Analysis) -> Claim | None:
    """One rank has left the loop that the others are in, and the log that they share ends with a traceback."""
    parted = _parted(analysis)
    if len(parted) != 1:
        return None
    case = analysis.case
    told = case.activity(parted[0]).exceptions.logged_beside
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
    return _claim_of(analysis, list(parted), [fact], "likely")
