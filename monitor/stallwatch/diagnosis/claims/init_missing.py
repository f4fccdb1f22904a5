"""Ranks wait in rendezvous for others that never came."""

from stallwatch.diagnosis.claims.claim import Claim, Saying, activity_facts, common_where, named
from stallwatch.diagnosis.story import Story
from stallwatch.model.verdict import Fact, Rejected


def claim(story: Story) -> Saying:
    case = story.case
    if story.graph.waits or any(case.recorded(rank) and case.summaries[rank].streams for rank in case.observed):
        return None  # the job has communicated: nobody is missing from its start
    waiting = [rank for rank, activity in case.activities.items() if activity.in_store_or_init and not activity.gone]
    if not waiting:
        return None
    culprits = [
        rank
        for rank, activity in case.activities.items()
        if rank not in waiting and activity.known and not activity.in_collective and not activity.moving
    ]
    if not culprits:
        return Rejected("init_missing", "every rank that was seen is in rendezvous")
    return Claim(
        cause="init_missing",
        culprits=tuple(culprits),
        confidence="likely",
        because=(
            Fact(f"{named(waiting)} wait in rendezvous or store", "py-spy"),
            *activity_facts(story, culprits),
        ),
        where=common_where(story, culprits),
        operation="init_process_group",
    )
