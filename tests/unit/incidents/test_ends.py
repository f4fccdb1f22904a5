"""The end of every incident: how far it had come, and how its job went on or ended."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

import stallwatch.outputs
from stallwatch.detectors.job_facts import JobFacts
from stallwatch.incidents.delivery_steps import due
from stallwatch.incidents.messages import Captured, Discard, Judge, Judged
from stallwatch.model.finding import Finding
from stallwatch.model.incident import Incident
from stallwatch.model.verdict import Report, WhenOver
from stallwatch.outputs.metrics import render
from stallwatch.outputs.slack_message import slack_message
from tests.unit.incidents.stories import Story, facts, finding, of, report, stall
from tests.unit.outputs.reports import node_report, with_snapshot

PAGE = Path(stallwatch.outputs.__file__).parent / "page"


class Way(NamedTuple):
    """How a job goes on: the facts of it, and the findings that it leaves."""

    facts: dict[str, Any]
    findings: tuple[Finding, ...] = ()
    judged: str = ""  # the cause that a look after it is judged to be


DIED = finding("exit", resolvable=False, since=19)
MOVES = Way({"moved": True})
KILLED = Way({"alive": ()}, (DIED,), "job_ended")  # all alike, from outside
TERMINATED = Way({"alive": (), "ending": True})
FINISHED = Way({"alive": (), "ending": True, "finished": True})
CRASHED = Way({"alive": ()}, (DIED,), "rank_exited")


def suspected(story: Story) -> None:
    """Not for long enough to be sure; the first look has been taken."""
    story.at(6, stall())
    story.looked()


def stood_without_a_verdict(story: Story) -> None:
    suspected(story)
    story.at(9, stall("confirmed"))
    story.looked()
    story.judged(report("undecided", (), "possible"))


def told(story: Story) -> None:
    story.hang("not_entered")
    assert story.severity == "warning"


def found_with_patience(story: Story) -> None:
    """It may end by itself: nobody is told for two minutes."""
    story.hang("not_entered", ends_by_itself="sleep")
    assert story.severity == "none"


def looked_healthy(story: Story) -> None:
    suspected(story)
    story.at(9, stall("confirmed"))
    story.looked()
    story.judged(report("healthy", ()))


def stepping(story: Story) -> None:
    story.at(6)


def goes_on(story: Story, way: Way) -> Incident | None:
    """Let the job go that way for two minutes, answering every look and judgement; return the incident that is left."""
    after: Report | None = report(way.judged, (3,) if way.judged != "job_ended" else ()) if way.judged else None
    jobs: Sequence[JobFacts] = (facts(**way.facts),)
    for second in range(20, 140):
        story.at(second, *way.findings, jobs=jobs)
        if story.lives.active and story.life.capturing:
            story.looked()
        if story.lives.active and story.life.judging:
            story.judged(after or story.incident.report or report("undecided", (), "possible"))
    assert not story.lives.active
    assert len(story.lives.past) <= 1
    return story.lives.past[0] if story.lives.past else None


@pytest.mark.parametrize(
    ("before", "way", "state", "severity"),
    [
        (suspected, MOVES, None, ""),
        (stood_without_a_verdict, MOVES, None, ""),
        (looked_healthy, MOVES, None, ""),
        (told, MOVES, "resolved", "warning"),
        (suspected, FINISHED, None, ""),
        (stood_without_a_verdict, FINISHED, None, ""),
        (looked_healthy, FINISHED, None, ""),
        (told, FINISHED, "ended", "warning"),
        (suspected, TERMINATED, "ended", "none"),
        (stood_without_a_verdict, TERMINATED, "ended", "none"),
        (looked_healthy, TERMINATED, None, ""),
        (told, TERMINATED, "ended", "warning"),
        (suspected, KILLED, "ended", "none"),
        (stood_without_a_verdict, KILLED, "ended", "none"),
        (told, KILLED, "ended", "warning"),
        (stepping, KILLED, "ended", "none"),
        (found_with_patience, MOVES, "resolved", "none"),
        (found_with_patience, FINISHED, "ended", "none"),
        (found_with_patience, TERMINATED, "ended", "none"),
        (found_with_patience, KILLED, "ended", "none"),
        (found_with_patience, CRASHED, "ended", "critical"),
        (suspected, CRASHED, "ended", "critical"),
        (stood_without_a_verdict, CRASHED, "ended", "critical"),
        (told, CRASHED, "ended", "warning"),
        (looked_healthy, KILLED, "ended", "none"),
        (looked_healthy, CRASHED, "ended", "critical"),
        (stepping, CRASHED, "ended", "critical"),
    ],
)
def test_how_an_incident_ends(before: Any, way: Way, state: str | None, severity: str) -> None:
    story = Story()
    before(story)
    left = goes_on(story, way)
    if state is None:
        assert left is None
        return
    assert left is not None
    assert (left.state, left.severity) == (state, severity)
    assert left.events[-1].what.startswith(f"{state}: ")
    assert not of(story.actions, Discard)  # its evidence stays
    assert left.tell_wall_ns is None
    if before in (told, found_with_patience):
        # What was seen of the standstill stays said, unless it died of something else and nobody had been told.
        cause = "rank_exited" if (before, way) == (found_with_patience, CRASHED) else "not_entered"
        assert left.verdict is not None and left.verdict.cause == cause
    assert _last_mark(left) == ("" if severity == "none" else "🟢" if state == "resolved" else "⚫")
    scraped = render(with_snapshot(node_report(left), wall_ns=left.resolved_wall_ns or 0), ()).decode()
    assert (f'state="{state}"' in scraped) is (severity != "none" or "stallwatch_incident_info{" in scraped)
    assert _colour_of_page(state) == ("good" if state == "resolved" else "soft")


def _last_mark(incident: Incident) -> str:
    """Of the message with which people hear how it ended, who have been told of it; "" where they hear nothing."""
    step = due(incident, ("told",) if incident.severity != "none" else (), "warning")
    return str(slack_message(incident, step)["text"])[0] if step else ""


def _colour_of_page(state: str) -> str:
    """Of the card's edge, by the class that is its state."""
    css = (PAGE / "page.css").read_text(encoding="utf-8")
    rule = re.search(rf"^article\.{state} {{ border-left-color: var\(--(\w+)\)", css, re.MULTILINE)
    usual = re.search(r"^article {.*border-left: 5px solid var\(--(\w+)\)", css, re.MULTILINE)
    assert usual
    return (rule or usual).group(1)


