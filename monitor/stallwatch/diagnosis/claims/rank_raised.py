"""A rank hit an exception and hangs in its teardown, or swallowed it and left the others waiting."""

from stallwatch.diagnosis.claims.claim import Claim, Saying, activity_facts, main_wait, operation_of, waiting_facts
from stallwatch.diagnosis.story import Story
from stallwatch.model.verdict import Fact, Rejected


def claim(story: Story) -> Saying:
    if not story.hangs:
        return None
    suspects = {rank for rank, _ in story.roots.absent} | set(story.graph.unrecorded)
    raised, tearing = [], []
    for rank, activity in story.case.activities.items():
        if activity.gone:
            continue
        if activity.exception and not activity.exception_is_consequence:
            if activity.in_teardown or (rank in suspects and activity.exception_swallowed):
                raised.append(rank)
        elif activity.in_teardown and rank in suspects:
            tearing.append(rank)
    culprits = raised or tearing
    if not culprits:
        return None
    if len(culprits) == len(story.case.observed):
        return Rejected("rank_raised", "every rank is in its teardown")
    facts = [
        Fact(f"rank {rank} raised {story.case.activity(rank).exception}", f"log of rank {rank}")
        if story.case.activity(rank).exception
        else Fact(f"rank {rank} is in its teardown while others are in the loop", "py-spy")
        for rank in culprits
    ]
    wait = main_wait(story, culprits)
    return Claim(
        cause="rank_raised",
        culprits=tuple(culprits),
        confidence="likely" if raised else "possible",
        because=(*facts, *waiting_facts(story), *activity_facts(story, culprits)),
        where="teardown" if any(story.case.activity(rank).in_teardown for rank in culprits) else None,
        group=wait.point.group if wait else None,
        operation=operation_of(story, wait) if wait else None,
        seq=wait.point.seq or None if wait else None,
    )
