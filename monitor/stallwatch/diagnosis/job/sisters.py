"""Groups of one kind (dp0, dp1, …) whose members nobody wrote down: how they share out the world tells the members."""

from collections.abc import Sequence

_LEAST_SISTERS = 3  # with fewer, "all but one are alike" says nothing


def completed(parts: Sequence[tuple[int, ...]], world: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Given the ranks that were seen to use each group, return the members of each; () where that does not follow.

    Equal parts that make up the world are whole. So are they when a single one is smaller by just as many ranks as were
    seen in none.
    """
    users = [rank for part in parts for rank in part]
    left = sorted(set(world) - set(users))
    sizes = sorted(len(part) for part in parts)
    if sizes[-1] < 2 or len(users) + len(left) != len(world):
        return ()
    if not left:
        return tuple(parts) if sizes[0] == sizes[-1] else ()
    if len(parts) < _LEAST_SISTERS or sizes[0] + len(left) != sizes[-1] or sizes[1] != sizes[-1]:
        return ()
    return tuple(part if len(part) == sizes[-1] else tuple(sorted({*part, *left})) for part in parts)
