import msgspec
import pytest

from stallwatch.config import Config
from stallwatch.config_sections import SlowSection
from stallwatch.detectors.waiting import difference, leads
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import GroupCounter, RankSample
from stallwatch.model.verdict import cost_of
from tests.builders.node import sample, snapshot, with_beat
from tests.builders.running_job import SimulatedRank, found, four, job_run, run, slower_since
from tests.replay.stragglers import Backend, Job, play


def held_back(waits: list[float], onset: float = 0) -> list[SimulatedRank]:
    return [SimulatedRank(rank, waits=share) for rank, share in enumerate(waits)]


def test_a_rank_for_which_the_others_wait_is_named_within_seconds() -> None:
    findings = found(run(job_run(held_back([0.66, 0.66, 0.66, 0.0]), 80)), "slow")
    assert findings[0][1].ranks == (3,)
    assert findings[0][0] <= 20
    assert any(finding.stage == "confirmed" for _, finding in findings)
    assert "rank 3" in findings[0][1].reason


def test_a_smaller_effect_takes_more_looks() -> None:
    large = found(run(job_run(held_back([0.66, 0.66, 0.66, 0.0]), 200)), "slow")
    small = found(run(job_run(held_back([0.3, 0.3, 0.3, 0.0]), 200)), "slow")
    assert {finding.ranks for _, finding in small} == {(3,)}
    assert small[0][0] > large[0][0]


@pytest.mark.parametrize(
    "waits",
    [[0.2] * 4, [0.0] * 4, [0.9] * 4, [0.1, 0.3, 0.5, 0.7], [0.0, 0.0, 0.6, 0.6], [0.35, 0.3, 0.3, 0.25]],
    ids=["equal", "nobody waits", "all wait: slow fabric", "pipeline", "two and two", "about equal"],
)
def test_what_no_single_rank_holds_back_is_quiet(waits: list[float]) -> None:
    assert not found(run(job_run(held_back(waits), 200)), "slow")


def test_a_job_that_stands_still_is_not_slow() -> None:
    ranks = [SimulatedRank(rank, stuck_at=20.3, waits=0.0) for rank in range(3)] + [SimulatedRank(3, waits=0.0)]
    stuck = [SimulatedRank(rank, stuck_at=20.3, waits=0.1) for rank in range(4)]
    assert not found(run(job_run(stuck, 60)), "slow")
    assert not found(run(job_run(ranks, 20)), "slow")


def test_an_asynchronous_rank_that_falls_further_behind_is_named() -> None:
    ranks = [*four(step_seconds=0.05)[:3], SimulatedRank(3, step_seconds=0.08)]
    findings = found(run(job_run(ranks, 30)), "slow")
    assert findings[0][1].ranks == (3,)
    assert "behind the median" in findings[0][1].reason


def test_whom_nobody_is_left_to_wait_for_holds_nobody_back() -> None:
    """A collector counts a step for some of each sampler's; these have left, and it computes for long: it was told of
    half a minute later, as one that falls behind."""
    ranks = [*four(step_seconds=0.05)[:3], SimulatedRank(3, step_seconds=0.08, stuck_at=30.2)]
    shots = [
        snapshot(second, [sample(r.rank, r.at(second), world_size=4) for r in ranks if second <= 30 or r.rank == 3])
        for second in range(60)
    ]
    findings = found(run(shots), "slow")
    assert findings[0][1].ranks == (3,)
    assert findings[-1][0] <= 35


@pytest.mark.parametrize("stops_at", [20.3, 20.9])
def test_who_has_stopped_in_the_midst_of_a_look_does_not_fall_behind(stops_at: float) -> None:
    """Predictions of shards of unequal size: rank 3 is done with its own, and cleans up; the others need it for
    nothing."""
    ranks = [*four()[:3], SimulatedRank(3, stuck_at=stops_at)]
    assert not found(run(job_run(ranks, 60)), "slow")


