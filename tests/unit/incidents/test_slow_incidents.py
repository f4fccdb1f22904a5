"""Slow ranks: their own incidents, looks and verdicts."""

import msgspec
import pytest

from stallwatch.incidents.messages import (
    CancelCapture,
    FleetSaid,
    Judge,
    StartCapture,
)
from stallwatch.model.incident import Together
from stallwatch.model.verdict import Fact
from stallwatch.progress.job_progress import BY_STEPS
from tests.unit.incidents.stories import Story, facts, finding, of, report, slow_report, stall


def test_slowness_is_its_own_incident_beside_a_hang() -> None:
    story = Story()
    story.at(6, stall(), finding("slow"))
    assert sorted(life.family for life in story.lives.active) == ["hang", "slow"]


def test_a_slow_rank_is_so_since_it_began_however_late_it_was_seen() -> None:
    """A tenth of a step takes minutes to be seen, and it was said to be so since then."""
    story = Story()
    story.at(200, finding("slow", "suspect", since=20))
    assert story.incident.opened_wall_ns == Story.wall_ns(20)
    hang = Story()
    hang.at(200, stall(since=190))
    assert hang.incident.opened_wall_ns == Story.wall_ns(200)


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


@pytest.mark.parametrize(("lately", "severity"), [(True, "warning"), (False, "none")])
def test_what_goes_on_since_a_look_adds_to_what_that_saw(lately: bool, severity: str) -> None:
    """A look that began nine seconds after the onset saw seven of it: told after 23 s, when statistics were sure."""
    story = Story()
    slow = msgspec.structs.replace(finding("slow", "suspect"), lately=lately)
    story.at(20, slow, jobs=[facts(moved=True)])
    story.looked()
    story.judged(slow_report((0, 1, 2, 3), 0.06, 7.0))
    story.at(22, slow)
    assert story.severity == "none", "it saw no more"
    story.at(25, slow)
    assert story.severity == severity


def becomes_sure(together: Together | None = None) -> Story:
    """A slow rank of which a look found the line, and called the job healthy; then steps were sure."""
    story = Story()
    slow = finding("slow", "suspect")
    story.at(20, slow, jobs=[facts(moved=True)])
    story.looked()
    healthy, by_steps = report("healthy"), slow_report(slow.ranks, 0.06, 20.0).verdicts[0]
    by_steps = msgspec.structs.replace(by_steps, because=(Fact("many steps", BY_STEPS),))
    story.judged(msgspec.structs.replace(healthy, verdicts=(*healthy.verdicts, by_steps)))
    if together is not None:
        story.hear(FleetSaid(story.incident.incident_id, together))
    story.at(28, slow)
    assert (story.severity, story.incident.state) == ("none", "suspect")
    story.at(29, msgspec.structs.replace(slow, stage="confirmed", slowness=by_steps.slowness))
    return story


def test_of_a_job_on_several_nodes_what_they_say_together_stands() -> None:
    assert becomes_sure(Together(True, "", "train-1", 2)).incident.state == "suspect"


def test_what_a_look_found_of_ranks_that_become_sure_is_told_without_another_look() -> None:
    """The second took ten seconds more."""
    story = becomes_sure()
    assert (story.severity, story.incident.state) == ("warning", "open")
    assert story.incident.verdict is not None
    assert (story.incident.verdict.cause, story.life.judged_look) == ("slow_rank", 1)


def test_a_stop_that_has_passed_before_opens_no_incident_and_is_of_one_that_is_open() -> None:
    story = Story()
    again = msgspec.structs.replace(finding("stopped", "suspect", resolvable=False), may_pass=True)
    story.at(6, again)
    assert not story.lives.active
    story.at(8, again, stall())
    assert again in story.incident.findings
    story = Story()
    story.at(6, msgspec.structs.replace(again, may_pass=False))
    assert story.incident.findings


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


@pytest.mark.parametrize(("stage", "severity"), [("suspect", "none"), ("confirmed", "warning")])
def test_what_may_be_a_warm_up_is_told_once_it_has_outlasted_one(stage: str, severity: str) -> None:
    """Its arrivals show a slow rank; since the first steps, in which one rank compiles for longer than the others."""
    story, slow = Story(), msgspec.structs.replace(finding("slow", stage), from_start=True)
    story.at(20, slow, jobs=[facts(moved=True)])
    story.looked()
    story.judged(slow_report((0, 1, 2, 3), 0.06, 10.0))
    story.at(22, slow)
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
    assert not of(story.at(38, finding("slow")), StartCapture)  # on a busy node it lasts
    done = story.looked()
    assert of(done, Judge)
    assert not of(done, StartCapture)
    story.judged(slow_report((0, 1, 2, 3), 0.06, 6.0))
    assert of(story.at(43, finding("slow")), StartCapture)


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
