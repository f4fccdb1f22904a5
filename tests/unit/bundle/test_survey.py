"""What lies below the paths that a person names."""

import shutil
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import pytest

from stallwatch.bundle import reader
from stallwatch.bundle.discovery import Survey, survey

BUNDLE = Path(__file__).parents[2] / "bundles/gloo-p2p_both_recv"


def test_a_folder_and_a_file_in_it_are_the_same_in_any_order() -> None:
    named = (BUNDLE, BUNDLE / "ranks/1/process.json", BUNDLE / "ranks/0")
    assert len({survey(order) for order in permutations(named)}) == 1
    assert survey(named) == survey([BUNDLE])


def test_a_file_that_went_while_the_folder_was_read_is_no_caveat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that goes on writes its files anew, and may do so while an earlier one is judged."""
    bundle = Path(shutil.copytree(BUNDLE, tmp_path / "incident"))
    listed = survey

    def and_then_one_goes(paths: Sequence[Path]) -> Survey:
        found = listed(paths)
        (bundle / "ranks" / "1" / "stacks.json").unlink()
        return found

    monkeypatch.setattr(reader, "survey", and_then_one_goes)
    assert not [caveat for caveat in reader.load([bundle]).caveats if "stacks.json" in caveat]
