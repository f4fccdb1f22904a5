"""A job of ranks: how many of them must move for it to move, what many steps of it say against one look, and which few
are late where the others are not: one decision, whether by waits or by times of arrival."""

from collections.abc import Iterator, Sequence, Sized

from stallwatch.model.verdict import Cause, Rejected, Verdict

# One rank of so many that works on while all others stand in communication is what they wait for.
_MOVERS = 4
SURE_ERRORS = 1.96  # standard errors of an interval of 95 %
BY_STEPS = "heartbeats over many steps"  # the source of what they say


def many_move(moving: Sized, seen: Sized) -> bool:
    """Whether as many ranks move as make a job that moves."""
    return _MOVERS * len(moving) >= len(seen)


def may_be_held_back_by(ranks: Sequence[int], seen: Verdict) -> bool:
    """Whether a job of which one look says this may be one that these ranks hold back, as many steps show: nobody is
    found to stand, or just these, who are stopped and go on again and again."""
    return seen.traits.may_be_slow or (seen.traits.comes_and_goes and set(seen.culprits) <= set(ranks))


def overruled_by_steps(cause: Cause) -> Rejected:
    """Why what one look says is not so."""
    return Rejected(cause, "what the last steps show does not overrule what all steps since it began show")


# Where half of the ranks are late (one of two), it may be so by design: unless it was seen not to be so before, the
# difference must be beyond what a design makes. Of a step.
_OF_HALF = 0.3
# Of their distance to the others' median, the part by which they are apart from the last of the others: where it is
# less the others differ among themselves, too (stages, experts), and it is a spread by design.
_LIKE_OTHERS = 0.7


def minorities(ranks: Sequence[int], most: int | None = None) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Given ranks, the latest first, yield those that may be the late ones, with the others: one rank, then two, up to
    half of them, or to `most`."""
    half = len(ranks) // 2
    for size in range(1, (half if most is None else min(half, most)) + 1):
        yield tuple(ranks[:size]), tuple(ranks[size:])


def stand_apart(late: int, others: int, distance: float, gap: float, least: float, *, began: bool = False) -> bool:
    """Given how many ranks are late and how many are not, by which part of a step the late ones are behind the others'
    median, and by which behind the last of the others, say whether that is more than `least` and no design. `began`: it
    was seen not to be so before; two ranks of four that were late from the start are halves of something."""
    if late == others > 1 and not began:
        return False
    needed = least if late < others or began else max(least, _OF_HALF)
    return distance >= needed and gap >= _LIKE_OTHERS * distance
