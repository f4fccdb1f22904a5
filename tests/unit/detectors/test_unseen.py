"""What we cannot see for a moment is neither healthy nor over: suspicions outlive a sensor that does not answer."""

import msgspec

from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import NodeSnapshot, RankSample
from tests.builders.heartbeat import START_NS, heartbeat
from tests.builders.node import process, sample, snapshot
from tests.builders.running_job import SimulatedRank, found, four, job_run, run


def blinded(shots: list[NodeSnapshot], first: float, last: float) -> list[NodeSnapshot]:
    """Between these seconds the reader of ranks does not answer."""

    def blind(rank: RankSample) -> RankSample:
        gone = Unavailable("the reader of ranks has not answered for 2 s", START_NS)
        return msgspec.structs.replace(rank, heartbeat=gone, process=gone)

    return [
        msgspec.structs.replace(shot, ranks=tuple(map(blind, shot.ranks))) if first <= shot.tick <= last else shot
        for shot in shots
    ]


def test_a_stall_stays_suspected_and_is_confirmed_in_time() -> None:
    findings = found(run(blinded(job_run(four(stuck_at=20.3), 40), 27, 29)), "stall")
    assert [second for second, _ in findings] == list(range(26, 41))
    assert next(second for second, finding in findings if finding.stage == "confirmed") == 28


def test_what_cannot_be_seen_is_not_suspected_for_it() -> None:
    detected = run(blinded(job_run(four(), 60), 20, 50))
    assert not [finding for _, one in detected for finding in one.findings]


def test_a_job_that_does_not_begin_stays_suspected() -> None:
    shots = [snapshot(s, [sample(r, heartbeat(r, pulse_count=s)) for r in range(3)], tick=s) for s in range(20)]
    findings = found(run(blinded(shots, 7, 9)), "init")
    assert [second for second, _ in findings] == list(range(5, 20))


def test_a_stopped_rank_stays_stopped_until_it_is_seen_to_go_on() -> None:
    def edit(second: float, rank: RankSample) -> RankSample:
        if rank.rank != 1 or not 20 <= second <= 30:
            return rank
        return msgspec.structs.replace(rank, process=Known(process(1, state="T"), START_NS))

    findings = found(run(blinded(job_run(four(), 40, edit=edit), 23, 25)), "stopped")
    assert [second for second, _ in findings] == list(range(20, 31))


def test_one_rank_with_a_longer_limit_does_not_make_its_job_wait() -> None:
    ranks = [*four(step_seconds=5, stuck_at=60.3)[:3], SimulatedRank(3, step_seconds=5, stuck_at=60.3)]

    def seen_late(second: float, rank: RankSample) -> RankSample:
        if rank.rank != 3 or not isinstance(rank.heartbeat, Known):
            return rank
        few = msgspec.structs.replace(rank.heartbeat.value, step_durations_ns=(), groups=())
        return msgspec.structs.replace(rank, heartbeat=Known(few, START_NS))

    findings = found(run(job_run(ranks, 90, edit=seen_late)), "stall")
    assert findings[0][0] <= 60 + 13
    assert findings[0][1].ranks == (0, 1, 2, 3)
