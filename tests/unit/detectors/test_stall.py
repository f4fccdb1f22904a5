from dataclasses import dataclass

import msgspec
import pytest

from stallwatch.config import Config
from stallwatch.config_sections import StallSection
from stallwatch.model.reading import Unavailable
from stallwatch.model.snapshot import RankSample
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import START_NS
from tests.builders.node import snapshot, with_beat
from tests.builders.running_job import SimulatedRank, found, four, job_run, run

SECOND_LOOK = StallSection().second_look_seconds


@dataclass(frozen=True)
class Onset:
    suspected: float
    confirmed: float


def onset(step_seconds: float, fault: float, seconds: float) -> Onset:
    detected = run(job_run(four(step_seconds=step_seconds, stuck_at=fault), seconds))
    return Onset(found(detected, "stall")[0][0], found(detected, "stall", "confirmed")[0][0])


def test_a_job_with_short_steps_is_suspected_after_the_floor_and_confirmed_at_the_second_look() -> None:
    times = onset(0.05, 20.3, 60)
    assert 5 <= times.suspected - 20.3 <= 6.7
    assert times.confirmed - times.suspected == SECOND_LOOK


def test_steps_of_half_a_second_and_of_five_keep_their_goals() -> None:
    assert onset(0.5, 20.3, 60).confirmed - 20.3 <= 12
    assert onset(5, 60.3, 120).confirmed - 60.3 <= 27


def test_a_moving_job_is_quiet() -> None:
    assert not found(run(job_run(four(), 120)), "stall")


def test_all_ranks_are_named_with_limit_and_reason() -> None:
    _, finding = found(run(job_run(four(stuck_at=20.3), 40)), "stall", "confirmed")[0]
    assert finding.ranks == (0, 1, 2, 3)
    assert finding.limit_seconds == 5.0
    assert "floor" in finding.reason
    assert finding.resolvable


def test_one_rank_that_still_moves_keeps_the_job_from_being_suspected_at_once() -> None:
    ranks = [*four(stuck_at=20.3)[:3], SimulatedRank(3)]
    assert not found(run(job_run(ranks, 45)), "stall")


def test_ranks_left_behind_are_found_though_others_move_on() -> None:
    ranks = [SimulatedRank(0), SimulatedRank(1), SimulatedRank(2), SimulatedRank(3, stuck_at=20.3)]
    second, finding = found(run(job_run(ranks, 70)), "stall")[0]
    assert finding.ranks == (3,)
    assert 30 <= second - 20.3 <= 32


def test_suspicion_ends_when_the_job_moves_again_and_a_second_stall_is_counted_anew() -> None:
    first = job_run(four(stuck_at=20.3), 27)
    again = job_run(four(begins_at=6.7, stuck_at=60.3), 80, first_second=28)
    stalls = found(run([*first, *again]), "stall")
    seconds = [second for second, _ in stalls]
    assert min(seconds) < 28
    assert not [s for s in seconds if 28 <= s <= 60]
    second_confirmed = min(s for s, f in stalls if f.stage == "confirmed" and s > 60)
    assert second_confirmed - min(s for s in seconds if s > 60) == SECOND_LOOK


def test_before_steps_are_learned_the_unlearned_limit_holds() -> None:
    slow = four(step_seconds=1.0, stuck_at=3.5)
    detected = run(job_run(slow, 90))
    second = found(detected, "stall")[0][0]
    assert 60 <= second - 3.0 <= 62


def test_a_daemon_that_starts_in_the_middle_of_a_hang_sees_it_at_once() -> None:
    detected = run(job_run(four(stuck_at=20.3), 80, first_second=50))
    assert found(detected, "stall")[0][0] == 50
    assert found(detected, "stall", "confirmed")[0][0] == 50 + SECOND_LOOK


def test_a_record_of_another_boot_is_not_believed_about_its_age() -> None:
    def from_the_future(second: float, rank: RankSample) -> RankSample:
        return with_beat(rank, last_step_ns=START_NS + 10**6 * SECOND_NS)

    detected = run(job_run(four(stuck_at=20.3), 80, first_second=50, edit=from_the_future))
    assert found(detected, "stall")[0][0] == 55


def test_time_in_which_we_were_late_ourselves_does_not_count() -> None:
    shots = job_run(four(), 20)
    frozen = job_run(four(stuck_at=20), 81, first_second=80)  # the whole node was suspended for a minute
    late = [msgspec.structs.replace(frozen[0], late_seconds=59.0), *frozen[1:]]
    assert not found(run([*shots, *late]), "stall")
    on_time = [*shots, *frozen]
    assert found(run(on_time), "stall"), "the same without lateness is a stall: the test can fail"


def test_unreadable_records_are_no_stall() -> None:
    def unreadable(second: float, rank: RankSample) -> RankSample:
        return msgspec.structs.replace(rank, heartbeat=Unavailable("no answer", START_NS)) if second > 20 else rank

    assert not found(run(job_run(four(), 80, edit=unreadable)), "stall")


