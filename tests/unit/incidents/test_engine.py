import re

import pytest

from stallwatch.config import Config
from stallwatch.config_sections import IncidentSection, TellSection
from stallwatch.incidents.engine import Now
from stallwatch.incidents.messages import (
    CancelCapture,
    Captured,
    Discard,
    Judge,
    Judged,
    Save,
    StartCapture,
)
from stallwatch.model.snapshot import JobKey
from tests.unit.incidents.stories import JOB, SECOND, START, Story, facts, finding, of, report, stall


def test_a_suspicion_starts_a_first_look_and_tells_nobody() -> None:
    story = Story()
    actions = story.at(6, stall())
    assert [(a.look, a.incident.incident_id) for a in of(actions, StartCapture)] == [(1, story.incident.incident_id)]
    assert of(actions, Save)
    assert (story.incident.state, story.incident.severity) == ("suspect", "none")
    assert not of(story.looked(), Judge), "one look makes no verdict of a stall"


def test_an_incident_says_when_its_job_was_started_since_the_next_one_has_its_name() -> None:
    story, began = Story(), 400 * SECOND
    at_ns, wall_ns = START + 6 * SECOND, story.wall_ns(6)
    for boot_ns, told in ((500 * SECOND, wall_ns - 100 * SECOND), (0, None)):
        now = Now(at_ns, wall_ns, "node0", (stall(),), (facts(began_ns=began),), boot_ns)
        lives, _ = story.engine.advance(story.lives, (), now)
        assert lives.active[0].incident.job_began_wall_ns == told


def test_confirmation_takes_the_second_look_and_judges_when_it_is_complete() -> None:
    story = Story()
    story.at(6, stall())
    story.looked()
    assert [a.look for a in of(story.at(9, stall("confirmed")), StartCapture)] == [2]
    assert [a.look for a in of(story.looked(complete=True, done=False), Judge)] == [2]
    story.judged(report("not_entered"))
    assert story.incident.state == "open"
    assert story.severity == "warning"
    assert story.incident.report is not None
    assert story.incident.report.incident_id == story.incident.incident_id


def test_a_first_look_that_still_runs_is_given_up_for_the_second() -> None:
    story = Story()
    story.at(6, stall())
    actions = story.at(9, stall("confirmed"))
    kinds = [type(a) for a in actions if isinstance(a, CancelCapture | StartCapture)]
    assert kinds == [CancelCapture, StartCapture]
    first = Captured(story.incident.incident_id, 1, complete=True, done=True)
    assert not of(story.hear(first), Judge), "news of the look that was given up is not the second look's"


def test_more_evidence_after_an_early_undecided_verdict_is_judged_again() -> None:
    story = Story()
    story.at(6, stall())
    story.looked()
    story.at(9, stall("confirmed"))
    story.looked(complete=True, done=False)
    story.judged(report("undecided", ()))
    assert of(story.looked(), Judge)


def test_a_decided_verdict_is_not_judged_again_by_details() -> None:
    story = Story()
    story.at(6, stall())
    story.looked()
    story.at(9, stall("confirmed"))
    story.looked(complete=True, done=False)
    story.judged(report("not_entered"))
    assert not of(story.looked(), Judge)


@pytest.mark.parametrize(
    ("detector", "cause", "after"),
    [("exit", "rank_exited", 0.0), ("stopped", "process_stopped", TellSection().stopped_seconds)],
)
def test_what_cannot_resolve_itself_is_judged_by_one_look_and_told_as_critical(
    detector: str, cause: str, after: float
) -> None:
    story = Story()
    for second in (1, 1.25):
        story.at(second, finding(detector, resolvable=False))
    assert of(story.looked(), Judge)
    story.judged(report(cause))
    assert story.severity == ("none" if after else "critical")
    story.stands(1.25 + after)
    assert story.severity == "critical"


def test_a_death_during_a_suspicion_is_looked_at_anew() -> None:
    story = Story()
    story.at(6, stall())
    story.looked()
    death = finding("exit", resolvable=False)
    assert not of(story.at(7, stall(), death), StartCapture), "the ends of others may follow"
    assert [a.look for a in of(story.at(7.25, stall(), death), StartCapture)] == [2]
    assert of(story.looked(), Judge)


def test_a_death_and_the_stall_that_follows_are_one_incident() -> None:
    story = Story()
    death = finding("exit", resolvable=False)
    story.at(1, death)
    story.looked()
    story.judged(report("rank_exited"))
    story.at(6, death, stall())
    assert len(story.lives.active) == 1
    assert {f.detector for f in story.incident.findings} == {"exit", "stall"}


def test_a_warning_becomes_critical_after_a_minute_and_a_fresh_look() -> None:
    story = Story()
    story.hang("not_entered")
    told_at = story.second
    looks = story.life.looks
    story.stands(told_at + 58)
    assert story.severity == "warning"
    assert story.life.looks > looks
    story.stands(told_at + 62)
    assert story.severity == "critical"


def test_a_new_culprit_begins_the_minute_anew() -> None:
    story = Story()
    story.hang("not_entered")
    story.stands(60)
    story.hear(Judged(story.incident.incident_id, story.life.looks, report("not_entered", (1,))))
    story.stands(80)
    assert story.severity == "warning"


def test_undecided_is_looked_at_again_less_and_less_often() -> None:
    story = Story()
    story.hang("undecided", culprits=())
    before = story.life.looks
    story.stands(10 + 15 + 30 + 60 + 20)
    assert 3 <= story.life.looks - before <= 4
    assert story.severity == "none"


