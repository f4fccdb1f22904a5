"""A job of ranks: how many must move."""

import pytest

from stallwatch.progress.job_progress import many_move, overruled_by_steps


@pytest.mark.parametrize(
    ("moving", "seen", "moves"), [(0, 4, False), (1, 4, True), (1, 5, False), (2, 8, True), (1, 8, False)]
)
def test_a_quarter_of_its_ranks_make_a_job_that_moves(moving: int, seen: int, moves: bool) -> None:
    assert many_move(range(moving), range(seen)) is moves


def test_what_steps_overrule_says_so() -> None:
    assert overruled_by_steps("slow_rank").cause == "slow_rank"
    assert "last steps" in overruled_by_steps("slow_rank").why