def test_a_rank_that_cannot_be_read_does_not_hide_the_stall_of_the_others() -> None:
    def unreadable(second: float, rank: RankSample) -> RankSample:
        return msgspec.structs.replace(rank, heartbeat=Unavailable("no answer", START_NS)) if rank.rank == 2 else rank

    _, finding = found(run(job_run(four(stuck_at=20.3), 40, edit=unreadable)), "stall")[0]
    assert finding.ranks == (0, 1, 3)


def test_a_dump_in_progress_raises_no_suspicion() -> None:
    def dumping(second: float, rank: RankSample) -> RankSample:
        return with_beat(rank, dump_started_ns=START_NS) if rank.rank == 0 and 20 < second < 35 else rank

    seconds = [second for second, _ in found(run(job_run(four(stuck_at=20.3), 60, edit=dumping)), "stall")]
    assert min(seconds) == 35


def test_without_step_counting_the_recorders_counters_are_the_progress() -> None:
    ranks = four(counts_steps=False, stuck_at=40.3)
    detected = run(job_run(ranks, 80))
    second, finding = found(detected, "stall")[0]
    assert 5 <= second - 40.3 <= 7
    assert finding.ranks == (0, 1, 2, 3)


def test_counters_that_go_on_within_a_long_step_are_progress() -> None:
    # Accumulation of gradients, an evaluation with its own collectives: the step stands, the job moves.
    def accumulating(second: float, rank: RankSample) -> RankSample:
        moving = SimulatedRank(rank.rank).at(second).groups
        return with_beat(rank, groups=moving)

    assert not found(run(job_run(four(stuck_at=20.3), 80, edit=accumulating)), "stall")


def test_the_operation_that_hangs_is_not_taken_for_progress() -> None:
    # Pulses tell of the last step, and then of the operation that hangs, up to two seconds after the last step.
    def late_pulses(second: float, rank: RankSample) -> RankSample:
        shown = {21.0: 19.0, 22.0: 20.0}.get(second)
        return with_beat(rank, groups=SimulatedRank(rank.rank).at(shown).groups) if shown else rank

    plain = found(run(job_run(four(stuck_at=20.3), 60)), "stall")[0][0]
    assert found(run(job_run(four(stuck_at=20.3), 60, edit=late_pulses)), "stall")[0][0] == plain


@pytest.mark.parametrize(("length", "looks"), [(4.0, 0), (12.0, 1)])
def test_an_unknown_phase_is_looked_at_after_the_floor_a_known_one_later(length: float, looks: int) -> None:
    # Step 60, a checkpoint of `length` seconds; again later. Looking tells nobody; only the first costs a look.
    period = 30.0

    def checkpointing(second: float, rank: RankSample) -> RankSample:
        cycle, inside = divmod(second, period)
        begun = cycle * period
        if inside < length and cycle >= 1:
            stuck = SimulatedRank(rank.rank, stuck_at=begun).at(begun)
            return with_beat(
                rank, step=stuck.step, groups=stuck.groups, phase="checkpoint", phase_since_ns=int(begun * SECOND_NS)
            )
        return with_beat(rank, phase="", phase_since_ns=int((begun + length) * SECOND_NS))

    seconds = {second for second, _ in found(run(job_run(four(), 170, edit=checkpointing)), "stall")}
    assert len({second // period for second in seconds}) == looks
    assert all(second // period == 1 for second in seconds)


def test_steps_that_held_a_phase_do_not_lengthen_the_limit_of_plain_steps() -> None:
    # Every tenth second a checkpoint of three seconds ends inside a step: that time is the phase's.
    def saving(second: float, rank: RankSample) -> RankSample:
        saves = int(second / 10)
        durations = (50_000_000, 3_000_000_000) * 8 if second and second % 10 == 0 else (50_000_000,) * 16
        return with_beat(rank, step_durations_ns=durations, phase_since_ns=saves, groups=())

    assert run(job_run(four(), 60, edit=saving))[-1][1].ranks[0].limit_seconds == 5.0


def test_it_can_be_switched_off() -> None:
    off = Config(stall=StallSection(enabled=False))
    assert not found(run(job_run(four(stuck_at=20.3), 60), off), "stall")


def test_jobs_on_one_node_do_not_mix() -> None:
    other = msgspec.structs.replace(job_run(four(), 0)[0].ranks[0].job, training_job="other")
    mixed = []
    for stuck, moving in zip(job_run(four(stuck_at=20.3), 40), job_run(four(), 40), strict=True):
        others = [msgspec.structs.replace(rank, job=other, pid=rank.pid + 100) for rank in moving.ranks]
        mixed.append(msgspec.structs.replace(stuck, ranks=(*stuck.ranks, *others)))
    assert {finding.job.training_job for _, finding in found(run(mixed), "stall")} == {"train"}


def test_the_order_of_ranks_does_not_matter() -> None:
    shots = job_run(four(stuck_at=20.3), 40)
    backwards = [msgspec.structs.replace(shot, ranks=shot.ranks[::-1]) for shot in shots]
    assert [one.findings for _, one in run(shots)] == [one.findings for _, one in run(backwards)]


def test_an_empty_node_is_quiet() -> None:
    assert not run([snapshot(0, []), snapshot(1, [])])[1][1].findings
