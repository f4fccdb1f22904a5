"""What slow ranks cost their job, against the truth of a simulated one."""

import pytest

from stallwatch.config import Config
from stallwatch.detectors.history import RankHistory
from stallwatch.detectors.looks import LOOK_NS, Looks, PeerRank, StepLook
from stallwatch.detectors.slow_cost import since_when, slow_cost
from stallwatch.replay.playing import detect
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import START_NS, heartbeat
from tests.builders.node import sample
from tests.replay.stragglers import COMPUTE_SECONDS, Backend, By, Job, play

ONSET_SECONDS = 20.0


@pytest.mark.parametrize(
    ("by", "slowdown", "backend", "near"),
    [
        ("sleep", 0.3, "gloo", 0.1),
        ("sleep", 1.0, "gloo", 0.1),
        ("data loader", 1.0, "gloo", 0.3),
        ("sleep", 0.3, "nccl ahead", 0.1),
    ],
)
def test_a_cost_is_near_the_truth(by: By, slowdown: float, backend: Backend, near: float) -> None:
    """What was before the onset is none of it. That of a loader whose every tenth batch is late is in few steps, which
    are drawn: there are 30 of them, or some more or less. Where hosts run ahead of their devices the others wait for a
    host far longer than the job does."""
    job = Job(by, 4, slowdown, 1, ONSET_SECONDS, backend, jitter=0.02)
    costs = [
        finding.slowness
        for _, found in detect(Config(), play(job, 140, 3))
        for finding in found.findings
        if finding.stage == "confirmed" and finding.slowness
    ]
    true = COMPUTE_SECONDS * slowdown
    assert costs[-1].cost_seconds == pytest.approx(true, rel=near)
    assert costs[-1].step_seconds == pytest.approx(0.2 + true, rel=near)
    assert costs[-1].low_seconds < costs[-1].cost_seconds < costs[-1].high_seconds


@pytest.mark.parametrize(("stage", "cost_seconds"), [(1, 0.3 * COMPUTE_SECONDS), (0, 0.0)])
def test_a_stage_of_a_pipeline_costs_what_all_others_wait_for_it(stage: int, cost_seconds: float) -> None:
    """The first stage has less to do than those in the middle: if it is slower the last one waits for longer than it
    does, and for those in the middle all the same."""
    job = Job("sleep", 4, 0.3, stage, 60.0, stages=True, jitter=0.02)
    costs = [
        finding.slowness.cost_seconds
        for _, found in detect(Config(), play(job, 160, 2))
        for finding in found.findings
        if finding.stage == "confirmed" and finding.slowness
    ]
    if cost_seconds:
        assert costs[-1] == pytest.approx(cost_seconds, rel=0.1)
    assert all(cost < 0.05 * COMPUTE_SECONDS for cost in costs) == (not cost_seconds)


def test_it_is_so_since_the_looks_that_show_it() -> None:
    assert since_when([0.0] * 20 + [0.3] * 30) == 30
    assert since_when([0.3, 0.0] * 30) == 60, "all the time"
    assert since_when([0.0] * 20 + [0.3] * 4) == 8, "of less nothing is said"
    assert since_when([0.0] * 20 + [0.3] * 10, 25) == 25, "it is known to be so for longer"
    assert [since_when([0.3] * looks) for looks in (0, 1, 8)] == [0, 1, 8]


def test_a_steps_mean_length_leaves_out_the_time_in_which_nobody_looked() -> None:
    at = [0, 1, 2, 62, 63, 64]  # a phase of a minute
    looks = tuple(
        StepLook(second * SECOND_NS, 4, (0, 0), (0, 0), steps=(step, step)) for step, second in enumerate(at, start=5)
    )
    assert Looks((PeerRank(0, 1), PeerRank(1, 2)), looks=looks).step_ns(6) == SECOND_NS
    assert Looks((PeerRank(0, 1), PeerRank(1, 2)), looks=looks).steps_within(6) == 6


def test_of_uncounted_steps_no_length_is_known() -> None:
    looks = tuple(StepLook(place * LOOK_NS, 1, (0, 0), (0, 0), steps=(-1, -1)) for place in range(5))
    assert Looks(looks=looks).step_ns(5) == 0.0
    assert Looks(looks=looks).steps_within(5) == 5


def test_of_uncounted_steps_the_records_say_how_long_they_were() -> None:
    """One rank of four waits in no look, the others in each: all of a step, by the median of those in the records."""
    looks = Looks(
        tuple(PeerRank(rank, rank) for rank in range(4)),
        looks=tuple(StepLook(n * LOOK_NS, 1, (1, 0, 1, 1), (1, 0, 1, 1), steps=(-1,) * 4) for n in range(20)),
    )
    peers = [(rank, ((1, int(rank != 1)),) * 20) for rank in range(4)]

    def alive(*seconds: float) -> list[RankHistory]:
        beat = heartbeat(0, step_durations_ns=tuple(int(one * SECOND_NS) for one in seconds))
        return [RankHistory(sample(0, beat), START_NS, beat), RankHistory(sample(1, None), START_NS)]

    cost = slow_cost(looks, peers, [1], alive(0.5, 2.0, 9.0))
    assert cost is not None
    assert (cost.cost_seconds, cost.step_seconds) == (2.0, 2.0)
    assert slow_cost(looks, peers, [1], alive()) is None, "no step is known"
    assert slow_cost(looks, peers, range(4), alive(1.0)) is None, "nobody is left who would wait"
