"""What is told of a job while it still moves."""

import pytest

from stallwatch.diagnosis import judge
from stallwatch.diagnosis.calls.drift import Drift, find_drift
from stallwatch.diagnosis.calls.sample_verdict import judge_sample
from stallwatch.diagnosis.recorder.reduce import reduce_rank
from stallwatch.model.summary import SampleMemory
from tests.builders.job import Call, Rank, evidence, loop, world

W4 = world(4)
# Equal calls from four lines: only where they come from tells them apart.
LINES = tuple(Call(W4, elements=7, line=line) for line in (10, 11, 12, 13)) * 10


def _drift(**calls_of: tuple[Call, ...]) -> tuple[Drift, ...]:
    """A moving job of four in which every call of every rank has completed; r1=… is what rank 1 called."""
    ranks = [Rank(rank, calls_of.get(f"r{rank}", calls_of["others"])) for rank in range(4)]
    return find_drift([reduce_rank(rank.evidence()) for rank in ranks], 4)


@pytest.mark.parametrize("odd", [Call(W4, elements=500, dtype="Int"), Call(W4, elements=999), Call(W4, "broadcast")])
def test_a_difference_that_completed_is_told_with_its_place(odd: Call) -> None:
    steps = loop(W4, 20)
    found = _drift(others=steps, r2=(*steps[:10], odd, *steps[11:]))
    assert [(drift.culprits, drift.seq) for drift in found] == [((2,), 11)]
    assert "still moves" in found[0].reason


def test_a_call_too_few_is_seen_by_the_lines_that_now_pair() -> None:
    found = _drift(others=LINES, r1=(*LINES[:14], *LINES[15:]))
    assert [(drift.kind, drift.culprits, drift.seq) for drift in found] == [("count", (1,), 15)]
    assert "too few" in found[0].reason


def test_a_call_too_many_is_seen_by_the_lines_that_now_pair() -> None:
    extra = Call(W4, elements=7, line=99)
    found = _drift(others=LINES, r3=(*LINES[:14], extra, *LINES[14:-1]))
    assert [(drift.kind, drift.culprits, drift.seq) for drift in found] == [("count", (3,), 15)]
    assert "too many" in found[0].reason
    assert "train.py:99" in found[0].reason


def test_a_healthy_job_has_not_parted() -> None:
    assert _drift(others=LINES) == ()


def test_samples_of_ranks_that_run_ahead_have_not_parted() -> None:
    assert _drift(others=LINES, r1=LINES[:-3], r2=LINES[:-1]) == ()


def test_a_rank_that_calls_from_a_line_of_its_own_is_its_program() -> None:
    """Rank 0 writes the log: the same calls at the same places, from another line each time."""
    own = tuple(Call(W4, elements=7, line=77) if call.line == 11 else call for call in LINES)
    assert _drift(others=LINES, r0=own) == ()


@pytest.mark.parametrize(("place", "mismatch"), [(14, "too few"), (None, "")])
def test_a_capture_of_a_moving_job_tells_of_calls_that_pair_wrongly(place: int | None, mismatch: str) -> None:
    odd = LINES if place is None else (*LINES[:place], *LINES[place + 1 :])
    ranks = [Rank(rank, odd if rank == 1 else LINES) for rank in range(4)]
    told = judge(evidence(*ranks)).verdicts[0]
    assert told.cause == ("collective_mismatch" if mismatch else "undecided")
    assert told.culprits == ((1,) if mismatch else ())
    assert not mismatch or mismatch in told.because[0].fact


LATER = loop(W4, 20)


@pytest.mark.parametrize(
    ("r2", "kind", "said"),
    [
        ((*LATER[:10], Call(W4, elements=500, dtype="Int"), *LATER[11:]), "dtype", "data type Int"),
        ((*LATER[:10], Call(W4, elements=999), *LATER[11:]), "size", "999 elements"),
        (
            (*LATER[:10], Call(W4, "broadcast"), *LATER[11:]),
            "op",
            "called broadcast where the others called all_reduce",
        ),
        ((*LINES[:14], *LINES[15:]), "count", "made one call fewer than the others"),
        ((*LINES[:14], Call(W4, elements=7, line=99), *LINES[14:-1]), "count", "made one call more than the others"),
    ],
)
def test_a_sample_of_a_moving_job_says_what_differs(r2: tuple[Call, ...], kind: str, said: str) -> None:
    others = LINES if kind == "count" else LATER
    ranks = [Rank(rank, r2 if rank == 2 else others) for rank in range(4)]
    (verdict,), _ = judge_sample(evidence(*ranks), SampleMemory(), 0)
    assert verdict.mismatch is not None
    assert (verdict.mismatch.kind, verdict.culprits) == (kind, (2,))
    assert verdict.summary.startswith("Rank 2 ") and said in verdict.summary