def test_what_was_seen_of_a_job_that_somebody_ended_before_it_was_sure_is_judged() -> None:
    story = Story()
    suspected(story)
    actions = story.at(20, jobs=[facts(alive=(), ending=True)])
    assert of(actions, Judge)
    story.judged(report("not_entered"))
    story.at(21)
    assert story.lives.past[0].verdict is not None
    assert story.lives.past[0].severity == "none"


def test_exits_of_which_nobody_can_say_anything_open_one_incident_and_no_more() -> None:
    story = Story()
    for second in range(6, 200):
        story.at(second, finding("exit", resolvable=False), jobs=[facts(alive=())])
        if story.lives.active and story.life.capturing:
            story.looked()
        if story.lives.active and story.life.judging:
            story.judged(None, "the report holds no verdict")
    assert [incident.state for incident in story.lives.past] == ["ended"]
    assert not of(story.actions, Discard)


@pytest.mark.parametrize(("way", "mark"), [(MOVES, "🟢"), (TERMINATED, "⚫"), (KILLED, "⚫")])
def test_people_are_told_that_a_job_is_well_again_only_when_it_is(way: Way, mark: str) -> None:
    story = Story()
    told(story)
    left = goes_on(story, way)
    assert left is not None
    step = due(left, ("told",), "warning")
    assert step == left.state
    message = slack_message(left, step)
    assert message["text"].startswith(mark)
    assert "vidence" not in message["text"]  # nobody asks any more whether it may be ended
    assert due(left, ("told", step), "warning") is None


@pytest.mark.parametrize(("way", "state"), [(MOVES, "resolved"), (CRASHED, "ended")])
def test_a_scrape_within_five_minutes_sees_what_was_over_between_two(way: Way, state: str) -> None:
    story = Story()
    (told if way is MOVES else stepping)(story)
    left = goes_on(story, way)
    assert left is not None and left.resolved_wall_ns is not None

    def scraped(seconds: float) -> str:
        wall_ns = (left.resolved_wall_ns or 0) + int(seconds * 1e9)
        return render(with_snapshot(node_report(left), wall_ns=wall_ns), ()).decode()

    assert f'state="{state}"' in scraped(299)
    assert "stallwatch_incident_evidence_complete{" not in scraped(299)
    assert "stallwatch_incident_info{" not in scraped(301)
    assert "stallwatch_incidents_open{" not in scraped(1)


def test_when_its_job_is_over_an_incident_has_no_deadline_and_the_steps_that_are_left() -> None:
    dump = "On node0 see all its threads: `py-spy dump --pid 4711`."
    answer = report("not_entered", deadline=600)
    stood = replace(answer.verdicts[0], next_steps=(dump, "Mend it."), when_over=WhenOver(("Mend it.",)))
    told = replace(answer, verdicts=(stood,))
    story = Story()
    story.at(6, stall())
    story.looked()
    story.at(9, stall("confirmed"))
    story.looked()
    story.judged(told)
    assert story.incident.report is not None and story.incident.verdict is not None
    assert story.incident.report.deadline == answer.deadline, "while it stands"
    assert dump in story.incident.verdict.next_steps
    story.at(story.second + 1, jobs=[facts(alive=())])
    story.at(story.second + 5, jobs=[facts(alive=())])
    (past,) = story.lives.past
    assert past.state == "ended"
    assert past.report is not None and past.verdict is not None
    assert past.report.deadline is None
    assert dump not in past.verdict.next_steps and "Mend it." in past.verdict.next_steps
    assert "safe to kill" not in str(slack_message(past, "told")), "nor where a message is late"