def test_who_counts_steps_of_another_kind_does_not_fall_behind() -> None:
    """An evaluator beside those that train, which counts the checkpoints that it has scored."""
    ranks = [*four(step_seconds=0.05)[:3], SimulatedRank(3, step_seconds=1.5)]
    assert not found(run(job_run(ranks, 60)), "slow")


def test_who_is_no_member_of_its_peers_groups_does_not_fall_behind_them() -> None:
    def of_trainers(second: float, rank: RankSample) -> RankSample:
        assert isinstance(rank.heartbeat, Known)
        default = GroupCounter("gloo", 0, 1, 1)
        groups = (default,) if rank.rank == 3 else (default, *rank.heartbeat.value.groups)
        return with_beat(rank, groups=groups)

    ranks = [*four(step_seconds=0.05)[:3], SimulatedRank(3, step_seconds=0.12)]
    assert not found(run(job_run(ranks, 60, edit=of_trainers)), "slow")


def test_who_was_as_fast_falls_behind_for_as_long_as_it_is_slow() -> None:
    """By its whole count it would be of another kind when the others have four times as many: the finding ended, and
    its incident with it, while it was as slow as ever."""
    calm = job_run(four(), 30)
    slow = job_run([*four()[:3], *slower_since(30, [SimulatedRank(3)], 20)], 200)[len(calm) :]
    seconds = [second for second, _ in found(run([*calm, *slow]), "slow")]
    assert seconds == list(range(37, 201))


def test_who_was_as_fast_is_compared_though_it_is_in_a_group_more() -> None:
    """Rank 0 with a group of its own, for its logs or its checkpoints."""

    def one_more(second: float, rank: RankSample) -> RankSample:
        assert isinstance(rank.heartbeat, Known)
        more = (GroupCounter("gloo", 7, 1, 1),) if rank.rank == 0 else ()
        return with_beat(rank, groups=(*rank.heartbeat.value.groups, *more))

    calm = job_run(four(), 30, edit=one_more)
    slow = job_run([*slower_since(30, four()[:1], 1.6), *four()[1:]], 60, edit=one_more)[len(calm) :]
    assert {finding.ranks for _, finding in found(run([*calm, *slow]), "slow")} == {(0,)}


def test_who_was_started_again_is_compared_by_what_it_counts_since_then() -> None:
    ranks = [*four(begins_at=-2000)[:3], SimulatedRank(3, step_seconds=0.08)]
    assert {finding.ranks for _, finding in found(run(job_run(ranks, 30)), "slow")} == {(3,)}


def test_a_rank_whose_data_are_at_an_end_and_that_shadows_the_others_is_not_slow() -> None:
    ranks = [SimulatedRank(0, stuck_at=15), *(SimulatedRank(rank) for rank in (1, 2, 3))]
    assert not found(run(job_run(ranks, 25)), "slow")


def test_a_steady_distance_is_no_falling_behind() -> None:
    ranks = [*four()[:3], SimulatedRank(3, begins_at=3)]
    late = found(run(job_run(ranks, 60)), "slow")
    assert not late


def test_steps_inside_a_phase_do_not_count() -> None:
    def evaluating(second: float, rank: RankSample) -> RankSample:
        return with_beat(rank, phase="eval", phase_since_ns=1)

    assert not found(run(job_run(held_back([0.66, 0.66, 0.66, 0.0]), 60, edit=evaluating)), "slow")


def test_it_can_be_switched_off() -> None:
    off = Config(slow=SlowSection(enabled=False))
    assert not found(run(job_run(held_back([0.66, 0.66, 0.66, 0.0]), 60), off), "slow")


def test_a_slow_rank_is_held_until_it_is_as_fast_as_its_peers_for_as_long_as_it_took_to_find() -> None:
    """Chance makes gaps in a difference that lasts: what comes and goes with them is no news."""
    small = held_back([0.3, 0.3, 0.3, 0.0])
    seconds = [second for second, _ in found(run(job_run(small, 300)), "slow")]
    assert seconds == list(range(round(seconds[0]), round(seconds[0]) + len(seconds)))
    assert seconds[-1] >= 298


