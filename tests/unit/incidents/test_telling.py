from typing import get_args

import pytest

from stallwatch.config import Config, DaemonSection, TellSection
from stallwatch.detectors.job_facts import JobFacts
from stallwatch.incidents.telling import AT_ONCE, OPEN, STUCK
from stallwatch.model.verdict import Cause
from tests.unit.incidents.stories import Story, facts, finding, report, stall


def told_after(cause: str, seconds: float, jobs: list[JobFacts] | None = None, **how: str) -> str:
    story = Story()
    story.at(6, stall(), jobs=jobs or [facts()])
    story.looked()
    story.at(9, stall("confirmed"))
    story.looked()
    story.judged(report(cause, **how))  # type: ignore[arg-type]
    story.stands(story.second + seconds)
    return story.incident.severity


@pytest.mark.parametrize("cause", ["collective_mismatch", "group_order", "p2p_unmatched", "rank_raised", "gpu_fault"])
def test_what_cannot_resolve_itself_is_critical_at_once(cause: str) -> None:
    assert told_after(cause, 0) == "critical"
    assert told_after(cause, 0, confidence="possible") == "warning"


@pytest.mark.parametrize("cause", ["not_entered", "data_exhausted", "comm_stuck", "gpu_kernel_stuck"])
def test_stuck_is_a_warning_then_critical(cause: str) -> None:
    assert told_after(cause, 0) == "warning"
    assert told_after(cause, 65) == "critical"


@pytest.mark.parametrize(("culprits", "severity"), [((0, 1, 2, 3), "none"), ((2,), "critical")])
def test_a_job_that_is_suspended_as_a_whole_is_no_stopped_rank(culprits: tuple[int, ...], severity: str) -> None:
    story = Story()
    story.at(6, finding("stopped", resolvable=False), jobs=[facts()])
    story.looked()
    story.judged(report("process_stopped", culprits))
    assert story.incident.severity == severity
    story.stands(910)
    assert story.incident.severity == "critical"


def test_a_phase_that_always_takes_long_has_more_patience() -> None:
    usual = [facts(phases=((0, "checkpoint"),), phase_past_seconds=1200.0)]
    assert told_after("waiting", 1700, usual) == "none"
    assert told_after("waiting", 1810, usual) == "warning"
    quick = [facts(phases=((0, "checkpoint"),), phase_past_seconds=20.0)]
    assert told_after("waiting", 905, quick) == "warning"


@pytest.mark.parametrize("where", ["checkpoint", "filesystem", "dataloader", "socket", "compile"])
def test_silent_places_must_be_seen_stuck_for_a_while(where: str) -> None:
    assert told_after("not_entered", TellSection().settle_seconds - 5, where=where) == "none"
    assert told_after("not_entered", TellSection().settle_seconds + 5, where=where) == "warning"


def test_a_guess_must_be_seen_for_a_while_too() -> None:
    assert told_after("not_entered", 20, confidence="possible") == "none"
    assert told_after("not_entered", 45, confidence="possible") == "warning"


def test_a_rank_that_sleeps_at_both_looks_and_works_in_between_must_be_seen_so_for_a_while() -> None:
    works = [facts(working=(3,))]
    assert told_after("not_entered", 30, works, where="user_code") == "none"
    assert told_after("not_entered", 45, works, where="user_code") == "warning"
    assert told_after("not_entered", 0, [facts(working=(0,))], where="user_code") == "warning", "another rank works"
    assert told_after("not_entered", 0, works, where="lock") == "warning", "work does not open its lock"


def test_a_rank_that_computes_gets_the_patience_of_what_is_undecided() -> None:
    assert told_after("not_entered", 250, where="busy_loop") == "none"
    assert told_after("not_entered", 310, where="busy_loop") == "critical"


def test_what_is_over_wakes_nobody() -> None:
    story = Story()
    story.at(6, stall(), jobs=[facts(begun=False)])
    story.looked()
    story.at(9, stall("confirmed"))
    story.looked()
    story.judged(report("not_entered"))
    story.at(30, jobs=[facts(moved=True)])
    assert all(incident.severity == "none" for incident in story.lives.incidents())


def test_a_culprit_inside_a_phase_gets_the_same_time() -> None:
    assert told_after("not_entered", 20, jobs=[facts(phases=((3, "eval"),))]) == "none"
    assert told_after("not_entered", 20, jobs=[facts(phases=((0, "eval"),))]) == "warning"


