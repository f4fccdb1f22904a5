import pytest

from stallwatch.progress.minority import minorities, stand_apart


@pytest.mark.parametrize(
    ("ranks", "found"),
    [
        ([3, 1], [(3,)]),
        ([3, 1, 2], [(3,)]),
        ([3, 1, 2, 0], [(3,)]),
        ([3, 1, 2, 0, 4], [(3,), (3, 1)]),
    ],
)
def test_the_late_ones_are_always_fewer_than_the_others_but_of_two(
    ranks: list[int], found: list[tuple[int, ...]]
) -> None:
    assert [slow for slow, _ in minorities(ranks)] == found
    assert all(sorted((*slow, *rest)) == sorted(ranks) for slow, rest in minorities(ranks))


@pytest.mark.parametrize(
    ("ranks", "distance", "gap", "apart"),
    [
        (4, 0.2, 0.2, True),
        (4, 0.05, 0.05, False),  # too little
        (4, 0.2, 0.1, False),  # the others are spread, too
        (2, 0.2, 0.2, False),  # of two, one may be later by design
        (2, 0.4, 0.4, True),
    ],
)
def test_late_is_who_is_behind_the_others_as_they_are_not_behind_each_other(
    ranks: int, distance: float, gap: float, apart: bool
) -> None:
    assert stand_apart(ranks, distance, gap, 0.1) is apart