def test_two_slow_ranks_of_eight_are_named_together() -> None:
    findings = found(run(job_run(held_back([0.5, 0.5, 0.0, 0.5, 0.5, 0.0, 0.5, 0.5]), 120)), "slow")
    assert {finding.ranks for _, finding in findings} == {(2, 5)}
    assert "ranks 2, 5 hold the others back" in findings[0][1].reason


def test_two_slow_ranks_of_four_are_named_where_they_were_as_fast_before() -> None:
    calm = job_run(held_back([0.2] * 4), 60)
    slow = job_run(slower_since(60, held_back([0.0, 0.6, 0.0, 0.6]), 1.6), 160)[len(calm) :]
    findings = found(run([*calm, *slow]), "slow")
    assert {finding.ranks for _, finding in findings} == {(0, 2)}


def test_what_it_costs_is_measured_with_its_interval() -> None:
    finding = found(run(job_run(held_back([0.3, 0.3, 0.3, 0.0]), 200)), "slow")[-1][1]
    cost = finding.slowness
    assert cost is not None
    assert cost.low_seconds < 0.3 * cost.step_seconds < cost.high_seconds
    assert cost.share == pytest.approx(cost.cost_seconds / (cost.step_seconds - cost.cost_seconds))


def test_what_it_costs_is_one_figure_also_while_it_is_held() -> None:
    slow, over = job_run(held_back([0.12, 0.12, 0.12, 0.0]), 100), job_run(held_back([0.2] * 4), 160)
    findings = [finding for _, finding in found(run([*slow, *over[len(slow) :]]), "slow")]
    assert len(findings) > 60
    assert all(finding.slowness and cost_of(finding.slowness) in finding.reason for finding in findings)


def test_what_people_see_of_a_slow_rank_is_what_is_told_of_it() -> None:
    slow = [0.66, 0.66, 0.66, 0.0]
    *_, (_, last) = run(job_run(held_back(slow), 60))
    (finding,) = [one for one in last.findings if one.detector == "slow"]
    assert finding.slowness is not None
    shown = {rank.rank: (rank.communication_share, rank.slow_share) for rank in last.ranks}
    assert shown[3] == (0.0, finding.slowness.share)
    assert all(communication == pytest.approx(0.66, abs=0.1) for communication, _ in list(shown.values())[:3])
    assert all(cost == 0.0 for _, cost in list(shown.values())[:3])


def test_of_ranks_that_are_not_slow_it_is_what_the_same_looks_say_and_nothing_of_few_looks() -> None:
    *_, (_, last) = run(job_run(held_back([0.3, 0.3, 0.3, 0.25]), 60))
    assert not last.findings
    assert all(rank.slow_share is not None and 0.0 <= rank.slow_share < 0.1 for rank in last.ranks)
    *_, (_, early) = run(job_run(held_back([0.3, 0.3, 0.3, 0.25]), 6))
    assert all(rank.slow_share is None and rank.communication_share is None for rank in early.ranks)


@pytest.mark.parametrize("waited", [[2, 9], [3, 1, 7], [5, 5, 1, 9], [2, 2, 8, 4, 4], [1, 1, 1, 9]])
def test_the_lead_of_each_is_the_difference_of_it_alone(waited: list[int]) -> None:
    columns = [(rank, tuple((10, (count * look) % 11) for look in range(1, 30))) for rank, count in enumerate(waited)]
    assert leads(columns) == pytest.approx({rank: difference(columns, (rank,))[0] for rank, _ in columns})


def test_ranks_that_have_no_more_batches_wait_for_nobody() -> None:
    """torch's Join: they shadow the collectives of the one that goes on, and count no steps."""

    def shadowing(second: float, rank: RankSample) -> RankSample:
        if rank.rank == 3 or not isinstance(rank.heartbeat, Known):
            return rank
        looks = tuple(msgspec.structs.replace(look, step=100) for look in rank.heartbeat.value.looks)
        return with_beat(rank, step=100, looks=looks)

    assert not found(run(job_run(held_back([0.66, 0.66, 0.66, 0.0]), 60, edit=shadowing)), "slow")


