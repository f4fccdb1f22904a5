"""torch's DETAIL wrapper: sides at different numbers, and versions that print one side alone."""

import pytest

from tests.unit.doctor.failed_run.test_remedies_fit import verdict

SIDE = "Rank {} is running {}collective: CollectiveFingerPrint({}OpType={}, TensorShape=[{}], TensorDtypes=Float, "
SIDE += "TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda, layout=Strided (default)))"


def side(rank: int, seq: int, operation: str = "ALLREDUCE", shape: str = "8") -> str:
    return SIDE.format(rank, "", f"SequenceNumber={seq}, ", operation, shape)


def both(one: str, other: str) -> str:
    return f"[rank0]: RuntimeError: Detected mismatch between collectives on ranks. {one}, but {other}.\n"


@pytest.mark.parametrize(
    ("one", "other", "behind"),
    [
        (side(5, 40), side(2, 41, shape="1"), "rank 5 is 1 collective behind rank 2"),
        (side(1, 77, "BROADCAST"), side(0, 74, shape="1024, 3"), "rank 0 is 3 collectives behind rank 1"),
        (side(1, 9), side(0, 8), "rank 0 is 1 collective behind rank 1"),
    ],
)
def test_sides_at_different_numbers_have_made_different_numbers_of_calls(one: str, other: str, behind: str) -> None:
    found = verdict(both(one, other))
    assert (found.cause, found.culprits, found.seq) == ("collective_mismatch", (), None)
    assert found.mismatch is not None and found.mismatch.kind == "count"
    assert any(fact.fact.startswith(behind) for fact in found.because)
    assert "skipped a collective" in found.summary
    steps = " ".join(found.next_steps)
    assert "skipped or made extra" in steps
    assert "pad or cut" not in steps


def test_at_one_number_the_shapes_are_what_differs() -> None:
    found = verdict(both(side(5, 40), side(2, 40, shape="1")))
    assert found.mismatch is not None and (found.mismatch.kind, found.seq) == ("size", 40)
    assert not any("behind" in fact.fact for fact in found.because)


def test_a_majority_at_one_number_names_who_is_behind() -> None:
    lines = (both(side(rank, 12), side(6, 11, shape="2")) for rank in (0, 1, 2))
    found = verdict("".join(lines))
    assert (found.culprits, found.mismatch and found.mismatch.kind) == ((6,), "count")
    assert any(fact.fact.startswith("rank 6 is 1 collective behind ranks 0-2") for fact in found.because)


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
def test_one_side_alone_is_a_mismatch_that_blames_nobody(prefix: str) -> None:
    one = SIDE.format(3, "inconsistent ", "", "REDUCE_SCATTER", "64")
    found = verdict(f"{prefix}RuntimeError: Detected mismatch between collectives on ranks. {one}\n")
    assert (found.cause, found.culprits) == ("collective_mismatch", ())
    assert "rank 3 called reduce_scatter of shape [64]" in found.summary.replace("Rank", "rank")
    steps = " ".join(found.next_steps)
    assert "same collectives in the same order" in steps
    assert "mend the line" not in steps
