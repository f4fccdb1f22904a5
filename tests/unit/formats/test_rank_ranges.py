"""Ranks as people write them, and back."""

import pytest

from stallwatch.formats.rank_ranges import rank_ranges, ranks_in


@pytest.mark.parametrize(
    ("ranks", "text"), [((), ""), ((3,), "3"), ((0, 1, 3, 4, 5, 9), "0-1,3-5,9"), ((11, 10), "10-11")]
)
def test_ranges_hold_their_ranks(ranks: tuple[int, ...], text: str) -> None:
    assert rank_ranges(ranks) == text
    assert ranks_in(text) == set(ranks)