def test_a_rank_that_is_slow_from_the_first_step_is_told_apart_from_one_that_became_slow() -> None:
    slow, calm = held_back([0.5, 0.5, 0.0, 0.5]), job_run(held_back([0.2] * 4), 60)
    always = found(run(job_run(slow, 100)), "slow")
    assert {(finding.ranks, finding.from_start) for _, finding in always} == {((2,), True)}
    assert "rank 2 holds the others back since the first steps: in the last" in always[0][1].reason
    later = found(run([*calm, *job_run(slower_since(60, slow, 1.6), 120)[len(calm) :]]), "slow")
    assert {(finding.ranks, finding.from_start) for _, finding in later} == {((2,), False)}


def test_a_rank_that_becomes_slow_after_a_dozen_long_steps_was_not_so_from_the_first() -> None:
    """Of rank 0 that would be taken for what the program gives it, and nobody would be told."""

    def from_start(onset_seconds: float) -> bool:
        job = Job("sleep", 4, 1.0, 0, onset_seconds, step_scale=5.0)
        return found(run(play(job, onset_seconds + 40, 1)), "slow")[-1][1].from_start

    assert not from_start(15.0)
    assert from_start(0.0)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_what_a_rank_costs_that_is_slow_from_the_first_steps_is_told_as_at_most(backend: Backend) -> None:
    """Nobody has seen the job without it: where all keep a rate by clocks of their own, it costs nothing."""
    late = Job("nothing", 4, 0.0, 1, 1.0, backend, pace_seconds=0.25, stands_seconds=0.12)
    told = [one for _, one in found(run(play(late, 120, 3)), "slow") if one.slowness is not None]
    assert told and all(one.slowness.at_most and one.reason.count("at most") == 2 for one in told if one.slowness)
    later = found(run(play(Job("sleep", 4, 0.5, 1, 40.0, backend), 80, 3)), "slow")
    assert later and not any(one.slowness.at_most for _, one in later if one.slowness)


def test_a_rank_that_becomes_slower_by_little_all_the_time_is_told_apart_from_one_that_became_slow_at_once() -> None:
    def creeping(second: float) -> list[SimulatedRank]:
        waits, seconds = second / 300, second - second**2 / 600  # without waiting
        step_seconds = 0.05 / (1 - waits)
        ranks = held_back([waits] * 3 + [0.0])
        begins = second - seconds / 0.05 * step_seconds
        return [msgspec.structs.replace(rank, step_seconds=step_seconds, begins_at=begins) for rank in ranks]

    grown = [job_run(creeping(second), second + 1)[-1] for second in range(300)]
    slow = found(run(grown), "slow")
    assert slow[-1][1].ranks == (3,)
    assert slow[-1][1].grows
    assert "rank 3 holds the others back more and more: in the last" in slow[-1][1].reason
    at_once = [
        *job_run(held_back([0.05] * 4), 60),
        *job_run(slower_since(60, held_back([0.5, 0.5, 0.5, 0.0]), 1.9), 200)[61:],
    ]
    assert not any(finding.grows for _, finding in found(run(at_once), "slow"))


def test_a_daemon_that_comes_later_does_not_know_how_the_job_began() -> None:
    slow = found(run(job_run(held_back([0.5, 0.5, 0.0, 0.5]), 160)[60:]), "slow")
    assert {(finding.ranks, finding.from_start) for _, finding in slow} == {((2,), False)}


def test_what_becomes_much_slower_is_not_so_from_the_first_step_any_more() -> None:
    little, much = job_run(held_back([0.0, 0.25, 0.25, 0.25]), 100), job_run(held_back([0.0, 0.7, 0.7, 0.7]), 200)
    slow = found(run([*little, *much[len(little) :]]), "slow")
    assert slow[0][1].from_start
    assert not slow[-1][1].from_start
    assert {finding.ranks for _, finding in slow} == {(0,)}
