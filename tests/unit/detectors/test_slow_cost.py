"""What slow ranks cost their job, against the truth of a simulated one."""

from math import sqrt

import msgspec
import pytest

from stallwatch.config import Config
from stallwatch.detectors.counter_samples import PeerRank
from stallwatch.detectors.history import RankHistory
from stallwatch.detectors.looks import LOOK_NS, Looks, StepLook
from stallwatch.detectors.slow_cost import seconds_before, seconds_without, since_when, slow_cost
from stallwatch.model.finding import Finding
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


@pytest.mark.parametrize("backend", ["gloo", "nccl", "nccl ahead"])
@pytest.mark.parametrize(("onset", "step_scale", "slowdown"), [(4.0, 1.0, 1.0), (6.0, 0.25, 0.3), (20.0, 5.0, 0.3)])
def test_a_job_that_was_seen_without_for_seconds_tells_what_they_cost(
    backend: Backend, onset: float, step_scale: float, slowdown: float
) -> None:
    """Sixteen looks before it were asked for: of a dozen "at most +700 %" was told, of +85 %."""
    job = Job("sleep", 4, slowdown, 1, onset, backend, step_scale=step_scale, jitter=0.02)
    costs = [one.slowness for one in _findings(job, onset + 30 * max(step_scale, 1.0)) if one.slowness]
    assert not costs[-1].at_most
    # A step is as long as that of the last rank, which is 2 % longer than each.
    true = COMPUTE_SECONDS * step_scale * (slowdown - 0.02)
    assert costs[-1].cost_seconds == pytest.approx(true, rel=0.15)


@pytest.mark.parametrize(("first", "known"), [(1.03, 1.015), (1.9, 1.0)], ids=["jitter", "a warm-up"])
def test_the_lower_of_two_means_is_no_steps_length_where_they_are_alike(first: float, known: float) -> None:
    """All figures of what a rank costs were a tenth too high for it, at jitter of 10 %."""
    looks = looked((20, first, STEADY), (40, 1.0, STEADY), (2, 1.3, STEADY), (90, 1.3, SLOW))
    seen = seconds_without(looks, looks.columns_of(looks.members, len(looks.looks)), [1], 40)
    assert seen == pytest.approx(known, abs=0.012)


def test_what_it_costs_with_long_steps_is_measured_over_dozens_of_them() -> None:
    """Over a minute it was a dozen, whose lengths vary by a third of what +30 % costs."""
    found = _findings(Job("sleep", 4, 0.3, 1, 120.0, "gloo", step_scale=25.0, jitter=0.1), 460, seed=1)
    costs = [one.slowness for one in found if one.stage == "confirmed" and one.slowness]
    assert costs[-1].steps >= 40
    assert [one.steps >= 20 for one in costs[60:]] == [True] * len(costs[60:])


def test_who_was_hardly_seen_not_to_be_waited_for_is_not_known_to_cost_that() -> None:
    """Four of five moments show nothing of a rank that is waited for a fifth of the time."""

    def known(many: int, ticks: int) -> float:
        looks = looked((many, 1.0, STEADY), (40, 1.3, SLOW))
        lasted = int(SECOND_NS)
        early = tuple(
            msgspec.structs.replace(look, ticks=ticks if place < many else 4, itself_ns=(lasted,) * 4)
            for place, look in enumerate(looks.looks)
        )
        looks = msgspec.structs.replace(looks, looks=early)
        return seconds_without(looks, looks.columns_of(looks.members, len(looks.looks)), [1], 20)

    assert known(9, 4) == 1.0
    assert known(9, 1) == 0.0
    assert known(5, 4) == 0.0, "what is just before it does not count"


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


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_who_was_late_once_in_a_job_that_keeps_a_rate_costs_it_nothing(backend: Backend) -> None:
    """Each rank has its next batch so long after its last, whoever waits for whom: the other has waited for it since
    then, for most of each step, and no step is longer than before. (Seen live: all of three such jobs were told.)"""
    job = Job("nothing", 2, 0.0, 1, 30.0, backend, step_scale=0.06, pace_seconds=0.05, stands_seconds=0.035)
    assert not _findings(job, 120)


def test_a_tenth_of_a_step_is_told_where_hosts_run_ahead_and_looks_tell_a_cost_at_most() -> None:
    """Others wait for a host for most of each step, of which the step becomes longer by a tenth."""
    found = _findings(Job("sleep", 4, 0.1, 1, 60.0, "nccl ahead", jitter=0.02), 100)
    assert any(finding.stage == "confirmed" and finding.ranks == (1,) for finding in found)


