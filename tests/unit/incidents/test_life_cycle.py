"""What opens an incident and how one ends, by literal lives."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from stallwatch.detectors.job_facts import JobFacts
from stallwatch.incidents.life import Cooldown, IncidentLife, IncidentTable
from stallwatch.incidents.life_cycle import IncidentEnd, end, end_of, is_over, is_to_be_judged, may_open
from stallwatch.incidents.messages import Action, CancelCapture, Discard
from stallwatch.model.finding import Finding
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import JobKey
from tests.unit.incidents.stories import JOB, SECOND, Story, facts, finding, report, stall

AT = 5_000 * SECOND
OTHER = JobKey("other", JOB.epoch)


def a_life(family: Any = "hang", cause: str | None = None, **changes: Any) -> IncidentLife:
    """Suspected 100 s ago, confirmed 10 s later, looked at once and judged."""
    story = Story()
    story.at(20, stall(), jobs=[facts()])
    incident = replace(story.incident, since_ns=AT - 100 * SECOND)
    if cause:
        incident = replace(incident, report=report(cause))
    values = {"looks": 1, "judged_look": 1, "look_ns": AT - 80 * SECOND, "confirmed_ns": AT - 90 * SECOND}
    return IncidentLife(replace(incident, **changes.pop("incident", {})), family, **(values | changes))


def ended(
    life: IncidentLife,
    found: tuple[Finding, ...] = (),
    job: JobFacts | None = None,
    others: Mapping[JobKey, JobFacts] | None = None,
) -> IncidentEnd | None:
    return end_of(life, found, {**({JOB: job} if job else {}), **(others or {})}, AT)


GONE = facts(alive=())


def test_a_symptom_opens_one_incident_of_its_kind_and_job() -> None:
    lives = IncidentTable(active=(a_life(),))
    assert not may_open(lives, JOB, "hang", facts(), AT)
    assert may_open(lives, JOB, "slow", facts(), AT)
    assert may_open(lives, OTHER, "hang", facts(OTHER), AT)


def test_after_a_false_alarm_the_same_is_not_looked_at_again_for_a_while_unless_it_is_confirmed() -> None:
    cooling = IncidentTable(cooldowns=(Cooldown(JOB, "slow", AT + 1, 1),))
    assert not may_open(cooling, JOB, "slow", facts(), AT)
    assert may_open(cooling, JOB, "slow", facts(), AT, confirmed=True)
    assert may_open(cooling, JOB, "hang", facts(), AT)
    assert may_open(cooling, OTHER, "slow", facts(OTHER), AT)
    assert may_open(cooling, JOB, "slow", facts(), AT + 1)


def test_no_user_has_more_than_32_open_and_he_takes_nobody_else_s_place() -> None:
    def jobs(owner: str, many: int) -> tuple[IncidentLife, ...]:
        keys = (replace(JOB, training_job=f"job{number}", owner=owner) for number in range(many))
        return tuple(a_life(incident={"job": key}) for key in keys)

    new, theirs = replace(JOB, owner="ann"), replace(JOB, owner="bob")
    assert may_open(IncidentTable(active=jobs("ann", 31)), new, "hang", facts(), AT)
    assert not may_open(IncidentTable(active=jobs("ann", 32)), new, "hang", facts(), AT)
    assert may_open(IncidentTable(active=jobs("ann", 32)), theirs, "hang", facts(), AT)


def test_a_job_that_is_over_opens_nothing_once_its_end_was_told() -> None:
    died = replace(a_life().incident, findings=(finding("exit"),))
    assert not may_open(IncidentTable(past=(died,)), JOB, "hang", GONE, AT)
    assert may_open(IncidentTable(past=(died,)), JOB, "hang", facts(), AT), "some of its ranks live"
    assert may_open(IncidentTable(past=(died,)), JOB, "hang", None, AT)
    assert may_open(IncidentTable(past=(replace(died, job=OTHER),)), JOB, "hang", GONE, AT)
    assert may_open(IncidentTable(past=(replace(died, findings=(stall(),)),)), JOB, "hang", GONE, AT)


def test_what_somebody_asked_for_is_over_after_two_looks_or_two_minutes() -> None:
    twice: dict[str, Any] = {"looks": 2, "judged_look": 2}
    assert ended(a_life("request", **twice)) == ("resolved", "captured on request")
    changes: tuple[dict[str, Any], ...] = (
        {"capturing": True},
        {"judging": True},
        {"next_look_ns": AT},
        {"judged_look": 1},
        {"looks": 1},
    )
    for under_way in changes:
        assert ended(a_life("request", **(twice | under_way))) is None, under_way
    long_ago = {"since_ns": AT - 121 * SECOND}
    assert ended(a_life("request", capturing=True, incident=long_ago)) == ("resolved", "captured on request")


def test_what_was_taken_over_is_given_time_to_be_seen() -> None:
    just_now, before = AT - 9 * SECOND, AT - 11 * SECOND
    assert ended(a_life(adopted_ns=just_now, confirmed_ns=None)) is None
    assert ended(a_life(adopted_ns=before, confirmed_ns=None)) == ("ended", "the job ended")
    quiet: dict[str, Any] = {"quiet_since_ns": AT - 5 * SECOND}
    assert ended(a_life(adopted_ns=AT - 59 * SECOND, **quiet), (), facts()) is None
    assert ended(a_life(adopted_ns=AT - 59 * SECOND, **quiet), (), facts(moved=True)) is not None
    assert ended(a_life(adopted_ns=AT - 61 * SECOND, **quiet), (), facts()) is not None
    assert ended(a_life(**quiet), (), facts()) == ("resolved", "the symptom is gone")


def test_a_job_that_is_gone_ended_or_was_restarted() -> None:
    over = a_life(cause="not_entered", incident={"severity": "critical"})
    assert ended(over, (), GONE) == ("ended", "the job ended")
    again = replace(JOB, epoch="127.0.0.1:29501/4/0")
    assert ended(over, (), GONE, {again: facts(again)}) == ("ended", "the job was restarted")
    assert ended(over, (), GONE, {again: facts(again, alive=())}) == ("ended", "the job ended")
    assert ended(over, (), GONE, {OTHER: facts(OTHER)}) == ("ended", "the job ended")


@pytest.mark.parametrize(
    ("changes", "waits"),
    [
        ({}, True),
        ({"confirmed_ns": AT - 89 * SECOND}, True),
        ({"confirmed_ns": AT - 91 * SECOND}, False),
        ({"confirmed_ns": None}, False),
        ({"judgements_failed": 1}, False),
        ({"family": "health"}, False),
    ],
)
def test_a_jobs_end_waits_for_the_verdict_that_is_still_to_come(changes: dict[str, Any], waits: bool) -> None:
    life = a_life(**({"confirmed_ns": AT - 50 * SECOND} | changes))
    assert (ended(life, (), GONE) is None) is waits


@pytest.mark.parametrize(
    ("cause", "changes", "found", "waits"),
    [
        ("undecided", {"capturing": True}, "exit", True),
        ("undecided", {"judging": True}, "exit", True),
        ("undecided", {"next_look_ns": AT + 250_000_000}, "exit", True),
        ("undecided", {"next_look_ns": AT + 250_000_001}, "exit", False),
        ("undecided", {"looks": 2}, "exit", True),
        ("undecided", {}, "exit", False),
        ("undecided", {"capturing": True}, "stall", False),
        ("not_entered", {"capturing": True, "incident": {"severity": "critical"}}, "exit", False),
        ("not_entered", {"capturing": True}, "exit", True),  # of which nobody was told
        (
            "undecided",
            {"capturing": True, "look_ns": AT - 91 * SECOND, "confirmed_ns": AT - 95 * SECOND},
            "exit",
            False,
        ),
        ("undecided", {"capturing": True, "look_ns": AT - 89 * SECOND, "confirmed_ns": AT - 95 * SECOND}, "exit", True),
    ],
)
def test_a_death_after_a_look_that_did_not_tell_waits_for_one_that_may(
    cause: str, changes: dict[str, Any], found: str, waits: bool
) -> None:
    assert (ended(a_life(cause=cause, **changes), (finding(found),), GONE) is None) is waits


def test_an_incident_ends_once_its_symptom_is_gone_for_more_than_a_tick_or_the_job_moves() -> None:
    def after(seconds: float, family: str = "hang", **job: Any) -> IncidentEnd | None:
        return ended(a_life(family, quiet_since_ns=AT - int(seconds * SECOND)), (), facts(**job))

    assert ended(a_life(), (), facts()) is None, "it is there"
    assert ended(a_life(quiet_since_ns=AT - 9 * SECOND), (stall(),), facts(moved=True)) is None
    assert after(1.4) is None
    assert after(1.6) == ("resolved", "the symptom is gone")
    assert after(0.1, moved=True) == ("resolved", "the job moves again after 100 s")
    assert after(9, "drift") is None, "what it has computed since stays wrong"
    assert after(9, "slow") == ("resolved", "the job is no longer held back")
    assert [after(seconds, "health") for seconds in (59, 60)] == [
        None,
        ("resolved", "what was found is no longer so"),
    ]


@pytest.mark.parametrize(
    ("seconds", "said"), [(119, "119 s"), (120, "2 min"), (7_199, "120 min"), (7_200, "2.0 h"), (9_000, "2.5 h")]
)
def test_how_long_a_job_stood_is_said_in_seconds_minutes_or_hours(seconds: int, said: str) -> None:
    life = a_life(quiet_since_ns=AT, incident={"since_ns": AT - seconds * SECOND})
    assert ended(life, (), facts(moved=True)) == ("resolved", f"the job moves again after {said}")


def test_a_hang_that_was_looked_at_and_never_confirmed_is_judged_when_its_job_is_gone() -> None:
    suspected: dict[str, Any] = {"confirmed_ns": None}
    assert is_to_be_judged(a_life(**suspected), GONE)
    assert is_to_be_judged(a_life(**suspected), None)
    assert not is_to_be_judged(a_life(**suspected), facts())
    assert not is_to_be_judged(a_life(**suspected), facts(alive=(), finished=True)), "it had moved again"
    assert not is_to_be_judged(a_life(), GONE)
    assert not is_to_be_judged(a_life("slow", **suspected), GONE)
    assert not is_to_be_judged(a_life(**suspected, looks=0), GONE)
    assert not is_to_be_judged(a_life(**suspected, adopted_ns=AT), GONE)


def test_the_whole_job_is_over_where_all_of_it_is_seen_from_here() -> None:
    incident = a_life().incident
    assert is_over(incident, GONE)
    assert not is_over(incident, facts())
    assert not is_over(incident, None)
    assert not is_over(incident, facts(alive=(), ranks=(0, 1))), "others are on other nodes"


def over(
    life: IncidentLife, how: str = "resolved", lives: IncidentTable | None = None, job: JobFacts | None = None
) -> tuple[IncidentTable, list[Action]]:
    actions: list[Action] = []
    told = IncidentEnd("ended" if how == "ended" else "resolved", "so")
    return end(lives or IncidentTable(), life, told, job, AT, 0, actions), actions


def test_what_said_nothing_is_dismissed_and_leaves_nothing() -> None:
    lives, actions = over(a_life(capturing=True))
    assert (lives.dismissed_total, lives.past, lives.cooldowns) == (1, (), ())
    assert [type(action) for action in actions] == [CancelCapture, Discard]
    assert [type(action) for action in over(a_life())[1]] == [Discard]


@pytest.mark.parametrize(
    ("life", "how", "job", "kept"),
    [
        (a_life(incident={"severity": "warning"}), "resolved", None, True),
        (a_life(cause="not_entered"), "resolved", None, True),
        (a_life("request"), "resolved", None, True),
        (a_life(), "ended", GONE, True),  # as it stood
        (a_life(), "ended", facts(alive=(), finished=True), False),  # in order: it had moved
        (a_life(cause="healthy"), "ended", GONE, False),
        (a_life(looks=0), "ended", GONE, False),
        (a_life("slow"), "ended", GONE, False),
        (a_life(), "resolved", facts(), False),
    ],
)
def test_what_said_something_or_ended_as_it_stood_is_kept(
    life: IncidentLife, how: str, job: JobFacts | None, kept: bool
) -> None:
    lives, _ = over(life, how, job=job)
    assert [one.state for one in lives.past] == ([how] if kept else [])
    assert [one.job_over for one in lives.past] == ([how == "ended"] if kept else [])
    assert lives.dismissed_total == (not kept)


@pytest.mark.parametrize("how", ["resolved", "ended"])
def test_only_of_a_job_that_ended_is_a_new_start_left_to_do(how: str) -> None:
    lives, _ = over(a_life(cause="not_entered"), how)
    (kept,) = lives.past
    assert kept.report is not None
    assert any("Start the job" in step for step in kept.report.verdicts[0].next_steps) is (how == "ended")


def test_of_each_user_the_latest_twenty_are_kept() -> None:
    def past(owner: str, many: int) -> tuple[Incident, ...]:
        return (replace(a_life().incident, job=replace(JOB, owner=owner)),) * many

    told = a_life(incident={"severity": "warning", "job": replace(JOB, owner="ann")})
    lives, _ = over(told, lives=IncidentTable(past=past("ann", 20) + past("bob", 3)))
    assert [sum(one.job.owner == owner for one in lives.past) for owner in ("ann", "bob")] == [20, 3]


def test_a_false_alarm_of_slowness_is_not_looked_at_for_longer_each_time_up_to_an_hour() -> None:
    def cooled(*before: Cooldown) -> tuple[Cooldown, ...]:
        return over(a_life("slow"), lives=IncidentTable(cooldowns=before))[0].cooldowns

    assert cooled() == (Cooldown(JOB, "slow", AT + 30 * SECOND, 1),)
    assert cooled(Cooldown(JOB, "slow", AT, 1)) == (Cooldown(JOB, "slow", AT + 60 * SECOND, 2),)
    assert cooled(Cooldown(JOB, "slow", AT, 2))[0].until_ns == AT + 120 * SECOND
    assert cooled(Cooldown(JOB, "slow", AT, 20))[0].until_ns == AT + 3_600 * SECOND
    hour = 3_600 * SECOND
    others = (
        Cooldown(OTHER, "slow", AT - hour + 1, 1),
        Cooldown(replace(OTHER, training_job="old"), "slow", AT - hour, 1),
    )
    assert cooled(*others) == (others[0], Cooldown(JOB, "slow", AT + 30 * SECOND, 1)), "what is long over is forgotten"
