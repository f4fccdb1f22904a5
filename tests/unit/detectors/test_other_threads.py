"""Collectives of a second thread (a saver, metrics, a keep-alive) neither hide that training stands nor prove it."""

from collections.abc import Callable

import pytest

from stallwatch.model.reading import Known
from stallwatch.model.snapshot import GroupCounter, RankSample
from tests.builders.node import with_beat
from tests.builders.running_job import SimulatedRank, found, four, job_run, run

STUCK = 20.3
Edit = Callable[[float, RankSample], RankSample]


def with_side_group(second: float, rank: RankSample, changes: int | None, *, same_group: bool) -> RankSample:
    """A thread of every rank counts on, twice a second; `changes`: of the training thread's frames."""
    assert isinstance(rank.heartbeat, Known)
    (group,) = rank.heartbeat.value.groups
    side = int(2 * second)
    both = (GroupCounter("gloo", 0, group.enqueued + side, group.completed + side),)
    return with_beat(
        rank, groups=both if same_group else (group, GroupCounter("gloo", 1, side, side)), frame_changes=changes
    )


def busy_beside(stuck_at: float, *, same_group: bool = False) -> Edit:
    return lambda second, rank: with_side_group(second, rank, int(4 * min(second, stuck_at)), same_group=same_group)


@pytest.mark.parametrize("same_group", [False, True])
@pytest.mark.parametrize("counts_steps", [True, False])
def test_training_that_stands_is_found_whatever_a_second_thread_counts(counts_steps: bool, same_group: bool) -> None:
    ranks = four(step_seconds=0.5, stuck_at=STUCK, counts_steps=counts_steps)
    detected = run(job_run(ranks, 45, edit=busy_beside(STUCK, same_group=same_group)))
    second, finding = found(detected, "stall", "confirmed")[0]
    assert finding.ranks == (0, 1, 2, 3)
    assert second - STUCK <= 11, "frames that changed a moment ago are believed"
    assert not detected[-1][1].jobs[0].moved


def test_a_rank_that_spins_while_its_second_thread_counts_hides_no_standstill_of_the_others() -> None:
    def edit(second: float, rank: RankSample) -> RankSample:
        changes = int(4 * second) if rank.rank == 2 else int(4 * min(second, STUCK))
        return with_side_group(second, rank, changes, same_group=False)

    detected = run(job_run(four(stuck_at=STUCK), 40, edit=edit))
    second, _ = found(detected, "stall", "confirmed")[0]
    assert second - STUCK <= 10


def test_collectives_within_a_long_step_are_progress_where_the_training_thread_moves() -> None:
    def edit(second: float, rank: RankSample) -> RankSample:
        return with_side_group(second, rank, int(4 * second), same_group=False)

    ranks = [SimulatedRank(rank, stuck_at=STUCK) for rank in range(4)]
    assert not found(run(job_run(ranks, 60, edit=edit)), "stall")


def test_a_hook_that_counts_no_frames_is_read_as_before() -> None:
    def edit(second: float, rank: RankSample) -> RankSample:
        return with_side_group(second, rank, None, same_group=False)

    assert not found(run(job_run(four(stuck_at=STUCK), 60, edit=edit)), "stall")
