"""What samples of a moving job showed: an incident that begins with its verdict, and wakes nobody."""

from msgspec.structs import replace

from stallwatch.incidents.engine import adopt
from stallwatch.incidents.messages import Judge, StartCapture
from stallwatch.model.verdict import Verdict
from tests.unit.incidents.stories import JOB, START, Story, facts, finding, stall

PARTED = Verdict("collective_mismatch", (2,), "likely", "Rank 2 called something else.")
DRIFT = replace(finding("drift"), verdict=PARTED)
MOVES = (facts(moved=True),)


def _told(until: float = 200) -> Story:
    story = Story()
    second = 1.0
    while second < until:
        actions = story.at(second, DRIFT, jobs=MOVES)
        if any(isinstance(action, StartCapture) for action in actions):
            story.looked()
        assert not any(isinstance(action, Judge) for action in actions)
        second += 1
    return story


def test_it_is_open_with_its_verdict_from_the_first_tick_and_the_ranks_are_looked_at_once() -> None:
    story = Story()
    actions = story.at(1, DRIFT, jobs=MOVES)
    assert (story.incident.state, story.incident.verdict) == ("open", PARTED)
    assert story.incident.report is not None
    assert story.incident.report.incident_id == story.incident.incident_id
    assert sum(isinstance(action, StartCapture) for action in actions) == 1


def test_it_is_a_warning_and_never_pages() -> None:
    story = _told()
    assert story.severity == "warning"
    assert story.life.looks == 1


def test_it_lasts_until_the_job_ends() -> None:
    story = _told()
    story.at(300, jobs=MOVES)
    assert story.incident.state == "open"
    story.at(301, jobs=(facts(alive=()),))
    story.at(303, jobs=(facts(alive=()),))
    assert story.lives.active == ()
    assert [past.resolution for past in story.lives.past] == ["the job ended"]


def test_a_hang_that_follows_is_an_incident_of_its_own() -> None:
    story = _told()
    story.at(300, DRIFT, stall(), jobs=(facts(),))
    assert sorted(life.family for life in story.lives.active) == ["drift", "hang"]


def test_the_next_daemon_keeps_it_until_the_job_ends() -> None:
    told = replace(_told().incident, findings=(DRIFT,))
    lives = adopt([(told, 1)], [(JOB, 1)], [], START)
    story = Story(lives=lives)
    story.at(100, jobs=MOVES)
    story.at(200, jobs=MOVES)
    assert story.severity == "warning"
    assert story.life.family == "drift"
