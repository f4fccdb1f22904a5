import msgspec

from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.detectors.stopped import StoppedDetector
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import NodeSnapshot, RankSample
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import START_NS
from tests.builders.node import process, sample, snapshot
from tests.builders.running_job import SimulatedRank, found, four, job_run, run


def held(rank: RankSample, since: float, state: str = "T", tracer_pid: int = 0) -> RankSample:
    """Stopped since a second of the job: its record is what it was then."""
    stopped = process(rank.rank, state=state, tracer_pid=tracer_pid)
    beat = Known(SimulatedRank(rank.rank).at(since), START_NS)
    return msgspec.structs.replace(rank, process=Known(stopped, START_NS), heartbeat=beat)


def stopped_job(state: str, tracer_pid: int = 0, first: float = 20, last: float = 30) -> list[NodeSnapshot]:
    def edit(second: float, rank: RankSample) -> RankSample:
        if rank.rank != 1 or not first <= second <= last:
            return rank
        return held(rank, first, state, tracer_pid)

    return job_run(four(), 40, edit=edit)


def test_a_stop_that_lasts_is_confirmed_a_third_of_a_second_later() -> None:
    findings = found(run(stopped_job("T")), "stopped")
    assert [(second, finding.stage) for second, finding in findings[:2]] == [(20, "suspect"), (21, "confirmed")]
    assert findings[0][1].due_ns == START_NS + 20_600_000_000
    assert findings[1][1].ranks == (1,)
    assert not findings[1][1].resolvable
    assert findings[-1][0] == 30, "it ends when the rank goes on"


def test_a_stop_seen_once_is_a_passing_one() -> None:
    assert not found(run(stopped_job("T", last=20)), "stopped", "confirmed")


def test_who_is_stopped_and_goes_on_again_and_again_may_be_stopped_for_longer_than_that() -> None:
    """As cpulimit does, which a crowded machine lets go on late; one that stands for good is told all the same."""

    def limited(second: float) -> bool:
        return 12 <= second < 28 and second % 4 in (0, 1, 2)  # for three seconds of four

    def edit(second: float, rank: RankSample) -> RankSample:
        if rank.rank != 1 or not (limited(second) or second >= 40):
            return rank
        return held(rank, 40.0 if second >= 40 else second - second % 4)

    confirmed = [second for second, _ in found(run(job_run(four(), 60, edit=edit)), "stopped", "confirmed")]
    assert [second for second in confirmed if second >= 16] == list(range(49, 61)), "three times three seconds"


def test_who_goes_on_between_two_ticks_that_see_it_stopped_has_not_stood() -> None:
    """For half of each tenth of a second, as cpulimit does: its pulse and its steps go on."""

    def edit(second: float, rank: RankSample) -> RankSample:
        if rank.rank != 1 or not 12 <= second < 40:
            return rank
        return held(rank, second - 0.04)

    seen = found(run(job_run(four(), 50, edit=edit)), "stopped")
    assert not [second for second, finding in seen if finding.stage == "confirmed"]
    assert len({finding.since_ns for _, finding in seen}) == len(seen)


def test_a_stop_that_has_passed_before_opens_nothing_until_it_has_lasted_for_longer_than_those() -> None:
    """Each stop of who is stopped again and again was an incident of its own, with a look at all ranks: one in 2 s."""

    def edit(second: float, rank: RankSample) -> RankSample:
        if rank.rank != 1 or not (second in (12, 16, 20) or second >= 24):
            return rank
        return held(rank, min(second, 24))

    seen = found(run(job_run(four(), 40, edit=edit)), "stopped")
    assert [second for second, finding in seen if not finding.may_pass and finding.stage == "suspect"] == [12]
    assert [second for second, finding in seen if finding.may_pass] == [16, 20, 24, 25, 26]
    assert [second for second, finding in seen if finding.stage == "confirmed"] == list(range(27, 41))


def test_a_debugged_rank_is_shown_and_no_symptom() -> None:
    for state, tracer in (("t", 77), ("T", 77)):
        detected = run(stopped_job(state, tracer))
        assert not found(detected, "stopped")
        at_25 = next(one for second, one in detected if second == 25)
        assert at_25.ranks[1].state == "stopped"
        assert at_25.jobs[0].debugged == (1,)


def test_a_debugger_that_has_just_gone_leaves_the_rank_a_moment() -> None:
    """What was seen while it was traced is told to nobody in the tick between its end and the first step."""

    facts = {second: detected.jobs[0].debugged for second, detected in run(stopped_job("t", 77))}
    assert facts[19] == ()
    assert facts[25] == facts[32] == (1,)
    assert facts[35] == ()


def test_a_stopped_rank_that_cannot_be_seen_for_a_moment_is_stopped_still() -> None:
    """And one that was never seen to be stopped is not, whatever hides it."""

    def edit(second: float, rank: RankSample) -> RankSample:
        stopped = held(rank, 20) if rank.rank == 1 and 20 <= second <= 25 else rank
        if rank.rank in (1, 2) and second in (22, 23):
            return msgspec.structs.replace(stopped, process=Unavailable("no answer", START_NS))
        return stopped

    findings = found(run(job_run(four(), 27, edit=edit, first_second=18)), "stopped")
    assert [(second, finding.ranks) for second, finding in findings] == [(second, (1,)) for second in range(20, 26)]
    assert {finding.since_ns for _, finding in findings} == {START_NS + 20 * SECOND_NS}


def test_it_is_confirmed_in_the_look_that_is_made_for_it() -> None:
    """The loop looks when the finding says that it is due."""
    stopped = RankHistory(sample(1, None, state="T"), START_NS)
    detector = StoppedDetector()
    state, (suspect,) = detector.step(detector.start(), NodeHistory(snapshot(5, []), (stopped,)))
    assert suspect.due_ns is not None
    due = (suspect.due_ns - START_NS) / SECOND_NS
    _, (finding,) = detector.step(state, NodeHistory(snapshot(due, []), (stopped,)))
    assert (suspect.stage, finding.stage, finding.limit_seconds) == ("suspect", "confirmed", 0.0)
