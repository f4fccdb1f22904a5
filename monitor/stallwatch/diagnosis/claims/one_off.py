"""A call too many or too few that happened to pair with another: the difference that shows comes later, elsewhere."""

from stallwatch.diagnosis import align
from stallwatch.diagnosis.align import Divergence
from stallwatch.diagnosis.claims.claim import Claim, waiting_facts
from stallwatch.diagnosis.program import Departure, program
from stallwatch.diagnosis.story import Story
from stallwatch.model.verdict import Fact, Mismatch


def claim(story: Story, divergence: Divergence) -> Claim | None:
    """Given where two members differ, name the one that was one call off already, if one alone was."""
    departure = _departed_before(story, divergence)
    if departure is None:
        return None
    name = story.case.groups[divergence.group].description or "the default group"
    usual, found = departure.expected[0], departure.found
    is_new = found not in program(story.case, departure.rank)[: departure.place]
    counts = ("none", f"one {found.operation} more") if is_new else (f"one {usual.operation} more", "none")
    return Claim(
        cause="collective_mismatch",
        culprits=(departure.rank,),
        confidence="likely",
        because=(
            Fact(
                f"rank {departure.rank} called {align.describe(found)} as #{departure.seq} of {name} where "
                f"it had always called {align.describe(usual)}: that paired, and from there on its calls are one off",
                f"flight recorder of rank {departure.rank}",
            ),
            Fact(
                f"under #{divergence.seq} members then called {align.describe(divergence.found)} and "
                f"{align.describe(divergence.expected)}",
                "flight recorders",
            ),
            *waiting_facts(story),
        ),
        where="collective",
        mismatch=Mismatch("count", *counts),
        group=divergence.group,
        operation=divergence.expected.operation,
        seq=divergence.seq,
        site=found.site,
    )


def _departed_before(story: Story, divergence: Divergence) -> Departure | None:
    """One member alone called something of its own before that happened to pair with what the others called."""
    if divergence.decided_by == "majority":
        return None  # a third member has told who differs
    departed = [
        d for d in story.departures if story.case.group_of[d.rank, d.found.stream] == divergence.group and d.seq
    ]
    if not departed:
        return None
    first = min(departed, key=lambda departure: departure.seq)
    alone = sum(departure.seq == first.seq for departure in departed) == 1
    return first if alone and first.seq < divergence.seq and first.expected else None
