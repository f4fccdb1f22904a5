"""Ranks that all stand in sends and receives, nobody absent, wait for each other: gloo records no point-to-point, and
NCCL none whose communicator is being made."""

from stallwatch.diagnosis.analysis import Story
from stallwatch.diagnosis.calls import align
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, departed_cause, named, waiting_facts
from stallwatch.diagnosis.waits.graph import in_transfer
from stallwatch.model.verdict import Fact


def claim(story: Story) -> Saying:
    stands = set(story.graph.unrecorded)
    if story.hangs and story.roots.circles:
        return _circle(story, max(story.roots.circles, key=lambda ranks: (len(ranks), ranks)))
    if not story.hangs or not stands or story.roots.cycles or story.roots.closed:
        return None
    # Whose stack was not read may stand in a transfer, too.
    unseen = {rank for rank in story.case.observed if rank not in story.waiting and not story.case.activity(rank).known}
    roots = {rank for rank, _ in story.roots.absent} - unseen if story.graph.waits else stands
    others = set(story.case.observed) - set(story.waiting) - unseen
    if not roots or not roots <= stands or others:
        return None
    transfers = sorted(rank for rank in roots if in_transfer(story.case.activity(rank)))
    if not transfers or len(transfers) != len(roots):
        return None
    left = tuple(sorted({departure.rank for departure in story.departures}))
    few = 2 * len(left) < len(story.case.observed) or not set(left) & set(transfers)
    if left and len(left) < len(story.case.observed) and few:
        return _departed(story, left, transfers)
    if unseen:
        return None
    # A message has two ends, and two that stand in one alone, for both of whom all others wait, may be these. Where
    # others wait for one of them only, the other may wait for one of those; of many each may wait for the next.
    held_up = [{blocker.rank for blocker in story.graph.blockers[wait.point]} for wait in story.graph.waits]
    elsewhere = set(story.case.world) - {wait.rank for wait in story.graph.waits} - set(transfers)
    both = len(transfers) == 2 and all(held >= set(transfers) for held in held_up) and not elsewhere
    connects = all(_connects(story, rank) for rank in transfers)
    unknown = "the peers of the sends and receives: gloo does not record them"
    return Claim(
        cause="p2p_unmatched",
        culprits=tuple(transfers) if both else (),
        confidence="possible",
        because=(
            _standing(transfers),
            *waiting_facts(story),
            *activity_facts(story, transfers),
        ),
        where="collective",
        operation=story.case.activity(transfers[0]).collective,
        missing=() if connects else (unknown,),
        ends_by_itself="first_use" if connects else None,
    )


def _connects(story: Story, rank: int) -> bool:
    """A communicator of its own is made at a pair's first send or receive, and its recorder hears of it then; one that
    knows its groups from their creation, as gloo's does, would know this one."""
    summary = story.case.summaries.get(rank)
    if summary is None or not summary.backends:
        return False
    told = zip(summary.backends, summary.completion, strict=False)
    return all(completion == "states" or backend in summary.groupless for backend, completion in told)


def _circle(story: Story, ranks: tuple[int, ...]) -> Claim:
    """Their hooks tell whom each waits for, and it is one of them."""
    calls = [(rank, story.case.activity(rank).named_call) for rank in ranks]
    facts = tuple(
        Fact(f"rank {rank} stands in {call.function} with rank {call.rank}", f"hook of rank {rank}")
        for rank, call in calls
        if call is not None
    )
    return Claim(
        cause="p2p_unmatched",
        culprits=ranks,
        confidence="likely",
        because=(*facts, *waiting_facts(story), *activity_facts(story, ranks)),
        where="collective",
        operation=story.case.activity(ranks[0]).collective,
    )


def _departed(story: Story, left: tuple[int, ...], transfers: list[int]) -> Claim:
    first = next(departure for departure in story.departures if departure.rank == left[0])
    usual = align.describe(first.expected[0]) if first.expected else "something else"
    return Claim(
        cause=departed_cause(story, first),
        culprits=left,
        # A rank's habits by themselves change with the phases of its program: its peers must be there to compare.
        confidence="likely" if story.whole_world_seen else "possible",
        because=(
            Fact(
                f"rank {first.rank} called {align.describe(first.found)} where it had always called {usual}",
                f"flight recorder of rank {first.rank}",
            ),
            _standing(transfers),
            *waiting_facts(story),
        ),
        where="collective",
        group=story.case.group_of[first.rank, first.found.stream],
        operation=first.expected[0].operation if first.expected else None,
    )


def _standing(transfers: list[int]) -> Fact:
    one = len(transfers) == 1
    who = f"{named(transfers)} {'stands' if one else 'stand'} in {'a send or receive' if one else 'sends or receives'}"
    return Fact(f"{who}, and every other rank waits for {'it' if one else 'them'}", "py-spy")
