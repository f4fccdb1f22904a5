"""Slow ranks as pulses at common moments show them, under gloo and under NCCL's late word of completion."""

import msgspec
import pytest

from stallwatch.config import Config
from stallwatch.detectors.counter_samples import PeerRank
from stallwatch.detectors.looks import Looks, StepLook, peers_of
from stallwatch.detectors.waiting import waited_share
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import CounterLook, GroupCounter, NodeSnapshot
from stallwatch.replay.playing import detect
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import START_NS, heartbeat
from tests.builders.node import sample, snapshot, with_beat
from tests.builders.running_job import found, run
from tests.replay.stragglers import Backend, By, Job, play


def named(job: Job, seconds: float, seed: int = 3) -> list[tuple[tuple[int, ...], str, float]]:
    """(ranks, stage, second) of every finding of a slow rank."""
    return [
        (finding.ranks, finding.stage, float(shot.tick))
        for shot, detected in detect(Config(), play(job, seconds, seed))
        for finding in detected.findings
        if finding.detector == "slow"
    ]


@pytest.mark.parametrize("backend", ["gloo", "nccl", "nccl ahead"])
def test_a_rank_of_double_time_is_named_under_every_backend(backend: Backend) -> None:
    findings = named(Job("sleep", 4, 1.0, 2, 30.0, backend), 150)
    assert {ranks for ranks, _, _ in findings} == {(2,)}
    assert any(stage == "confirmed" for _, stage, _ in findings)
    assert findings[0][2] > 30


@pytest.mark.parametrize("backend", ["nccl", "nccl ahead"])
@pytest.mark.parametrize("by", ["nothing", "logging", "pipeline", "experts"])
def test_what_holds_nobody_back_is_quiet_under_nccl(by: By, backend: Backend) -> None:
    if by == "logging" and backend == "nccl":
        return  # it does hold the others back where the host keeps step with its device
    assert not named(Job(by, 4, 0.0, 0, 0.0, backend), 400)


@pytest.mark.parametrize("backend", ["gloo", "nccl", "nccl ahead"])
def test_a_rank_of_double_time_is_suspected_within_seconds(backend: Backend) -> None:
    findings = named(Job("sleep", 4, 1.0, 2, 30.0, backend), 60)
    assert findings[0][2] <= 40


def test_what_passes_within_seconds_is_no_state_of_a_rank() -> None:
    """Rank 2 comes last in each of sixteen steps, four in a second, and then no more."""
    shots = [quick(second, slow=20 <= second < 24) for second in range(1, 60)]
    assert not found(run(shots), "slow")
    lasting = [quick(second, slow=second >= 20, longer_since=20) for second in range(1, 60)]
    assert {finding.ranks for _, finding in found(run(lasting), "slow")} == {(2,)}


