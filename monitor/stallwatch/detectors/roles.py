"""Which ranks run the same program, by what each has completed in each of its groups (its role)."""

from functools import lru_cache

_STEP_IN_PROGRESS = 64  # collectives


# A tick asks this some hundred times of the same few roles: for each of its moments, and for each window.
@lru_cache(maxsize=64)
def by_role(roles: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Places in `roles` of those that are the same: as the first of each that is left, so in order."""
    if roles and _are_one(roles):
        return (tuple(range(len(roles))),)
    groups, left = [], list(range(len(roles)))
    while left:
        same = tuple(place for place in left if _same_role(roles[place], roles[left[0]]))
        left = [place for place in left if place not in same]
        groups.append(same)
    return tuple(groups)


@lru_cache(maxsize=64)
def alike(roles: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Of each role the places of those that are the same."""
    if _are_one(roles):
        return (tuple(range(len(roles))),) * len(roles)
    return tuple(tuple(place for place, role in enumerate(roles) if _same_role(role, one)) for one in roles)


def _are_one(roles: tuple[tuple[int, ...], ...]) -> bool:
    """Whether each is surely the same as each other: their counts are hardly apart, as in most jobs."""
    if len(set(map(len, roles))) != 1:
        return False
    return all(max(counts) - min(counts) <= _STEP_IN_PROGRESS for counts in zip(*map(sorted, roles), strict=True))


def _same_role(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """The counts that ranks of one program have differ by what a step in progress holds, not by a part of them."""
    if one == other:
        return True
    counts = zip(sorted(one), sorted(other), strict=False)
    return len(one) == len(other) and all(abs(a - b) <= max(_STEP_IN_PROGRESS, 0.02 * max(a, b)) for a, b in counts)
