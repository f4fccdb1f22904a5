import msgspec
import pytest
from msgspec.structs import replace

from stallwatch.config import Config
from stallwatch.config_sections import IncidentSection
from stallwatch.incidents.engine import adopt
from stallwatch.incidents.messages import (
    Acknowledged,
    CancelCapture,
    Captured,
    CaptureWanted,
    Discard,
    Judge,
    Judged,
    MuteWanted,
    Save,
    StartCapture,
)
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import JobKey
from tests.unit.incidents.stories import JOB, SECOND, START, Story, facts, finding, of, report, slow_report, stall


def test_a_suspicion_starts_a_first_look_and_tells_nobody() -> None:
    story = Story()
    actions = story.at(6, stall())
    assert [(a.look, a.incident.incident_id) for a in of(actions, StartCapture)] == [(1, story.incident.incident_id)]
    assert of(actions, Save)
    assert (story.incident.state, story.incident.severity) == ("suspect", "none")
    assert not of(story.looked(), Judge), "one look makes no verdict of a stall"


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


@pytest.mark.parametrize(("detector", "cause"), [("exit", "rank_exited"), ("stopped", "process_stopped")])
def test_what_cannot_resolve_itself_is_judged_by_one_look_and_told_as_critical(detector: str, cause: str) -> None:
    story = Story()
    story.at(1, finding(detector, resolvable=False))
    assert of(story.looked(), Judge)
    story.judged(report(cause))
    assert story.severity == "critical"


def test_a_death_during_a_suspicion_is_looked_at_anew() -> None:
    story = Story()
    story.at(6, stall())
    story.looked()
    actions = story.at(7, stall(), finding("exit", resolvable=False))
    assert [a.look for a in of(actions, StartCapture)] == [2]
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


def test_slowness_is_its_own_incident_beside_a_hang() -> None:
    story = Story()
    story.at(6, stall(), finding("slow"))
    assert sorted(life.family for life in story.lives.active) == ["hang", "slow"]


@pytest.mark.parametrize(
    ("cause", "stage", "severity"),
    [
        ("slow_rank", "confirmed", "warning"),
        ("slow_rank", "suspect", "none"),
        ("healthy", "confirmed", "warning"),
        ("healthy", "suspect", "none"),
        ("not_entered", "confirmed", "none"),
    ],
)
def test_what_many_steps_show_is_told_and_one_look_does_not_overrule_it(cause: str, stage: str, severity: str) -> None:
    story = Story()
    story.at(20, finding("slow", "suspect"), jobs=[facts(moved=True)])
    story.looked()
    story.at(23, finding("slow", stage))
    story.looked()
    story.judged(report(cause, (0, 1, 2, 3)))
    story.at(24, finding("slow", stage))
    assert story.severity == severity


@pytest.mark.parametrize(
    ("culprits", "seconds", "cost", "severity"),
    [
        ((0, 1, 2, 3), 10.0, 0.06, "warning"),
        ((2,), 10.0, 0.06, "none"),
        ((0, 1, 2, 3), 5.0, 0.06, "none"),
        ((0, 1, 2, 3), 10.0, 0.01, "none"),
    ],
    ids=["the same", "another rank", "a burst", "it costs little"],
)
def test_a_suspected_slow_rank_is_told_when_a_look_at_its_arrivals_shows_it_for_long_enough(
    culprits: tuple[int, ...], seconds: float, cost: float, severity: str
) -> None:
    story = Story()
    story.at(20, finding("slow", "suspect"), jobs=[facts(moved=True)])
    story.looked()
    story.judged(slow_report(culprits, cost, seconds))
    story.at(22, finding("slow", "suspect"))
    assert story.severity == severity


def test_what_the_program_gives_a_rank_by_design_is_shown_and_nobody_is_told() -> None:
    story, why = Story(), "rank 0 alone is at train.py:9, and so since its first steps"
    slow = msgspec.structs.replace(finding("slow", "confirmed"), from_start=True)
    story.at(20, slow, jobs=[facts(moved=True)])
    story.looked()
    by_design = slow_report((0, 1, 2, 3), 0.06, 10.0)
    verdict = msgspec.structs.replace(by_design.verdicts[0], by_design=why)
    story.judged(msgspec.structs.replace(by_design, verdicts=(verdict,)))
    story.at(21, slow)
    assert (story.incident.severity, story.incident.tell_reason) == ("none", why)


def test_a_slow_rank_is_not_taken_back_by_a_look_while_its_symptom_lasts() -> None:
    story = Story()
    story.at(20, finding("slow", "suspect"), jobs=[facts(moved=True)])
    story.looked()
    story.judged(slow_report((0, 1, 2, 3), 0.06, 10.0))
    for second in range(21, 90):
        story.at(second, finding("slow", "suspect"))
        if story.life.capturing:
            story.looked()
        if story.life.judging:
            story.judged(report("healthy", ()))
    assert story.incident.verdict is not None
    assert (story.incident.verdict.cause, story.severity) == ("slow_rank", "warning")