def test_a_progressing_wait_is_told_when_patience_ends() -> None:
    assert told_after("waiting", 800) == "none"
    assert told_after("waiting", 900) == "warning"


def test_a_job_that_stands_for_reasons_unknown_is_told_in_the_end() -> None:
    assert told_after("undecided", 280) == "none"
    assert told_after("undecided", 300) == "warning"


def test_health_is_never_told() -> None:
    assert told_after("healthy", 2000) == "none"


def test_a_job_at_its_start_gets_time_for_ranks_to_arrive_and_is_never_told_as_undecided() -> None:
    starting = [facts(begun=False)]
    assert told_after("init_missing", 100, jobs=starting) == "none"
    assert told_after("init_missing", 120, jobs=starting) in ("warning", "critical")
    assert told_after("not_entered", 100, jobs=starting) == "none"
    assert told_after("undecided", 2000, jobs=starting) == "none"


def test_a_job_that_is_ending_gets_time() -> None:
    assert told_after("rank_exited", 0, jobs=[facts(ending=True)]) == "none"
    story = Story()
    story.at(1, finding("exit", resolvable=False), jobs=[facts(ending=True)])
    story.looked()
    story.judged(report("rank_exited"))
    assert story.incident.severity == "critical", "the exit detector speaks when the time is over"


def silent(jobs: list[JobFacts], config: Config | None = None) -> tuple[str, bool]:
    story = Story(config)
    story.at(6, stall(), jobs=jobs)
    story.looked()
    story.at(9, stall("confirmed"))
    story.looked()
    story.judged(report("collective_mismatch"))
    return story.incident.severity, story.incident.muted


@pytest.mark.parametrize(
    "quiet",
    [facts(opted_out=True), facts(world_size=1), facts(debugged=(2,)), facts(in_terminal=True)],
    ids=["opted out", "one rank", "debugged", "terminal"],
)
def test_wishes_for_silence_are_kept_and_said(quiet: JobFacts) -> None:
    assert silent([quiet]) == ("none", True)
    assert silent([facts()]) == ("critical", False)


def test_people_in_a_terminal_can_be_told_all_the_same() -> None:
    loud = Config(tell=TellSection(terminals=True))
    assert silent([facts(in_terminal=True)], loud) == ("critical", False)
    assert silent([facts(debugged=(1,))], loud) == ("critical", False)
    assert silent([facts(opted_out=True)], loud) == ("none", True)


def test_the_smallest_job_worth_telling_is_configured() -> None:
    assert silent([facts(world_size=8)], Config(daemon=DaemonSection(minimum_world_size=16))) == ("none", True)


def untold(cause: str, jobs: list[JobFacts] | None = None, **how: str) -> list[str]:
    story = Story()
    story.at(6, stall(), jobs=jobs or [facts()])
    story.looked()
    story.at(9, stall("confirmed"))
    story.looked()
    story.judged(report(cause, **how))  # type: ignore[arg-type]
    story.stands(story.second + 20)
    return [event.what for event in story.incident.events if event.what.startswith("nobody is told yet")]


@pytest.mark.parametrize(
    ("cause", "where", "setting"),
    [
        ("not_entered", "dataloader", "40 s (tell.settle_seconds)"),
        ("not_entered", "busy_loop", "300 s, tell.undecided_seconds"),
        ("undecided", "unknown", "300 s, tell.undecided_seconds"),
        ("waiting", "checkpoint", "900 s, tell.waiting_seconds"),
    ],
)
def test_a_verdict_that_wakes_nobody_yet_says_once_why_and_how_long(cause: str, where: str, setting: str) -> None:
    said = untold(cause, where=where)
    assert len(said) == 1
    assert setting in said[0]


def test_what_is_told_at_once_or_is_healthy_says_no_patience() -> None:
    assert untold("rank_raised") == []
    assert untold("healthy") == []


def test_a_job_that_has_not_begun_says_so() -> None:
    assert "has not begun to step" in untold("not_entered", jobs=[facts(begun=False)])[0]


def test_every_cause_has_its_urgency() -> None:
    assert AT_ONCE | STUCK | OPEN | {"slow_rank"} == set(get_args(Cause))
    assert not AT_ONCE & STUCK
    assert not OPEN & (AT_ONCE | STUCK)
