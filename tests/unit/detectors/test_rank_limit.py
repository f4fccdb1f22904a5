"""The limit in force for one rank, with its reason."""

from typing import Any

import pytest

from stallwatch.clock import SECOND_NS
from stallwatch.config_sections import StallSection
from stallwatch.detectors.history import RankHistory
from stallwatch.detectors.limits import Times, learn
from stallwatch.detectors.rank_limit import job_limits, rank_limit
from tests.builders.heartbeat import START_NS, heartbeat
from tests.builders.node import sample

STALL = StallSection()


def times(*seconds: float) -> Times:
    return learn(Times(), tuple(int(one * SECOND_NS) for one in seconds))


def rank(step: int | None = 50, phase: str = "", **known: Any) -> RankHistory:
    beat = heartbeat(0, step=step, phase=phase)
    return RankHistory(sample(0, beat), START_NS, beat, readable=True, **known)


def limit(one: RankHistory) -> tuple[float, bool]:
    found = rank_limit(one, STALL)
    return found.seconds, found.learned


def test_a_phase_has_the_limit_of_its_own_past() -> None:
    assert limit(rank(phase="save")) == (STALL.floor_seconds, False)
    few = rank(phase="save", phase_times=(("save", times(20, 30)), ("eval", times(500))))
    assert limit(few) == (60.0, True)
    assert rank_limit(few, STALL).reason == "2 × the longest of 2 times in phase save"
    assert limit(rank(phase="save", phase_times=(("save", times(0.1)),))) == (STALL.floor_seconds, True)
    assert limit(rank(phase="save", phase_times=(("save", times(400)),))) == (300.0, True), "no phase makes us blind"
    many = rank(phase="save", phase_times=(("save", times(*[20] * 8)),))
    assert limit(many) == (35.0, True)
    assert "phase save" in rank_limit(many, STALL).reason
    named = rank(phase="{0} {x}", phase_times=(("{0} {x}", times(*[20] * 8)),))
    assert "of phase {0} {x}, 20.0 s" in rank_limit(named, STALL).reason, "a job names its phases as it likes"
    assert limit(rank(phase="save", phase_times=(("save", times(*[900] * 8)),))) == (300.0, True)


def test_the_shorter_of_steps_and_gaps_counts() -> None:
    both = rank(step_times=times(*[60] * 8), gap_times=times(*[20] * 8))
    assert limit(both) == (35.0, True)
    assert "gaps between collectives" in rank_limit(both, STALL).reason
    assert limit(rank(step=None, step_times=times(*[1] * 8), gap_times=times(*[20] * 8))) == (35.0, True), "no steps"


def test_what_is_not_learned_yet_is_a_setting() -> None:
    assert limit(rank(step=5)) == (STALL.unlearned_seconds, False)
    assert limit(rank(step=None)) == (STALL.start_seconds, False)


@pytest.mark.parametrize(
    ("lengths", "limits"), [((1, 1, 60), (5, 5, 5)), ((1, 60), (5, 95)), ((60, 60, 1), (95, 95, 5))]
)
def test_one_rank_with_long_steps_does_not_make_its_job_wait(lengths: tuple[int, ...], limits: tuple[int, ...]) -> None:
    ranks = [rank(step_times=times(*[length] * 8)) for length in lengths]
    assert tuple(one.seconds for one in job_limits(ranks, STALL)) == limits
    shortened = [
        one.reason for one, own in zip(job_limits(ranks, STALL), ranks, strict=True) if one != rank_limit(own, STALL)
    ]
    assert all(reason.endswith(", as its peers'") for reason in shortened)


def test_a_phase_is_its_own_time_whatever_its_peers_do() -> None:
    ranks = [rank(step_times=times(*[1] * 8)) for _ in range(3)]
    saves = rank(phase="save", phase_times=(("save", times(*[20] * 8)),))
    assert [one.seconds for one in job_limits([*ranks, saves], STALL)] == [5, 5, 5, 35]


def test_most_of_a_job_are_more_than_half_and_who_is_as_they_are_keeps_its_own_reason() -> None:
    ranks = [rank(step_times=times(*[length] * 8)) for length in (1, 1, 60, 60, 60)]
    assert job_limits(ranks, STALL) == [rank_limit(own, STALL) for own in ranks]
    saving = [rank(phase="save", phase_times=(("save", times(*[20] * 8)),))] * 2
    assert [one.seconds for one in job_limits(saving, STALL)] == [35, 35], "nobody steps"
