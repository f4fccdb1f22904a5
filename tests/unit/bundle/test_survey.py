"""What lies below the paths that a person names."""

from itertools import permutations
from pathlib import Path

from stallwatch.bundle.discovery import survey

BUNDLE = Path(__file__).parents[2] / "bundles/gloo-p2p_both_recv"


def test_a_folder_and_a_file_in_it_are_the_same_in_any_order() -> None:
    named = (BUNDLE, BUNDLE / "ranks/1/process.json", BUNDLE / "ranks/0")
    assert len({survey(order) for order in permutations(named)}) == 1
    assert survey(named) == survey([BUNDLE])