def test_who_is_told_of_a_job_when_it_is_gone_is_not_told_to_end_it() -> None:
    story = Story()
    story.at(6, stall())
    story.looked()
    story.at(9, stall("confirmed"), DIED, jobs=[facts(alive=(), failed=True)])
    story.looked()
    story.judged(report("rank_exited", deadline=600))
    told = story.incident if story.lives.active else story.lives.past[0]
    assert told.severity == "critical"
    message = str(slack_message(told, "told"))
    assert "The job is over" in message
    assert "safe to kill" not in message and "timeout ends" not in message


def test_a_death_whose_look_was_lost_is_looked_at_again_and_told() -> None:
    """On a node at a load of a hundred the one look at a crash could not be written down, its judge found an empty
    folder, and the incident ended: nobody was told that a rank had aborted."""
    story, gone = Story(), [facts(alive=(), failed=True)]
    story.at(6, DIED, jobs=gone)
    story.at(7, DIED, jobs=gone)
    story.looked()
    story.judged(None, "analyze ended with 65")
    while story.life.looks < 2:
        assert story.second < 60
        story.at(story.second + 1, DIED, jobs=gone)
    story.looked()
    story.judged(report("rank_exited"))
    told = story.incident if story.lives.active else story.lives.past[0]
    assert (told.severity, told.verdict and told.verdict.cause) == ("critical", "rank_exited")


def test_a_death_that_can_never_be_judged_ends() -> None:
    story, gone = Story(), [facts(alive=(), failed=True)]
    story.at(6, DIED, jobs=gone)
    story.at(7, DIED, jobs=gone)
    story.looked()
    story.judged(None, "analyze ended with 65")
    while story.lives.active:
        assert story.second < 120
        looks = story.life.looks
        story.at(story.second + 1, DIED, jobs=gone)
        if story.lives.active and story.life.looks > looks:
            story.looked()
            story.judged(None, "analyze ended with 65")


@pytest.mark.parametrize(
    ("oldest", "ended"),
    [(100, False), (200, True), (0, False)],
)
def test_a_job_that_is_started_anew_under_its_name_does_not_move_again(oldest: int, ended: bool) -> None:
    """Killed as it stood and started again at the same address before anybody looked at its end: all of its processes
    are younger than the incident's. One that came late, or was started again alone, is of the same job."""
    story = Story()
    before = facts(began_ns=100, oldest_ns=100)
    story.at(0, stall(), jobs=[before])
    story.at(5, stall("confirmed"), jobs=[before])
    (known,) = story.lives.incidents()
    story.hear(Captured(known.incident_id, 1, complete=True, done=True))
    story.hear(Judged(known.incident_id, 1, report("not_entered")))
    for second in (60, 63, 66):
        story.at(second, jobs=[facts(began_ns=300, oldest_ns=oldest, moved=True)])
    (over,) = story.lives.past
    assert over.state == ("ended" if ended else "resolved")
    assert ("restarted" in over.resolution) is ended


@pytest.mark.parametrize(
    ("left", "failed", "told"),
    [((1, 2, 3), False, False), ((1,), False, False), ((1,), True, True), ((), False, True)],
)
def test_of_a_wait_that_one_left_with_exit_code_0_nobody_is_told(
    left: tuple[int, ...], failed: bool, told: bool
) -> None:
    """The last save took a minute, or storage stood before the last step; then all left but rank 0, which exports. It
    was told as critical."""
    story = Story()
    story.hang("not_entered", culprits=(3,), ends_by_itself="storage")
    alive = tuple(rank for rank in range(4) if rank not in left)
    ends = facts(alive=alive, left=left, failed=failed)
    story.at(60, stall("confirmed"), finding("exit", resolvable=False), jobs=[ends])
    story.second = 61
    story.at(61, *story.findings)
    story.looked()
    story.judged(report("undecided", culprits=(), waiting=""))
    story.stands(400)
    assert (story.severity != "none") is told


def test_who_stood_and_left_once_the_job_had_failed_is_told_whatever_the_look_after_it_sees() -> None:
    """They waited for it until their time was up, and it went when it was done: told to nobody."""
    story = Story()
    story.hang("not_entered", culprits=(3,), ends_by_itself="storage")
    failed = facts(alive=(), left=(3,), failed=True)
    story.at(60, stall("confirmed"), finding("exit", resolvable=False), jobs=[failed])
    while story.lives.active and story.second < 80:
        story.at(float(int(story.second) + 1), *story.findings)
        if story.lives.active and story.life.capturing:
            story.looked()
        if story.lives.active and story.life.judging:
            story.judged(report("undecided", culprits=(), waiting=""))
    (over,) = story.lives.past
    assert over.severity == "critical"
    assert over.verdict is not None
    assert over.verdict.culprits == (3,)
