import msgspec

from stallwatch.model.reading import Known
from stallwatch.model.snapshot import GroupCounter, NodeSnapshot
from tests.builders.heartbeat import heartbeat
from tests.builders.node import sample, snapshot
from tests.builders.running_job import found, run


def job(step_seconds: list[float], waits: list[float] | None = None) -> list[NodeSnapshot]:
    """A snapshot a second of two ranks whose step length in minute n is the n-th."""
    shots, step, moved = [], 0, 0.0
    for second in range(60 * len(step_seconds)):
        length = step_seconds[second // 60]
        moved += 1
        while moved >= length:
            step, moved = step + 1, moved - length
        share = waits[second // 60] if waits else 0.2
        pending = second * 7919 % 100 < 100 * share
        beats = [
            heartbeat(
                rank,
                step=step,
                last_step_ns=1,
                step_durations_ns=(int(length * 1e9),) * 4,
                pulse_count=second,
                groups=(GroupCounter("nccl", 0, step + pending, step),),
                world_size=2,
            )
            for rank in range(2)
        ]
        shots.append(
            snapshot(second, [sample(rank, beat, world_size=2) for rank, beat in enumerate(beats)], tick=second)
        )
    return shots


def test_steps_that_become_twice_as_long_and_stay_so_are_told_after_ten_minutes() -> None:
    findings = found(run(job([0.5] * 12 + [1.0] * 20, [0.2] * 12 + [0.6] * 20)), "slow_job")
    assert 12 * 60 <= findings[0][0] <= 16 * 60 + 5
    confirmed = [second for second, finding in findings if finding.stage == "confirmed"]
    assert confirmed[0] - findings[0][0] == 600
    assert findings[0][1].ranks == (0, 1)
    cost = findings[0][1].slowness
    assert cost is not None
    assert cost.cost_seconds == 0.5
    assert "slower fabric" in findings[0][1].reason


def test_without_more_waiting_the_fabric_is_not_blamed() -> None:
    findings = found(run(job([0.5] * 12 + [1.0] * 8)), "slow_job")
    assert "communication does not explain it" in findings[0][1].reason


def test_it_ends_when_the_old_pace_is_back() -> None:
    findings = found(run(job([0.5] * 12 + [1.0] * 6 + [0.5] * 8)), "slow_job")
    assert findings
    assert findings[-1][0] <= 20 * 60


def test_drift_noise_and_the_warm_up_are_no_change() -> None:
    assert not found(run(job([0.5 * 1.04**minute for minute in range(30)])), "slow_job")
    assert not found(run(job([0.5, 0.6] * 15)), "slow_job")
    assert not found(run(job([0.2] * 2 + [0.5] * 20)), "slow_job")


def test_a_phase_is_another_kind_of_time() -> None:
    def inside(shot: NodeSnapshot) -> NodeSnapshot:
        ranks = []
        for rank in shot.ranks:
            assert isinstance(rank.heartbeat, Known)
            beat = msgspec.structs.replace(rank.heartbeat.value, phase="eval")
            ranks.append(msgspec.structs.replace(rank, heartbeat=Known(beat, shot.at_ns)))
        return msgspec.structs.replace(shot, ranks=tuple(ranks))

    shots = job([0.5] * 12 + [1.0] * 8)
    assert not found(run([shot if shot.tick < 720 else inside(shot) for shot in shots]), "slow_job")
