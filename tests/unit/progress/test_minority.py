import pytest

from stallwatch.progress.job_progress import minorities, stand_apart


@pytest.mark.parametrize(
    ("ranks", "found"),
    [
        ([3, 1], [(3,)]),
        ([3, 1, 2], [(3,)]),
        ([3, 1, 2, 0], [(3,), (3, 1)]),
        ([3, 1, 2, 0, 4], [(3,), (3, 1)]),
    ],
)
def test_the_late_ones_are_never_more_than_the_others(ranks: list[int], found: list[tuple[int, ...]]) -> None:
    assert [slow for slow, _ in minorities(ranks)] == found
    assert all(sorted((*slow, *rest)) == sorted(ranks) for slow, rest in minorities(ranks))
    assert [slow for slow, _ in minorities(ranks, 1)] == found[:1]
    assert [slow for slow, _ in minorities(ranks, 9)] == found


@pytest.mark.parametrize(
    ("late", "others", "distance", "gap", "began", "apart"),
    [
        (1, 3, 0.2, 0.2, False, True),
        (1, 3, 0.1, 0.1, False, True),
        (1, 3, 0.05, 0.05, False, False),  # too little
        (1, 3, 1.0, 0.7, False, True),
        (1, 3, 1.0, 0.69, False, False),
        (1, 3, 0.2, 0.1, False, False),  # the others are spread, too
        (1, 1, 0.2, 0.2, False, False),  # of two, one may be later by design
        (1, 1, 0.4, 0.4, False, True),
        (1, 1, 0.2, 0.2, True, True),  # but not since a moment ago
        (2, 2, 0.2, 0.2, True, True),  # and of four, two
        (2, 2, 0.4, 0.4, False, False),  # which then were it from the start
    ],
)
def test_late_is_who_is_behind_the_others_as_they_are_not_behind_each_other(
    late: int, others: int, distance: float, gap: float, began: bool, apart: bool
) -> None:
    assert stand_apart(late, others, distance, gap, 0.1, began=began) is apart