@pytest.mark.parametrize("stands", [0.0, 77.0])
def test_who_needs_longer_than_the_rate_that_its_job_keeps_is_slow(stands: float) -> None:
    """Also after the job has stood for a while, which is no step's usual length."""
    job = Job("sleep", 2, 11.0, 1, 30.0, "gloo", step_scale=0.06, pace_seconds=0.05, stands_seconds=stands)
    found = _findings(job, 90 + stands)
    assert {finding.ranks for finding in found} == {(1,)}
    assert any(finding.stage == "confirmed" for finding in found)


def test_who_has_drawn_the_longest_batches_of_a_while_costs_nothing_that_steps_do_not_vary_by() -> None:
    """Hosts that run ahead of their devices meet nowhere: rank 1 is last in each of 49 looks until it has caught up."""
    job = Job("nothing", 4, 0.0, 0, 0.0, "nccl ahead", step_scale=5.0, design="lengths", spread=1.0, jitter=0.3)
    found = _findings(job, 75, seed=1300893)
    assert not any(finding.stage == "confirmed" for finding in found)


def test_two_turns_of_a_rank_with_another_one_s_between_are_no_state_of_it() -> None:
    """Ten seconds, five of another, ten again: told after 24 s, as if it had been so since the first of them."""
    job = Job(
        "nothing", 4, 0.0, 0, 0.0, "nccl ahead", step_scale=0.25, design="wanders", spread=1.0, rhythm_seconds=5.0,
        design_seed=1302429, jitter=0.1, heavy=True,
    )  # fmt: skip
    assert not any(finding.stage == "confirmed" for finding in _findings(job, 60, seed=1302429))


def _findings(job: Job, seconds: float, seed: int = 2) -> list[Finding]:
    looked = detect(Config(), play(job, seconds, seed))
    return [finding for _, seen in looked for finding in seen.findings if finding.detector == "slow"]


def test_it_is_so_since_the_looks_that_show_it() -> None:
    assert since_when([0.0] * 20 + [0.3] * 30) == 30
    assert since_when([0.3, 0.0] * 30) == 60, "all the time"
    assert since_when([0.0] * 20 + [0.3] * 4) == 8, "of less nothing is said"
    assert since_when([0.0] * 20 + [0.3] * 10, 25) == 25, "it is known to be so for longer"
    assert since_when([0.1] * 20 + [0.3] * 30) == 30, "it was there before, and little"
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
    known = slow_cost(looks, peers, [1], alive(0.5, 2.0, 9.0), before_seconds=0.2)
    assert known is not None
    assert (known.cost_seconds, known.low_seconds, known.high_seconds) == (1.8, 1.8, 2.0)
    assert slow_cost(looks, peers, [1], alive()) is None, "no step is known"
    assert slow_cost(looks, peers, range(4), alive(1.0)) is None, "nobody is left who would wait"


STEADY, SLOW = (0, 0, 0, 0), (1, 0, 1, 1)  # of four moments: in how many each rank waits, calm, and for rank 1


def looked(
    *parts: tuple[int, float, tuple[int, ...]], apart_seconds: float = 0.0, nccl: bool = False, counted: bool = True
) -> Looks:
    """(so many looks, seconds to the next one, who waits), a step each, from step 0 on."""
    looks: list[StepLook] = []
    at_ns, apart_ns = 0, int(apart_seconds * SECOND_NS)
    for many, seconds, waited in parts:
        for _ in range(many):
            steps = (len(looks) if counted else -1,) * len(waited)
            looks.append(StepLook(at_ns, 4, waited, waited, steps=steps, apart_ns=apart_ns))
            at_ns += int(seconds * SECOND_NS)
    return Looks(tuple(PeerRank(rank, rank) for rank in range(len(parts[0][2]))), looks=tuple(looks), nccl=nccl)


def cost_of(looks: Looks, before_seconds: float | None = None, peers: int = 4) -> tuple[float, float, float]:
    columns = looks.columns_of(looks.members[:peers], len(looks.looks))
    if before_seconds is None:
        found = slow_cost(looks, columns, [1], [])
    else:
        found = slow_cost(looks, columns, [1], [], before_seconds)
    assert found
    return found.cost_seconds, found.low_seconds, found.high_seconds


@pytest.mark.parametrize("nccl", [False, True])
def test_what_was_before_says_what_it_costs_where_the_looks_allow_that(nccl: bool) -> None:
    """By the looks a quarter of a step of one second: 0.175 to 0.325 s."""
    looks = looked((20, 1.0, STEADY), (41, 1.0, SLOW), nccl=nccl)
    by_looks = (0.25, 0.25, 0.25)
    assert cost_of(looks) == by_looks
    assert cost_of(looks, 0.8) == pytest.approx((0.2, 0.2, 0.25))
    assert cost_of(looks, 0.7) == pytest.approx((0.3, 0.25, 0.3))
    assert cost_of(looks, 0.5) == by_looks, "something else has changed, too"
    assert cost_of(looks, 0.9) == (pytest.approx((0.1, 0.1, 0.1)) if nccl else by_looks), "a host that is late"
    assert cost_of(looks, 1.2) == ((0.0, 0.0, 0.0) if nccl else by_looks)
    found = slow_cost(looks, looks.columns_of(looks.members, 61), [1], [])
    assert found
    assert (found.seconds, found.steps) == (40.0, 41)