def test_a_look_at_a_slow_rank_is_judged_when_it_has_seen_what_the_rank_does() -> None:
    story = Story()
    story.at(20, finding("slow", "suspect"), jobs=[facts(moved=True)])
    assert not of(story.looked(done=False), Judge)
    assert of(story.looked(), Judge)


def test_a_look_that_sees_some_seconds_is_not_cut_short_by_the_next_one() -> None:
    story = Story()
    story.at(20, finding("slow", "suspect"), jobs=[facts(moved=True)])
    story.looked(done=False)
    assert not of(story.at(25, finding("slow")), StartCapture)  # confirmed: a second look is due
    done = story.looked()
    assert of(done, Judge)
    assert not of(done, StartCapture)
    story.judged(slow_report((0, 1, 2, 3), 0.06, 6.0))
    assert of(story.at(30, finding("slow")), StartCapture)


def test_a_look_at_a_slow_rank_that_does_not_end_gives_way_to_the_next() -> None:
    story = Story()
    story.at(20, finding("slow", "suspect"), jobs=[facts(moved=True)])
    story.looked(done=False)
    story.at(25, finding("slow"))
    late = story.at(60, finding("slow"))
    assert of(late, CancelCapture)
    assert of(late, StartCapture)


def test_slowness_that_came_to_nothing_is_not_looked_at_again_at_once() -> None:
    story = Story()
    slow, moving = finding("slow", "suspect"), [facts(moved=True)]
    story.at(20, slow, jobs=moving)
    story.at(22)
    assert not story.at(30, slow)
    assert story.at(90, slow)


def test_a_slow_rank_that_is_confirmed_waits_for_no_false_alarm_before_it() -> None:
    story = Story()
    story.at(20, finding("slow", "suspect"), jobs=[facts(moved=True)])
    story.at(22)
    assert not story.at(30, finding("slow", "suspect"))
    assert of(story.at(31, finding("slow", "confirmed")), StartCapture)


def test_a_capture_on_request_takes_two_looks_and_is_kept() -> None:
    story = Story()
    story.at(1, jobs=[facts(moved=True)])
    assert of(story.hear(CaptureWanted(JOB)), StartCapture)
    story.looked()
    story.at(5)
    story.looked()
    story.judged(report("healthy", ()))
    (past,) = story.lives.past
    assert (past.resolution, past.severity) == ("captured on request", "none")


def test_a_capture_on_request_during_an_incident_is_one_more_look_at_it() -> None:
    story = Story()
    story.hang("not_entered")
    looks = story.life.looks
    assert [a.look for a in of(story.hear(CaptureWanted(JOB)), StartCapture)] == [looks + 1]
    assert len(story.lives.active) == 1


def test_a_mute_keeps_people_quiet_until_it_ends() -> None:
    story = Story()
    story.hear(MuteWanted(JOB.training_job, START + 100 * SECOND))
    story.hang("collective_mismatch")
    assert story.severity == "none"
    assert story.incident.muted is True
    story.stands(102)
    assert (story.incident.muted, story.severity) == (False, "critical")


def test_a_mute_is_of_one_users_job_and_no_other_of_its_name() -> None:
    story, ours = Story(), replace(JOB, owner="anna")
    story.hear(MuteWanted(JOB.training_job, START + 500 * SECOND, "ben"))
    story.jobs = (facts(ours),)
    story.at(6, stall(job=ours))
    story.looked()
    story.at(9, stall("confirmed", job=ours))
    story.looked()
    story.judged(report("collective_mismatch"))
    assert (story.incident.muted, story.severity) == (False, "critical")
    story.hear(MuteWanted(JOB.training_job, START + 500 * SECOND, "anna"))
    assert story.incident.muted
    assert len(story.lives.mutes) == 2


def test_a_users_many_mutes_end_none_of_anothers() -> None:
    story, until_ns = Story(), START + 500 * SECOND
    story.hear(MuteWanted("annas", until_ns, "anna"))
    for number in range(3000):
        story.hear(MuteWanted(f"job-{number}", until_ns, "ben"))
    names = [mute.name for mute in story.lives.mutes]
    assert names[0] == ("anna", "annas")
    assert len(names) < 1_100
    assert names[-1] == ("ben", "job-2999")


def test_one_users_incidents_are_bounded_and_cost_no_other_user_his_or_his_past() -> None:
    story, annas = Story(), replace(JOB, owner="anna")
    bens = [replace(JOB, training_job=f"job-{number}", owner="ben") for number in range(100)]
    story.lives = replace(story.lives, past=tuple(replace(resolved_of(annas), incident_id=f"a-{n}") for n in range(3)))
    story.at(6, *[stall(job=job) for job in bens], stall(job=annas), jobs=[facts(job) for job in (*bens, annas)])
    owners = [life.incident.job.owner for life in story.lives.active]
    assert (owners.count("ben"), owners.count("anna")) == (32, 1)
    for life in story.lives.active:
        told = replace(life.incident, severity="critical", state="open", report=report("rank_exited"))
        story.lives = replace(
            story.lives, active=tuple(replace(x, incident=told) if x is life else x for x in story.lives.active)
        )
    story.at(20, jobs=[facts(job, alive=()) for job in bens])
    past = [incident.job.owner for incident in story.lives.past]
    assert (past.count("ben"), past.count("anna")) == (20, 4)