def quick(second: int, *, slow: bool, longer_since: int = 99) -> NodeSnapshot:
    """A second of a job in which each of four looks sees another step, the second after that before; from a second on
    the next."""

    def step(number: int) -> int:
        return 2 * number - max(0, number - 4 * longer_since)

    samples = []
    for rank in range(4):
        waits = slow and rank != 2
        looks = tuple(
            CounterLook(number, START_NS + number * SECOND_NS // 4, step(number), 0, 0, number + waits, number)
            for number in range(4 * second - 3, 4 * second + 1)
        )
        groups = (GroupCounter("gloo", 0, 4 * second + waits, 4 * second),)
        beat = heartbeat(rank, step=step(4 * second), pulse_count=second, groups=groups, looks=looks)
        samples.append(sample(rank, beat))
    return snapshot(second, samples, tick=second)


def test_short_steps_in_which_every_rank_is_always_pending_hide_nothing() -> None:
    findings = named(Job("sleep", 4, 1.0, 1, 20.0, "nccl", step_scale=0.2), 120)
    assert {ranks for ranks, _, _ in findings} == {(1,)}


def node(second: int, enqueued: list[int], completed: list[int], step: int) -> NodeSnapshot:
    samples = [
        sample(
            rank,
            heartbeat(
                rank,
                step=step,
                pulse_count=second,
                pulse_ns=START_NS + second * SECOND_NS,
                groups=(GroupCounter("nccl", 0, enqueued[rank], completed[rank]),),
            ),
        )
        for rank in range(len(enqueued))
    ]
    return snapshot(second, samples, tick=second)


def test_a_constant_distance_of_counts_is_no_lag() -> None:
    """Sends are counted too: rank 0 made one fewer at the start, and ever since."""
    shots = [
        node(
            second,
            [10 * second - 1, 10 * second, 10 * second],
            [10 * second - 2, 10 * second - 1, 10 * second - 1],
            second,
        )
        for second in range(10, 200)
    ]
    assert not found(run(shots), "slow")


def test_who_sees_completion_first_is_not_the_last_to_enqueue() -> None:
    """Steps shorter than the watchdog's look, each rank last in its turn; rank 0's watchdog looks just before the hook
    does, so that its count is one ahead in most looks."""
    shots = []
    for second in range(10, 200):
        last, steps = second % 4, 20 * second
        enqueued = [steps - (rank == last) for rank in range(4)]
        completed = [steps - 1 if rank == 0 and second % 5 else steps - 2 for rank in range(4)]
        shots.append(node(second, enqueued, completed, steps))
    assert not [finding for _, finding in found(run(shots), "slow") if finding.stage == "confirmed"]


def test_one_long_step_is_one_observation_however_many_ticks_see_it() -> None:
    """Rank 0 comes last in a single step of two minutes."""
    shots = [node(second, [10, 11, 11, 11], [10] * 4, 10) for second in range(10, 130)]
    assert not found(run(shots), "slow")


def test_a_rank_that_counts_no_steps_under_nccl_costs_the_others_nothing() -> None:
    """It shadows the collectives of those that have batches left (torch's Join), or has ended its loop."""
    shots = []
    for shot in play(Job("sleep", 4, 1.0, 1, 30.0, "nccl"), 150, 3):
        ranks = []
        for rank in shot.ranks:
            beat = rank.heartbeat.value if isinstance(rank.heartbeat, Known) else None
            if rank.rank == 3 and beat is not None:
                looks = tuple(msgspec.structs.replace(look, step=100) for look in beat.looks)
                rank = with_beat(rank, step=100, looks=looks)
            ranks.append(rank)
        shots.append(msgspec.structs.replace(shot, ranks=tuple(ranks)))
    detected = run(shots)
    assert not [error for _, one in detected for error in one.errors]
    assert (1,) in {finding.ranks for _, finding in found(detected, "slow")}


def test_the_columns_of_all_members_are_those_of_each_and_a_span_counts_one_look_more() -> None:
    members = (PeerRank(0, 10, (5, 900)), PeerRank(1, 11, (5, 902)), PeerRank(2, 12, (5, 400)))
    each = tuple(
        StepLook(at * SECOND_NS, 4, (at % 5, 0, 1), (0, at % 3, 1), (1, 1, 1), (at,) * 3) for at in (1, 2, 4, 5, 9)
    )
    looks = Looks(members, looks=each, count=5)
    assert looks.columns(3) == tuple(looks.column(member, 3) for member in members)
    assert looks.column(members[0], 2) == ((4, 0), (4, 4))
    assert looks.column(members[1], 2, surely=True) == ((4, 2), (4, 0))
    assert Looks(members).columns(3) == ((), (), ())
    for surely in (False, True):
        for window, shares in looks.shares((4, 1, 3), surely=surely).items():
            assert shares == pytest.approx([waited_share(one) for one in looks.columns(window, surely=surely)])
    assert [looks.within(seconds * SECOND_NS) for seconds in (1, 4, 5, 100)] == [2, 2, 3, 6]
    assert [[member.rank for member in peers] for peers in peers_of(members)] == [[0, 1], [2]]