def test_what_a_steps_length_varies_by_makes_the_interval_of_what_was_lost_wider() -> None:
    def varying(many: int, by: float, *, pause: float = 0.0, steps: int = 1) -> Looks:
        lengths = [(1, steps * 1.0 + by * (-1) ** place, SLOW) for place in range(many - 1)]
        looks = looked((20, steps * 1.0, STEADY), *lengths[: many // 2], (1, pause, SLOW), *lengths[many // 2 :])
        if steps == 1:
            return looks
        jumps = tuple(
            msgspec.structs.replace(
                look, steps=(steps * look.step,) * 4, ticks=8, waited=tuple(2 * w for w in look.waited)
            )
            for look in looks.looks
        )
        return msgspec.structs.replace(looks, looks=jumps)

    def apart(steps: int, variance: float) -> float:
        return 1.96 * sqrt(2 * steps * variance) / steps

    even = cost_of(varying(42, 0.1, pause=100.0), 0.8)
    assert even == pytest.approx((0.2, 0.2 - apart(41, 0.01), 0.25), rel=0.02), "nobody looked in the pause"
    much = cost_of(varying(42, 0.3, pause=100.0), 0.8)
    assert much == pytest.approx((0.2, 0.2 - apart(41, 0.09), 0.2 + apart(41, 0.09)), rel=0.05)
    two_a_look = cost_of(varying(42, 0.1, pause=1000.0, steps=2), 0.8)
    assert two_a_look == pytest.approx((0.2, 0.2 - apart(82, 0.0025), 0.25), rel=0.02)


def test_looks_that_vary_allow_more() -> None:
    """0.25 s with an interval of 0.08: half a second is more than twice that, and so is 0.45 s."""
    looks = looked((20, 1.0, STEADY), *([(1, 1.0, STEADY), (1, 1.0, (2, 0, 2, 2))] * 20))
    assert cost_of(looks, 0.65)[0] == pytest.approx(0.35)
    assert cost_of(looks, 0.54)[0] == pytest.approx(0.25, rel=0.05)


def test_of_looks_of_several_moments_a_difference_is_told_and_of_one_moment_who_waits_together() -> None:
    waits = (1, 0, 2, 2)
    assert cost_of(looked((41, 1.0, waits), apart_seconds=0.04))[0] == 0.25
    assert cost_of(looked((41, 1.0, waits), apart_seconds=0.2))[0] == 0.5


def test_under_gloo_a_job_waits_where_ranks_of_other_programs_do_too() -> None:
    """Rank 3 runs another program, and waits for nobody."""
    waits = (1, 0, 1, 0)
    assert cost_of(looked((41, 1.0, waits)), peers=3)[0] == 0.0
    assert cost_of(looked((41, 1.0, waits), nccl=True), peers=3)[0] == 0.25


def before(looks: Looks, window: int) -> float:
    return seconds_before(looks, looks.columns_of(looks.members, len(looks.looks)), [1], window)


def test_a_step_was_as_long_as_in_the_looks_well_before_those_that_show_it() -> None:
    onset = ((10, 1.15, STEADY), (20, 1.3, SLOW))  # it began some looks before
    assert before(looked((40, 1.0, STEADY), *onset), 20) == pytest.approx(1.0)
    warms_up = ((20, 1.9, STEADY), (20, 1.0, STEADY))
    assert before(looked(*warms_up, *onset), 20) == pytest.approx(1.0)
    becomes_longer = ((20, 1.9, STEADY), (10, 1.0, STEADY), (10, 1.2, STEADY))
    assert before(looked(*becomes_longer, *onset), 20) == pytest.approx((10 * 1.0 + 9 * 1.2) / 19)


def test_it_is_not_known_where_the_job_was_hardly_seen_without() -> None:
    onset = ((10, 1.0, STEADY), (20, 1.3, (3, 0, 3, 3)))
    assert [before(looked((many, 1.0, STEADY), *onset), 20) for many in (15, 16)] == [0.0, pytest.approx(1.0)]
    assert before(looked((40, 1.0, (1, 0, 1, 1)), *onset), 20) == pytest.approx(1.0), "a third of the difference"
    assert before(looked((40, 1.0, (2, 0, 2, 2)), *onset), 20) == 0.0
    assert before(looked((40, 1.0, STEADY), *onset, counted=False), 20) == 0.0, "nobody counts steps"
