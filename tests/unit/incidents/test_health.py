"""Warnings of their own: what only costs speed or will break later is told without a look at the ranks."""

from stallwatch.incidents.engine import adopt
from stallwatch.incidents.messages import Judge, StartCapture
from tests.unit.incidents.stories import SECOND, START, Story, facts, finding, stall


def test_a_condition_that_lasts_is_a_warning_and_nobody_is_disturbed_for_it() -> None:
    story = Story()
    first = story.at(1, finding("health", "suspect"))
    assert story.incident.severity == "none"
    second = story.at(61, finding("health"))
    assert (story.incident.severity, story.incident.state) == ("warning", "open")
    assert not [action for action in (*first, *second) if isinstance(action, StartCapture | Judge)]


def test_it_is_another_incident_than_a_hang_of_the_same_job() -> None:
    story = Story()
    story.at(1, finding("health"))
    story.at(2, finding("health"), stall())
    assert sorted(len(life.incident.findings) for life in story.lives.active) == [1, 1]
    assert [life.family for life in story.lives.active] == ["health", "hang"]


def test_it_ends_after_a_quiet_minute_and_says_so() -> None:
    story = Story()
    story.at(1, finding("slow_job"))
    story.at(2, jobs=[facts(moved=True)])
    story.at(30, jobs=[facts(moved=True)])
    assert story.lives.active
    story.at(63, jobs=[facts(moved=True)])
    assert [incident.resolution for incident in story.lives.past] == ["what was found is no longer so"]


def test_it_ends_with_its_job_at_once() -> None:
    story = Story()
    story.at(1, finding("health"))
    story.at(2, jobs=[facts(alive=())])
    assert [incident.resolution for incident in story.lives.past] == ["the job ended"]


def test_a_restarted_daemon_goes_on_with_it() -> None:
    story = Story()
    story.at(1, finding("health"))
    lives = adopt([(story.incident, 0)], (), (), START + 100 * SECOND)
    assert lives.active[0].family == "health"
