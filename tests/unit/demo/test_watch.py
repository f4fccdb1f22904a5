from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from stallwatch.demo.catalogue import find
from stallwatch.demo.watch import JOB_NAME, Watch
from stallwatch.errors import StallwatchError
from stallwatch.model.incident import Severity
from stallwatch.model.verdict import Cause, Verdict
from stallwatch.outputs.client import DaemonUnreachable
from stallwatch.outputs.documents import EventDocument, IncidentDocument, IncidentList, RankDocument, RankList
from tests.builders.clock import FakeClock

SEED = 5  # draws rank 2 of 4


class FakeJob:
    def __init__(self, log: Path, code: int | None = None) -> None:
        self.log = log
        self.code = code

    def exit_code(self) -> int | None:
        return self.code

    def stop(self) -> None:
        raise AssertionError("ending the job is not the watch's business")


class MonotonicClock(FakeClock):
    """A tenth of a second passes whenever somebody looks."""

    def __init__(self) -> None:
        super().__init__(9_000_000_000, look_takes_ns=100_000_000)

    def wall_ns(self) -> int:
        raise AssertionError("durations come from the monotonic clock")


class FakeDaemon:
    """Answers each look with the next of the given incident lists, the last one for ever; None: does not answer."""

    rank_directory = Path("/nowhere")

    def __init__(self, looks: Sequence[tuple[IncidentDocument, ...] | None], steps: int | None = 7) -> None:
        self._looks = list(looks)
        self._steps = steps
        self._latest: tuple[IncidentDocument, ...] = ()

    @property
    def client(self) -> "FakeDaemon":
        return self

    def check(self) -> None:
        return

    def ranks(self) -> RankList:
        ranks = tuple(rank_document(rank, self._steps) for rank in range(4))
        return RankList(1, "0", "node", "", 1, ranks, ())

    def incidents(self) -> IncidentList:
        look = self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]
        if look is None:
            raise DaemonUnreachable("busy")
        self._latest = look
        return IncidentList(1, "node", look)

    def incident(self, incident_id: str) -> IncidentDocument:
        return next(incident for incident in self._latest if incident.incident_id == incident_id)

    def page_url(self) -> str | None:
        return "http://127.0.0.1:1/?token=t"


def rank_document(rank: int, steps: int | None) -> RankDocument:
    return RankDocument(JOB_NAME, "e", rank, rank, 4, 100 + rank, "stepping", steps, 0.05, 0.0, 0.0, "", 5.0, "", None)


def incident(
    *said: tuple[Cause, tuple[int, ...]], severity: Severity = "none", job: str = JOB_NAME, events: Sequence[str] = ()
) -> IncidentDocument:
    return IncidentDocument(
        schema_version=1,
        tool_version="0",
        incident_id=f"{job}-1",
        training_job=job,
        epoch="e",
        captured_at=None,
        deadline=None,
        evidence_complete=True,
        verdicts=tuple(Verdict(cause=cause, culprits=ranks, confidence="likely", summary="") for cause, ranks in said),
        stacks=None,
        caveats=(),
        state="open",
        severity=severity,
        muted=False,
        node="node",
        opened_at="",
        resolved_at=None,
        resolution="",
        bundle="",
        findings=(),
        events=tuple(EventDocument("", what) for what in events),
    )


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    path = tmp_path / "mark"
    path.write_text("1000000000\n2000000000\n", encoding="ascii")
    return path


def look_at(fault: str, mark: Path, told: list[str]) -> Watch:
    return Watch(find(fault), 4, SEED, mark, told.append, MonotonicClock(), poll_seconds=0.0)


def test_the_first_decided_verdict_counts_and_what_came_before_is_remembered(mark: Path, told: list[str]) -> None:
    looks = [
        (),
        None,
        (incident(),),
        (incident(("undecided", ())),),
        (incident(("not_entered", (2,))),),
        (incident(("not_entered", (3,))),),
    ]
    outcome = look_at("lock", mark, told).run(FakeDaemon(looks), FakeJob(mark))
    assert outcome.agrees
    assert [(said.cause, said.culprits) for said in outcome.said] == [("undecided", ()), ("not_entered", (2,))]


def test_seconds_run_from_the_last_mark(mark: Path, told: list[str]) -> None:
    outcome = look_at("lock", mark, told).run(FakeDaemon([(incident(("not_entered", (2,))),)]), FakeJob(mark))
    assert outcome.seconds_to_verdict is not None
    assert 7.0 < outcome.seconds_to_verdict < 8.0  # between 9 and 10 s on the clock, less the second mark's 2 s


def test_a_wrong_verdict_does_not_agree_even_if_a_right_one_would_follow(mark: Path, told: list[str]) -> None:
    looks = [(incident(("not_entered", (3,))),), (incident(("not_entered", (2,))),)]
    outcome = look_at("lock", mark, told).run(FakeDaemon(looks), FakeJob(mark))
    assert not outcome.agrees


def test_incidents_of_other_jobs_are_not_the_demos(mark: Path, told: list[str]) -> None:
    looks = [(incident(("not_entered", (2,)), job="somebody else's"),)]
    outcome = look_at("lock", mark, told).run(FakeDaemon(looks), FakeJob(mark))
    assert outcome.incident is None
    assert not outcome.agrees


def test_what_was_over_before_anybody_was_told_is_no_answer(mark: Path, told: list[str]) -> None:
    slow_start = msgspec.structs.replace(incident(("not_entered", (0, 1))), incident_id="start", state="resolved")
    looks = [(slow_start,), (slow_start, incident(("not_entered", (2,))))]
    assert look_at("lock", mark, told).run(FakeDaemon(looks), FakeJob(mark)).agrees


def test_events_are_told_once_each(mark: Path, told: list[str]) -> None:
    looks = [
        (incident(events=["suspected"]),),
        (incident(events=["suspected"]),),
        (incident(("not_entered", (2,)), events=["suspected", "verdict"]),),
    ]
    look_at("lock", mark, told).run(FakeDaemon(looks), FakeJob(mark))
    assert [text for text in told if text.startswith("daemon: ") and "rank" not in text] == [
        "daemon: suspected",
        "daemon: verdict",
    ]


def test_a_job_that_ends_before_its_fault_is_an_error_with_its_log(tmp_path: Path, told: list[str]) -> None:
    log = tmp_path / "job.log"
    log.write_text("ModuleNotFoundError: no module named torch\n", encoding="utf-8")
    with pytest.raises(StallwatchError) as error:
        look_at("lock", tmp_path / "no-mark", told).run(FakeDaemon([()], steps=None), FakeJob(log, code=1))
    assert "ModuleNotFoundError" in error.value.help


def test_a_quiet_job_that_nobody_is_told_about_agrees(tmp_path: Path, told: list[str]) -> None:
    looks = [(), (incident(("waiting", (0,))),)]  # seen, judged, and kept to itself
    outcome = look_at("none", tmp_path / "no-mark", told).run(FakeDaemon(looks), FakeJob(tmp_path, code=0))
    assert outcome.agrees
    assert outcome.seconds_to_verdict is None


def test_one_alert_about_a_quiet_job_is_one_too_many(tmp_path: Path, told: list[str]) -> None:
    looks = [(incident(("waiting", (0,)), severity="warning"),)]
    outcome = look_at("none", tmp_path / "no-mark", told).run(FakeDaemon(looks), FakeJob(tmp_path))
    assert not outcome.agrees
