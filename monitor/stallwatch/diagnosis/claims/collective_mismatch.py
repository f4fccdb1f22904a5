"""Members of one group entered different things under one number; or left the loop and wait at its end."""

from stallwatch.diagnosis import align, signature
from stallwatch.diagnosis.align import Divergence
from stallwatch.diagnosis.claims.claim import Claim, Saying, named, waiting_facts
from stallwatch.diagnosis.story import Story
from stallwatch.model.verdict import Confidence, Fact, Mismatch, Rejected


def claim(story: Story) -> Saying:
    divergence = choose(story)
    if divergence is None:
        return Rejected("collective_mismatch", "operation, size and dtype agree wherever members can be compared")
    culprits, confidence = _who(story, divergence)
    absent = {rank for rank, _ in story.roots.absent}
    if not divergence.open and story.proven_stuck and absent and not absent & set(culprits):
        return Rejected(
            "collective_mismatch",
            f"{named(culprits)} called something else under #{divergence.seq}, but that has completed",
        )
    exhausted = (
        divergence.found_is_new and divergence.expected_recurs and signature.is_barrier(divergence.found.operation)
    )
    group = story.case.groups[divergence.group]
    name = group.description or "the default group"
    return Claim(
        cause="data_exhausted" if exhausted else "collective_mismatch",
        culprits=culprits,
        confidence=confidence,
        because=(
            Fact(
                f"under #{divergence.seq} of {name} {named(culprits)} called {align.describe(divergence.found)}, "
                f"the others {align.describe(divergence.expected)}",
                "flight recorders",
            ),
            Fact(_reason(divergence), "flight recorders"),
            *waiting_facts(story),
        ),
        where=None if exhausted else "collective",
        mismatch=Mismatch(divergence.kind, _value(divergence, True), _value(divergence, False)),
        group=divergence.group,
        operation=divergence.expected.operation,
        seq=divergence.seq,
    )


def choose(story: Story) -> Divergence | None:
    """The divergence that somebody still waits in, in a group where the waits end, before any other."""
    ends = {point.group for point in story.roots.closed} | {
        point.group for cycle in story.roots.cycles for point in cycle.points
    }
    return min(
        story.divergences,
        key=lambda d: (not d.open, d.group not in ends, d.decided_by == "nothing", d.seq, d.group),
        default=None,
    )


def _who(story: Story, divergence: Divergence) -> tuple[tuple[int, ...], Confidence]:
    members = len(story.case.groups[divergence.group].ranks)
    departed = tuple(d.rank for d in story.departures if d.rank in story.case.streams[divergence.group])
    if divergence.decided_by == "nothing":
        if departed and set(departed) < set(divergence.culprits):
            return departed, "likely"
        return divergence.culprits, "possible"
    if divergence.decided_by == "majority":
        full = divergence.voters == members and 3 * len(divergence.culprits) <= members
        return divergence.culprits, "certain" if full and members > 2 else "likely"
    return divergence.culprits, "likely"


def _reason(divergence: Divergence) -> str:
    return {
        "majority": "most members called the same thing",
        "history": "in earlier steps the group called the expected thing at this place",
        "sisters": "groups of the same kind called the expected thing under this number",
        "nothing": "nothing tells which of them is right: no third member, no earlier step",
    }[divergence.decided_by]


def _value(divergence: Divergence, expected: bool) -> str:
    call = divergence.expected if expected else divergence.found
    if divergence.kind == "op":
        return call.operation
    return call.dtype if divergence.kind == "dtype" else f"{call.elements} elements {call.shape}".strip()