def resolved_of(job: JobKey) -> Incident:
    story = Story()
    story.hang("not_entered")
    return replace(story.incident, job=job, state="resolved")


def test_another_users_job_of_the_same_name_is_no_restart_of_a_job_that_ended() -> None:
    story, ours, theirs = Story(), replace(JOB, owner="anna"), replace(JOB, owner="ben", epoch="another")
    story.jobs = (facts(ours), facts(theirs))
    story.at(6, stall("confirmed", job=ours))
    story.looked()
    story.judged(report("not_entered"))
    story.at(20, jobs=[facts(ours, alive=()), facts(theirs)])
    assert "restarted" not in story.lives.past[0].resolution


def test_a_mute_after_the_telling_shows_and_takes_nothing_back() -> None:
    story = Story()
    story.hang("not_entered")
    story.hear(MuteWanted(JOB.training_job, START + 500 * SECOND))
    assert (story.incident.muted, story.incident.severity) == (True, "warning")


def test_who_is_on_it_stands_on_the_incident_and_is_saved_with_it() -> None:
    story = Story()
    story.hang("not_entered")
    actions = story.hear(Acknowledged(story.incident.incident_id, "anna"))
    assert story.incident.acknowledged_by == "anna"
    assert [event.what for event in story.incident.events][-1] == "acknowledged by anna"
    assert of(actions, Save)[-1].incident.acknowledged_by == "anna"
    assert of(story.hear(Acknowledged(story.incident.incident_id, "anna")), Save) == []
    assert story.hear(Acknowledged("never-1", "anna")) is not None


def test_an_incident_of_the_last_daemon_is_taken_over_as_it_was_told() -> None:
    story = Story()
    story.hang("not_entered")
    told = story.incident
    after = Story(lives=adopt([(told, 2)], [(JOB, 1)], [], START))
    after.at(1)
    after.at(30, stall("confirmed"))
    assert after.incident.incident_id == told.incident_id
    assert after.incident.severity == "warning"
    assert not of(after.actions, Judge), "the verdict stands"


def test_an_incident_of_the_last_daemon_whose_symptom_does_not_return_is_resolved() -> None:
    story = Story()
    story.hang("not_entered")
    for jobs, resolution in (([facts()], "the symptom is gone"), ([], "the job ended")):
        after = Story(lives=adopt([(story.incident, 2)], [(JOB, 1)], [], START))
        after.at(1, jobs=jobs)
        after.at(70)
        after.at(72)
        assert after.lives.past[0].resolution == resolution


def test_a_restart_of_the_daemon_does_not_begin_the_patience_with_a_verdict_anew() -> None:
    story = Story()
    story.hang("not_entered", ends_by_itself="data")
    judged = story.second
    story.stands(judged + 85)
    assert story.severity == "none"
    later = int((story.second + 10) * SECOND)
    after = Story(lives=adopt([(story.incident, 2)], [(JOB, 1)], [], START + later))
    after.at(story.second + 12)
    after.at(118, stall("confirmed"))
    assert after.severity == "none"
    after.at(121, stall("confirmed"))
    assert after.severity == "critical"


def test_what_the_last_daemon_did_not_tell_waits_until_the_symptom_is_seen_again() -> None:
    story = Story()
    story.hang("not_entered", ends_by_itself="data")
    after = Story(lives=adopt([(story.incident, 2)], [(JOB, 1)], [], START + 50 * SECOND))
    after.at(51)
    assert after.severity == "none", "it may have passed while nobody looked"
    assert [action.look for action in of(after.at(130, stall("confirmed")), StartCapture)] == [3]
    assert after.severity == "critical"


def test_an_incident_that_was_taken_over_outlives_a_first_look_that_sees_nothing_yet() -> None:
    story = Story()
    story.hang("not_entered")
    after = Story(lives=adopt([(story.incident, 2)], [(JOB, 1)], [], START))
    after.at(0, jobs=[])
    after.at(1, stall("confirmed"), jobs=[facts()])
    assert after.incident.incident_id == story.incident.incident_id


def test_ordinals_go_on_after_a_restart_of_the_daemon() -> None:
    story = Story(lives=adopt([], [(JOB, 4)], [], START))
    story.at(6, stall())
    assert story.incident.incident_id.endswith("-5")


def test_a_job_called_healthy_that_still_stands_is_looked_at_again_within_seconds_then_ever_later() -> None:
    story = Story()
    story.hang("healthy")
    for looks, seconds in ((3, 3), (4, 6), (5, 12)):
        story.at(story.second + seconds - 1, stall("confirmed"))
        assert story.life.looks == looks - 1
        story.at(story.second + 1, stall("confirmed"))
        assert story.life.looks == looks
        story.looked()
        story.judged(report("healthy"))
