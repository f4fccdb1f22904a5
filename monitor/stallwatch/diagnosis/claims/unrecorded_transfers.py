"""gloo records no point-to-point: ranks that all stand in sends and receives, nobody absent, wait for each other."""

from stallwatch.diagnosis import align
from stallwatch.diagnosis.claims.claim import Claim, Saying, activity_facts, named, waiting_facts
from stallwatch.diagnosis.claims.cycles import departed_cause
from stallwatch.diagnosis.story import Story
from stallwatch.model.verdict import Fact

_TRANSFERS = ("send", "recv", "p2p")


def claim(story: Story) -> Saying:
    stands = set(story.graph.unrecorded)
    if not story.hangs or not stands or story.roots.cycles or story.roots.closed:
        return None
    roots = {rank for rank, _ in story.roots.absent} if story.graph.waits else stands
    others = set(story.case.observed) - set(story.waiting)
    if not roots <= stands or others:
        return None
    transfers = sorted(rank for rank in roots if _in_transfer(story, rank))
    if not transfers or len(transfers) != len(roots):
        return None
    left = tuple(sorted({departure.rank for departure in story.departures}))
    if left and len(left) < len(story.case.observed) / 2:
        return _departed(story, left, transfers)
    # Two that others wait for stand in transfers with each other; one alone, or many, have peers that nobody recorded.
    frames = {story.case.activity(rank).frame for rank in transfers}
    pair = len(transfers) == 2 and len(frames) == 1 and not story.case.unobserved
    return Claim(
        cause="p2p_unmatched",
        culprits=tuple(transfers),
        confidence="likely" if pair else "possible",
        because=(
            Fact(f"{named(transfers)} stand in sends or receives, and every other rank waits for them", "py-spy"),
            *waiting_facts(story),
            *activity_facts(story, transfers),
        ),
        where="collective",
        operation=story.case.activity(transfers[0]).collective,
        missing=() if pair else ("the peers of the sends and receives: gloo does not record them",),
    )


def _departed(story: Story, left: tuple[int, ...], transfers: list[int]) -> Claim:
    first = next(departure for departure in story.departures if departure.rank == left[0])
    usual = align.describe(first.expected[0]) if first.expected else "something else"
    return Claim(
        cause=departed_cause(story, first),
        culprits=left,
        confidence="likely",
        because=(
            Fact(
                f"rank {first.rank} called {align.describe(first.found)} where it had always called {usual}",
                f"flight recorder of rank {first.rank}",
            ),
            Fact(f"{named(transfers)} stand in sends or receives, and every other rank waits for them", "py-spy"),
            *waiting_facts(story),
        ),
        where="collective",
        group=story.case.group_of[first.rank, first.found.stream],
        operation=first.expected[0].operation if first.expected else None,
    )


def _in_transfer(story: Story, rank: int) -> bool:
    name = (story.case.activity(rank).collective or "").lower()
    return any(part in name for part in _TRANSFERS)
