"""The mechanism that the command, the tests and the benches replay by."""

import pytest

from stallwatch.config import Config
from stallwatch.detectors.detection import Detected, Detection, DetectionState
from stallwatch.detectors.history import NodeHistory
from stallwatch.detectors.stopped import StoppedDetector, StoppedState
from stallwatch.incidents.messages import Captured, Judged
from stallwatch.loop.stage_guard import StageGuard
from stallwatch.model.finding import Finding
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import JobKey, NodeSnapshot
from stallwatch.replay.playing import PlayedMoment, detect, play
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import JOB, START_NS
from tests.builders.running_job import four, job_run
from tests.unit.incidents.stories import report


class SaysAfter:
    """A look takes so long, and so does a judgement; 0: it never comes back."""

    def __init__(self, seconds: float) -> None:
        self.ns = int(seconds * SECOND_NS)

    def captured(self, incident: Incident, look: int, at_ns: int) -> tuple[int, Captured] | None:
        done = Captured(incident.incident_id, look, complete=True, done=True)
        return (at_ns + self.ns, done) if self.ns else None

    def judged(self, incident: Incident, look: int, at_ns: int) -> tuple[int, Judged] | None:
        return at_ns + self.ns, Judged(incident.incident_id, look, report("not_entered"))


def hang(seconds: float = 40) -> list[NodeSnapshot]:
    return job_run(four(stuck_at=20.3), seconds)


def between(moments: list[PlayedMoment]) -> list[float]:
    return [(moment.at_ns - START_NS) / SECOND_NS for moment in moments if moment.snapshot is None]


def test_news_between_two_ticks_is_heard_at_its_own_time() -> None:
    moments = list(play(Config(), hang(), SaysAfter(0.25)))
    assert 26.25 in between(moments)
    (incident,) = moments[-1].incidents
    assert incident.severity == "warning"
    assert [moment.at_ns for moment in moments] == sorted(moment.at_ns for moment in moments)


def test_what_is_under_way_when_the_recording_ends_comes_to_its_end() -> None:
    moments = list(play(Config(), hang(28), SaysAfter(5)))
    assert max(between(moments)) > 28
    assert moments[-1].incidents[0].verdict is not None


def test_a_look_that_never_comes_back_is_no_verdict() -> None:
    moments = list(play(Config(), hang(), SaysAfter(0)))
    assert all(incident.severity == "none" for moment in moments for incident in moment.incidents)
    assert not between(moments)


def test_incidents_of_other_jobs_are_left_out() -> None:
    assert not [m for m in play(Config(), hang(), SaysAfter(1), job=JobKey("other", "x")) if m.incidents]
    assert [m for m in play(Config(), hang(), SaysAfter(1), job=JOB) if m.incidents]


def test_a_step_that_raises_costs_its_own_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Detection.step

    def step(self: Detection, state: DetectionState, shot: NodeSnapshot) -> tuple[DetectionState, Detected]:
        if shot.tick == 7:
            raise RuntimeError("a bug")
        return real(self, state, shot)

    monkeypatch.setattr(Detection, "step", step)
    guard = StageGuard()
    assert len(list(detect(Config(), hang(), guard))) == len(hang())
    assert [(one.stage, one.errors_total) for one in guard.errors()] == [("detectors", 1)]
    with pytest.raises(RuntimeError):
        list(detect(Config(), hang()))


def test_a_detector_that_raises_is_counted_by_a_guard_and_raises_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stories of what is found would not notice one that fails in all the ticks in which nothing is to be found."""
    real = StoppedDetector.step

    def step(self: StoppedDetector, state: StoppedState, seen: NodeHistory) -> tuple[StoppedState, tuple[Finding, ...]]:
        if seen.snapshot.tick == 7:
            raise IndexError("nobody has ended")
        return real(self, state, seen)

    monkeypatch.setattr(StoppedDetector, "step", step)
    guard = StageGuard()
    assert len(list(detect(Config(), hang(), guard))) == len(hang())
    assert [(one.stage, one.errors_total) for one in guard.errors()] == [("detectors", 1)]
    with pytest.raises(RuntimeError, match="stopped: IndexError: nobody has ended"):
        list(detect(Config(), hang()))