def test_looks_are_bounded() -> None:
    story = Story(Config(incidents=IncidentSection(maximum_looks=4)))
    story.hang("undecided", culprits=())
    story.stands(2000)
    assert story.life.looks == 4


def test_what_is_told_hours_later_is_looked_at_before_whatever_looks_there_were() -> None:
    story = Story(Config(incidents=IncidentSection(maximum_looks=4)))
    story.hang("undecided", culprits=(), deadline=5000)
    story.jobs = (facts(begun=False),)
    at_ns = START + int((6 + 0.8 * 4994) * SECOND)
    story.stands(3900)
    assert story.life.looks == 4
    story.stands(4010)
    assert story.severity == "warning"
    assert story.life.looks == 5
    assert 0 < at_ns - story.life.look_ns <= 20 * SECOND
    story.stands(4900)
    assert story.life.looks == 5


@pytest.mark.parametrize("deadline", [None, 43_200])
def test_looks_are_bounded_where_the_one_before_the_telling_is_planned_while_another_is_judged(
    deadline: float | None,
) -> None:
    """Of a start with a time-out of hours there were 116 looks, each of which pauses the ranks."""
    story = Story()
    story.jobs = (facts(begun=False),)
    story.hang("undecided", culprits=(), deadline=deadline)
    story.stands(8000)
    assert 10 <= story.life.looks <= Config().incidents.maximum_looks + 1


def test_a_judgement_that_failed_is_tried_again_later() -> None:
    story = Story()
    story.at(6, stall())
    story.looked()
    story.at(9, stall("confirmed"))
    story.looked()
    story.judged(None, "no verdict within 60 s")
    assert story.incident.verdict is None
    assert "no verdict within 60 s" in story.incident.events[-1].what
    story.stands(30)
    assert story.life.looks == 3


def test_a_job_that_moves_before_anybody_was_told_leaves_no_trace() -> None:
    story = Story()
    story.at(6, stall())
    actions = story.at(8, jobs=[facts(moved=True)])
    assert of(actions, Discard)
    assert of(actions, CancelCapture)
    assert not story.lives.active
    assert not story.lives.past
    assert story.lives.dismissed_total == 1


def test_a_wait_that_was_judged_and_ends_leaves_no_trace() -> None:
    story = Story()
    story.hang("waiting")
    assert of(story.at(40, jobs=[facts(moved=True)]), Discard)


def test_a_told_incident_is_resolved_when_the_job_moves_again() -> None:
    story = Story()
    story.hang("not_entered")
    story.at(40, jobs=[facts(moved=True)])
    (past,) = story.lives.past
    assert past.state == "resolved"
    assert "moves again" in past.resolution
    assert past.severity == "warning"
    assert past.resolved_wall_ns is not None


@pytest.mark.parametrize(("at", "said"), [(40, r"after \d+ s"), (400, r"after [67] min"), (20_000, r"after 5\.\d h")])
def test_how_long_it_stood_is_said_in_a_unit_that_people_read(at: float, said: str) -> None:
    story = Story()
    story.hang("not_entered")
    story.at(at, jobs=[facts(moved=True)])
    assert re.search(f"{said}$", story.lives.past[0].resolution)


def test_a_second_stall_is_a_new_incident() -> None:
    story = Story()
    story.hang("not_entered")
    first = story.incident.incident_id
    story.at(40, jobs=[facts(moved=True)])
    story.at(60, stall(since=54), jobs=[facts()])
    assert story.incident.incident_id != first
    assert story.incident.incident_id.rpartition("-")[0] == first.rpartition("-")[0]


def test_a_restart_resolves_and_begins_anew() -> None:
    story = Story()
    story.hang("not_entered")
    reborn = JobKey(JOB.training_job, "127.0.0.1:29500/4/1")
    story.at(40, stall(since=34, job=reborn), jobs=[facts(reborn)])
    assert story.lives.past[0].resolution == "the job was restarted"
    assert story.incident.job == reborn
    assert story.incident.incident_id.endswith("-1")


def test_one_tick_without_the_finding_ends_nothing() -> None:
    story = Story()
    story.hang("not_entered")
    first = story.incident.incident_id
    story.at(20, jobs=[facts()])
    story.at(21, stall("confirmed"))
    assert story.incident.incident_id == first
    story.at(22)
    story.at(23)
    story.at(24)
    assert story.lives.past[0].resolution == "the symptom is gone"


def test_the_end_of_a_job_waits_for_the_verdict_on_what_ended_it() -> None:
    story = Story()
    death = finding("exit", resolvable=False)
    story.at(1, death)
    story.at(2, death, jobs=[facts(alive=())])
    assert story.lives.active
    story.looked()
    story.judged(report("rank_exited"))
    assert (story.incident.state, story.severity) == ("open", "critical"), "outputs see it open before it is resolved"
    story.at(3, death)
    (past,) = story.lives.past
    assert (past.severity, past.resolution) == ("critical", "the job ended")
    assert not story.at(4, death), "the same death opens no second incident"
    assert not story.lives.active


def test_the_end_of_a_job_does_not_wait_for_ever() -> None:
    story = Story()
    death = finding("exit", resolvable=False)
    story.at(1, death)
    story.at(100, death, jobs=[facts(alive=())])
    assert not story.lives.active


def test_what_was_told_is_not_unsaid_when_the_job_is_torn_down() -> None:
    story = Story()
    story.hang("not_entered")
    story.judged(report("undecided", ()))
    assert story.incident.verdict is not None
    assert story.incident.verdict.cause == "not_entered"
    assert story.severity == "warning"
