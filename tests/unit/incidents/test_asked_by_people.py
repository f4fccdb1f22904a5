"""What people ask for: looks, mutes, acknowledgements; each user bounded by himself."""

from msgspec.structs import replace

from stallwatch.incidents.messages import (
    Acknowledged,
    CaptureWanted,
    MuteWanted,
    Save,
    StartCapture,
)
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import JobKey
from tests.unit.incidents.stories import JOB, SECOND, START, Story, facts, of, report, stall


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


def test_who_is_on_it_and_who_is_muted_is_escalated_to_nobody_and_the_history_says_so() -> None:
    for event, why in (
        (Acknowledged("", "anna"), "anna is on it"),
        (MuteWanted(JOB.training_job, START + 900 * SECOND, JOB.owner), "the job is muted"),
    ):
        story = Story()
        story.hang("not_entered")
        assert story.severity == "warning"
        named = replace(event, incident_id=story.incident.incident_id) if isinstance(event, Acknowledged) else event
        story.hear(named)
        story.stands(90)
        assert story.incident.severity == "critical"
        said = [one.what for one in story.incident.events]
        assert not any("escalated" in what for what in said)
        assert said.count(f"nobody is told that it is critical now: {why}") == 1
