"""A few ranks that are late where the others are not: one decision, whether by waits or by times of arrival."""

from collections.abc import Iterator, Sequence

# Of two ranks either may be the later one by design: the difference must be beyond what a design makes. Of a step.
_OF_TWO = 0.3
# Of their distance to the others' median, the part by which they are apart from the last of the others: where it is
# less the others differ among themselves, too (stages, experts), and it is a spread by design.
_LIKE_OTHERS = 0.7


def minorities(ranks: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Given ranks, the latest first, yield those that may be the late ones, with the others: one rank, then two, up to
    less than half of them. Of two ranks it may be either."""
    for size in range(1, max(1, (len(ranks) - 1) // 2) + 1):
        yield tuple(ranks[:size]), tuple(ranks[size:])


def stand_apart(ranks: int, distance: float, gap: float, least: float) -> bool:
    """Given how many ranks there are, by which part of a step the late ones are behind the others' median, and by which
    behind the last of the others, say whether that is more than `least` and no spread of all of them."""
    needed = least if ranks > 2 else max(least, _OF_TWO)
    return distance >= needed and gap >= _LIKE_OTHERS * distance
