"""gloo records no point-to-point: ranks that all stand in sends and receives, nobody absent, wait for each other."""

from stallwatch.diagnosis.claims.claim import Claim, Saying, activity_facts, named, waiting_facts
from stallwatch.diagnosis.story import Story
from stallwatch.model.verdict import Fact

_TRANSFERS = ("send", "recv", "p2p")


def claim(story: Story) -> Saying:
    stands = set(story.graph.unrecorded)
    if not stands or story.roots.cycles or story.roots.closed:
        return None
    roots = {rank for rank, _ in story.roots.absent} if story.graph.waits else stands
    others = set(story.case.observed) - stands - {wait.rank for wait in story.graph.waits}
    if not roots <= stands or others:
        return None
    transfers = sorted(rank for rank in roots if _in_transfer(story, rank))
    if not transfers or len(transfers) != len(roots):
        return None
    return Claim(
        cause="p2p_unmatched",
        culprits=tuple(transfers),
        confidence="likely" if not story.case.unobserved else "possible",
        because=(
            Fact(f"{named(transfers)} stand in sends or receives, and every other rank waits for them", "py-spy"),
            *waiting_facts(story),
            *activity_facts(story, transfers),
        ),
        where="collective",
        operation=story.case.activity(transfers[0]).collective,
    )


def _in_transfer(story: Story, rank: int) -> bool:
    name = (story.case.activity(rank).collective or "").lower()
    return any(part in name for part in _TRANSFERS)
