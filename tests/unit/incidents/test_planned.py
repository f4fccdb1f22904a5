"""When somebody is told of an incident, by what the engine knows of its life."""

from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from stallwatch.config import Config
from stallwatch.config_sections import TellSection
from stallwatch.detectors.job_facts import JobFacts
from stallwatch.incidents.escalation import planned
from stallwatch.incidents.life import IncidentLife
from stallwatch.model.incident import Together
from stallwatch.progress.patience import Plan
from tests.unit.incidents.stories import SECOND, Story, facts, finding, slow_report

NOW_NS = 5_000 * SECOND


class _Moment(NamedTuple):
    at_ns: int = NOW_NS
    wall_ns: int = 9_000 * SECOND


def life_of(cause: str, culprits: tuple[int, ...] = (3,), **changes: Any) -> IncidentLife:
    story = Story()
    story.hang(cause, culprits=culprits)
    return replace(story.life, **changes)


def plan_of(life: IncidentLife, job: JobFacts | None = None, config: Config | None = None) -> Plan:
    return planned(life, facts() if job is None else job, config or Config(), _Moment())


def test_what_is_quiet_is_over_unless_it_was_taken_over_from_an_earlier_daemon() -> None:
    assert plan_of(life_of("rank_exited", quiet_since_ns=NOW_NS)) == Plan()
    assert plan_of(life_of("rank_exited", quiet_since_ns=NOW_NS, adopted_ns=NOW_NS)).stages


@pytest.mark.parametrize(("cause", "told"), [("rank_exited", True), ("not_entered", False), ("undecided", False)])
def test_of_what_was_taken_over_only_what_cannot_have_passed_is_told(cause: str, told: bool) -> None:
    assert bool(plan_of(life_of(cause, adopted_ns=NOW_NS)).stages) is told
    assert plan_of(life_of(cause)).stages
    none = life_of(cause, adopted_ns=NOW_NS)
    assert plan_of(replace(none, incident=replace(none.incident, report=None))) == Plan(), "there is no verdict yet"


def test_what_somebody_asked_for_and_what_is_only_suspected_tells_nobody() -> None:
    assert plan_of(life_of("rank_exited", family="request")) == Plan()
    assert plan_of(life_of("rank_exited", confirmed_ns=None)) == Plan()


def test_a_slow_job_is_told_when_it_is_worth_it() -> None:
    def planned_at(cost_seconds: float) -> Plan:
        story = Story()
        story.at(20, finding("slow", "confirmed"), jobs=[facts(moved=True)])
        incident = replace(story.incident, report=slow_report((2,), cost_seconds, 600.0))
        return plan_of(replace(story.life, incident=incident, family="slow"))

    assert planned_at(0.1) == Plan(((NOW_NS, "warning"),))
    cheap = planned_at(0.0001)
    assert cheap.stages == ()
    assert cheap.why


def test_what_will_break_later_is_a_warning_at_once() -> None:
    for family in ("health", "drift"):
        assert plan_of(life_of("undecided", family=family)) == Plan(((NOW_NS, "warning"),))


def test_without_a_verdict_a_failed_judgement_is_told_when_the_patience_with_what_is_not_known_ends() -> None:
    blind = life_of("undecided", judgements_failed=1)
    blind = replace(blind, incident=replace(blind.incident, report=None))
    ends_ns = blind.incident.since_ns + int(TellSection().undecided_seconds * SECOND)
    assert plan_of(blind) == Plan(((ends_ns, "warning"),))
    assert plan_of(replace(blind, judgements_failed=0)) == Plan()
    assert plan_of(blind, facts(begun=False)) == Plan()
    assert planned(blind, None, Config(), _Moment()) == Plan((), "the job is over, and did not die of what was found")


def test_a_start_is_told_once_it_has_done_no_work_for_long() -> None:
    life = life_of("undecided", culprits=())
    for worked_ns, rank in ((0, 3), (NOW_NS, 3), (0, 0), (NOW_NS, 0)):
        ((at_ns, _),) = plan_of(life, facts(begun=False, worked=((rank, worked_ns, 0),))).stages
        since_ns = max(worked_ns if rank == 3 else 0, life.incident.since_ns)  # ranks 0-2 wait: they spin
        assert at_ns == since_ns + int(TellSection().unbegun_seconds * SECOND)


@pytest.mark.parametrize("together", [None, Together(why="they have not agreed yet"), Together(nodes=2)])
def test_a_start_of_many_nodes_has_twice_the_time_whatever_these_tell_each_other(together: Together | None) -> None:
    """How ranks stand they tell, when these were last at work they do not: with a fleet it was half the time."""
    life = life_of("undecided", culprits=())
    life = replace(life, incident=replace(life.incident, together=together))
    for fields, times in (({"world_size": 8}, 2), ({"io_unseen": True}, 2), ({}, 1)):
        ((at_ns, _),) = plan_of(life, facts(begun=False, **fields)).stages
        assert at_ns == life.incident.since_ns + times * int(TellSection().unbegun_seconds * SECOND)


def test_who_died_of_what_was_found_is_told_once_nothing_looks_at_it_any_more() -> None:
    gone, dead = facts(alive=()), life_of("rank_exited")
    dead = replace(dead, next_look_ns=None, capturing=False, judging=False)
    assert plan_of(dead, gone) == Plan(((NOW_NS, "critical"),))
    possible = replace(dead.incident.report, verdicts=(replace(dead.incident.verdict, confidence="possible"),))  # type: ignore[type-var]
    assert plan_of(replace(dead, incident=replace(dead.incident, report=possible)), gone) == Plan(
        ((NOW_NS, "warning"),)
    )
    waits = Plan((), "it is still looked at how the job ended")
    for looks in ({"capturing": True}, {"judging": True}, {"next_look_ns": NOW_NS + 250_000_000}):
        assert plan_of(replace(dead, **looks), gone) == waits
    assert plan_of(replace(dead, next_look_ns=NOW_NS + 250_000_001), gone).stages, "a look that is far off is none"


def test_a_job_that_is_ending_gets_its_time() -> None:
    told = plan_of(life_of("rank_exited"), facts(ending=True))
    assert told.stages == ()
    assert "tell.ending_seconds" in told.why
