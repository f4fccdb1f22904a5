"""Incidents that the last daemon left."""

from stallwatch.incidents.engine import adopt
from stallwatch.incidents.messages import (
    Judge,
    StartCapture,
)
from tests.unit.incidents.stories import JOB, SECOND, START, Story, facts, of, report, stall


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
    after.at(129, stall("confirmed"))  # the look before it is not done in time
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
