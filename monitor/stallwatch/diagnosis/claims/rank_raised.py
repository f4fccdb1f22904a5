"""A rank hit an exception and hangs in its teardown, or swallowed it and left the others waiting."""

from stallwatch.diagnosis.analysis import Story
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, main_wait, named, operation_of, waiting_facts
from stallwatch.diagnosis.job.leaving import handles, have_left, raised_alone
from stallwatch.diagnosis.recorder import signature
from stallwatch.model.verdict import Confidence, Fact, Rejected


def claim(story: Story) -> Saying:
    if not story.hangs:
        return None
    suspects = {rank for rank, _ in story.roots.absent} | set(story.graph.unrecorded) | set(_parted(story))
    raised, tearing = [], []
    for rank, activity in story.case.activities.items():
        if activity.gone:
            continue
        if raised_alone(story.case, rank):
            # Who works on while it handles one may be trying again, or compile: that kind of program lives in `except`.
            parted = activity.exception_swallowed and (activity.handled is None or bool(activity.in_collective))
            if activity.in_teardown or (rank in suspects and parted):
                raised.append(rank)
        elif activity.in_teardown and rank in suspects:
            tearing.append(rank)
    culprits = raised or tearing
    if not culprits:
        return _handler(story) or _logged_beside(story)
    if len(culprits) == len(story.case.observed):
        return Rejected("rank_raised", "every rank is in its teardown")
    facts = [
        Fact(f"rank {rank} raised {story.case.activity(rank).exception}", _source(story, rank))
        if story.case.activity(rank).exception
        else Fact(f"rank {rank} is in its teardown while others are in the loop", "py-spy")
        for rank in culprits
    ]
    return _claim(story, culprits, facts, "likely" if raised else "possible")


def _claim(story: Story, culprits: list[int], facts: list[Fact], confidence: Confidence) -> Claim:
    wait = main_wait(story, culprits)
    return Claim(
        cause="rank_raised",
        culprits=tuple(culprits),
        confidence=confidence,
        because=(*facts, *waiting_facts(story), *activity_facts(story, culprits)),
        where="teardown" if any(story.case.activity(rank).in_teardown for rank in culprits) else None,
        group=wait.point.group if wait else None,
        operation=operation_of(story, wait) if wait else None,
        seq=wait.point.seq or None if wait else None,
    )


def _source(story: Story, rank: int) -> str:
    return "its hook" if story.case.activity(rank).handled else f"log of rank {rank}"


def _parted(story: Story) -> tuple[int, ...]:
    """Ranks that called something else than most, somewhere where somebody still waits."""
    divergence = story.divergence
    return divergence.culprits if divergence and divergence.open else ()


def _handler(story: Story) -> Claim | None:
    """Those that parted stand in an `except` that no other rank is in: which exception, nothing tells."""
    parted = _parted(story)
    if not parted or not all(handles(story.case, rank) for rank in parted):
        return None
    if any(handles(story.case, rank) for rank in story.case.observed if rank not in parted):
        return None
    stands = "stands" if len(parted) == 1 else "stand"
    fact = Fact(f"{named(parted)} {stands} in an `except` block, the others do not", "py-spy and source")
    return _claim(story, list(parted), [fact], "likely")


def _logged_beside(story: Story) -> Claim | None:
    """One rank has left the loop that the others are in, and the log that they share ends with a traceback."""
    parted = _parted(story)
    if len(parted) != 1:
        return None
    case = story.case
    told = case.activity(parted[0]).logged_beside
    others = [rank for rank in case.observed if rank != parted[0]]
    left = have_left(case, parted, others)
    divergence = story.divergence
    at_end = divergence is not None and signature.is_barrier(divergence.found.operation)
    if told is None or left is False or not (left or at_end):
        return None
    fact = Fact(
        f"the log that the ranks share ends with a traceback: {told}; rank {parted[0]} alone has left the loop",
        "the shared log",
    )
    return _claim(story, list(parted), [fact], "likely")
