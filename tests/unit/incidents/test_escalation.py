from typing import Any, get_args

import msgspec
import pytest

from stallwatch.config import Config
from stallwatch.config_sections import DaemonSection, TellSection
from stallwatch.detectors.job_facts import JobFacts
from stallwatch.incidents.engine import Now
from stallwatch.incidents.escalation import planned
from stallwatch.incidents.life import Family
from stallwatch.model.verdict import EndsByItself
from stallwatch.progress.patience import Plan
from tests.unit.incidents.stories import SECOND, START, Story, facts, finding, report, stall


def told_after(
    cause: str, seconds: float, jobs: list[JobFacts] | None = None, config: Config | None = None, **how: Any
) -> str:
    story = Story(config)
    story.at(6, stall(), jobs=jobs or [facts()])
    story.looked()
    story.at(9, stall("confirmed"))
    story.looked()
    story.judged(report(cause, **how))
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


@pytest.mark.parametrize(
    ("ranks", "culprits", "severity"), [(4, (0, 1, 2, 3), "none"), (4, (2,), "critical"), (2, (0, 1), "none")]
)
def test_a_job_that_is_suspended_as_a_whole_is_no_stopped_rank(
    ranks: int, culprits: tuple[int, ...], severity: str
) -> None:
    story = Story()
    jobs = [facts(ranks=tuple(range(ranks)), alive=tuple(range(ranks)), world_size=ranks)]
    story.at(6, finding("stopped", resolvable=False), jobs=jobs)
    story.looked()
    story.judged(report("process_stopped", culprits))
    assert story.incident.severity == severity
    story.stands(910)
    assert story.incident.severity == "critical"


def test_a_stop_that_may_be_one_that_passes_is_told_when_it_has_lasted() -> None:
    def severity(second: float) -> str:
        story = Story()
        passing = msgspec.structs.replace(finding("stopped", "suspect", resolvable=False), due_ns=START + 14 * SECOND)
        story.at(6, stall(), jobs=[facts()])
        story.looked()
        story.at(9, stall("confirmed"), passing)
        story.looked()
        story.judged(report("process_stopped"))
        story.stands(second)
        return story.incident.severity

    assert (severity(13), severity(15)) == ("none", "critical")


def test_a_phase_that_always_takes_long_has_more_patience() -> None:
    usual = [facts(phases=((0, "checkpoint"),), phase_past_seconds=1200.0)]
    assert told_after("waiting", 1700, usual) == "none"
    assert told_after("waiting", 1810, usual) == "warning"
    quick = [facts(phases=((0, "checkpoint"),), phase_past_seconds=20.0)]
    assert told_after("waiting", 905, quick) == "warning"


@pytest.mark.parametrize("kind", get_args(EndsByItself))
def test_what_may_end_by_itself_is_told_when_the_patience_of_its_kind_ends(kind: str) -> None:
    verdict_at = 9
    seconds = getattr(TellSection(), f"{kind}_seconds") - verdict_at
    assert told_after("not_entered", seconds - 5, ends_by_itself=kind) == "none"
    assert told_after("not_entered", seconds + 5, ends_by_itself=kind) in ("warning", "critical")


def test_each_patience_is_a_key_of_the_configuration() -> None:
    short = Config(tell=TellSection(sleep_seconds=20))
    assert told_after("not_entered", 5, config=short, ends_by_itself="sleep") == "none"
    assert told_after("not_entered", 15, config=short, ends_by_itself="sleep") == "warning"


def test_the_moment_at_which_somebody_is_told_is_shown_with_its_reason_until_then() -> None:
    story = Story()
    story.hang("not_entered", ends_by_itself="sleep")
    incident = story.incident
    assert incident.tell_wall_ns is not None
    assert abs(incident.tell_wall_ns - story.wall_ns(120)) < SECOND
    assert "tell.sleep_seconds" in incident.tell_reason
    story.stands(125)
    assert (story.incident.severity, story.incident.tell_wall_ns, story.incident.tell_reason) == ("critical", None, "")


def test_nobody_is_woken_by_an_old_look() -> None:
    story = Story()
    story.hang("not_entered", ends_by_itself="storage")
    looks = story.life.looks
    story.stands(119)
    assert story.life.looks == looks + 1, "one more, some seconds before it is told"
    assert story.life.look_ns >= START + 104 * SECOND


@pytest.mark.parametrize(("cause", "told"), [("waiting", "none"), ("not_entered", "critical")])
def test_a_look_that_a_crowded_node_is_late_with_is_waited_for(cause: str, told: str) -> None:
    story = Story()
    story.hang("not_entered", ends_by_itself="child")
    story.stands(104)
    story.at(120, *story.findings)
    shown = story.incident.tell_wall_ns
    assert story.life.capturing, "it was begun before the moment of telling"
    story.at(122, *story.findings)
    assert (story.incident.severity, story.incident.tell_wall_ns) == ("none", shown)
    story.looked()
    story.judged(report(cause, ends_by_itself="child" if cause == "not_entered" else None))
    story.at(123, *story.findings)
    assert story.incident.severity == told


def test_but_not_for_ever() -> None:
    story = Story()
    story.hang("not_entered", ends_by_itself="child")
    for second in (104, 107, 120, 126):
        story.at(second, *story.findings)
    assert (story.life.capturing, story.incident.severity) == (True, "critical")


def test_what_moves_is_told_when_most_of_the_jobs_own_time_out_has_passed() -> None:
    for timeout, before, after in ((600, 465, 475), (3600, 2865, 2875)):
        assert told_after("waiting", before, deadline=timeout) == "none"
        assert told_after("waiting", after, deadline=timeout) == "warning"


@pytest.mark.parametrize(("cause", "known"), [("waiting", True), ("healthy", False)])
def test_a_look_that_does_not_show_the_time_out_leaves_what_is_known_of_it(cause: str, known: bool) -> None:
    """Ranks that leave, or whose recorders do not answer this time, show none. One that moves waits for another."""
    story = Story()
    story.hang("waiting", deadline=3600)
    story.stands(1000)
    while not story.life.capturing:
        story.at(story.second + 1, *story.findings)
    before = story.incident.report.deadline if story.incident.report else None
    story.looked()
    story.judged(report(cause))
    story.at(story.second + 1, *story.findings)
    assert story.incident.severity == "none"
    assert before is not None
    assert story.incident.report is not None
    assert story.incident.report.deadline == (before if known else None)


def test_a_start_is_told_at_half_of_the_jobs_own_time_out() -> None:
    starting = [facts(begun=False)]
    assert told_after("init_missing", 885, jobs=starting, deadline=1800) == "none"
    assert told_after("init_missing", 895, jobs=starting, deadline=1800) in ("warning", "critical")


def test_a_job_of_which_nobody_waits_for_another_is_calm() -> None:
    assert told_after("undecided", 2400, waiting="") == "none", "a rollout of forty minutes without a phase"
    assert told_after("undecided", 3600, waiting="") == "warning"
    assert told_after("undecided", 120, waiting="", ends_by_itself="storage") == "warning", "a file server is gone"


def test_without_a_hook_only_a_wait_is_told() -> None:
    """An idle server, an actor, a notebook."""
    outside = [facts(hooked=False)]
    assert told_after("undecided", 4000, jobs=outside, waiting="") == "none"
    assert told_after("undecided", 300, jobs=outside, waiting="0-3") == "warning"
    assert told_after("not_entered", 20, jobs=outside, where="lock") == "none", "its stacks are all there is"
    assert told_after("not_entered", 45, jobs=outside, where="lock") == "warning"
    assert told_after("not_entered", 4000, jobs=outside, where="socket", ends_by_itself="request") == "none"
    for kind in ("network", "sleep", "timeout", "lock"):
        assert told_after("not_entered", 4000, jobs=outside, waiting="", ends_by_itself=kind) == "none"
        assert told_after("not_entered", 100, jobs=outside, waiting="1-3", ends_by_itself=kind) == "none"
        assert told_after("not_entered", 165, jobs=outside, waiting="1-3", ends_by_itself=kind) != "none"
    never = [facts(hooked=False, begun=False)]
    assert told_after("not_entered", 4000, jobs=never, where="lock") == "none", "it was never seen to work"


def test_a_guess_must_be_seen_for_a_while_too() -> None:
    assert told_after("not_entered", 20, confidence="possible") == "none"
    assert told_after("not_entered", 45, confidence="possible") == "warning"


def test_a_rank_that_sleeps_at_both_looks_and_works_in_between_must_be_seen_so_for_a_while() -> None:
    works = [facts(working=(3,))]
    assert told_after("not_entered", 30, works, where="user_code") == "none"
    assert told_after("not_entered", 45, works, where="user_code") == "warning"
    assert told_after("not_entered", 0, [facts(working=(0,))], where="user_code") == "warning", "another rank works"
    assert told_after("not_entered", 0, works, where="lock") == "warning", "work does not open its lock"


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


def test_what_ranks_on_nodes_that_nobody_asks_may_do_is_waited_for_as_long_as_torch_waits() -> None:
    part = [facts(world_size=8192)]
    assert told_after("undecided", 890, part, waiting="0-3") == "none", "rank 4000 may write a checkpoint"
    assert told_after("undecided", 900, part, waiting="0-3") == "warning"
    assert told_after("not_entered", 0, part) == "warning", "who has not entered is here"


def test_health_is_never_told() -> None:
    assert told_after("healthy", 2000) == "none"


def test_a_job_at_its_start_gets_time_for_ranks_to_arrive_and_is_never_told_as_undecided() -> None:
    starting = [facts(begun=False)]
    assert told_after("init_missing", 280, jobs=starting) == "none"
    assert told_after("init_missing", 300, jobs=starting) in ("warning", "critical")
    assert told_after("not_entered", 280, jobs=starting) == "none"
    assert told_after("undecided", 2000, jobs=starting) == "none"


def test_a_job_that_is_ending_gets_time() -> None:
    assert told_after("rank_exited", 0, jobs=[facts(ending=True)]) == "none"
    story = Story()
    story.at(1, finding("exit", resolvable=False), jobs=[facts(ending=True)])
    story.looked()
    story.judged(report("rank_exited"))
    assert story.incident.severity == "critical", "the exit detector speaks when the time is over"


def after_a_crash(cause: str, *, waiting: str = "", confidence: str = "likely", failed: bool = False) -> str:
    """What is told of a job whose ranks were all gone before anybody had looked."""
    story = Story()
    death = finding("exit", resolvable=False)
    story.at(1, death)
    story.at(2, death, jobs=[facts(alive=(), failed=failed)])
    story.looked()
    story.judged(report(cause, (), confidence, waiting=waiting))
    return (story.incident if story.lives.active else story.lives.past[0]).severity


def test_a_crash_is_told_whatever_the_logs_say_that_it_died_of() -> None:
    """gloo aborts a rank that receives another size than it expects; a rendezvous that times out ends with exit 1."""
    assert after_a_crash("collective_mismatch", confidence="possible") == "warning"
    assert after_a_crash("init_missing") == "critical"
    assert after_a_crash("undecided") == after_a_crash("job_ended") == "none"


def test_a_job_that_somebody_ended_as_it_stood_is_not_told_as_a_crash() -> None:
    assert after_a_crash("not_entered", waiting="0-2") == "none"


def test_a_job_that_its_own_time_out_ended_as_it_stood_is_told() -> None:
    """Within the patience of what its culprit did: the job did not have it."""
    assert after_a_crash("not_entered", waiting="0-2", failed=True) == "critical"


def test_a_job_that_stood_and_crashed_is_told_once_it_was_looked_at_how_it_ended() -> None:
    story = Story()
    story.at(6, stall())
    story.looked()
    story.at(9, stall("confirmed"))
    story.looked()
    story.judged(report("not_entered", ends_by_itself="sleep"))
    death = finding("exit", resolvable=False)
    story.at(25, death, jobs=[facts(alive=(), failed=True)])
    assert story.severity == "none", "what was seen before it died does not show how"
    story.looked()
    story.judged(report("not_entered"))
    assert story.incident.severity == "critical"


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
    [facts(opted_out=True), facts(world_size=1), facts(in_terminal=True)],
    ids=["opted out", "one rank", "terminal"],
)
def test_wishes_for_silence_are_kept_and_said(quiet: JobFacts) -> None:
    assert silent([quiet]) == ("none", True)
    assert silent([facts()]) == ("critical", False)


def test_a_job_under_a_debugger_is_told_of_later_and_says_when() -> None:
    told = untold("process_stopped", [facts(debugged=(2,))])
    assert any("rank 2 is being debugged" in what and "told at" in what for what in told)


@pytest.mark.parametrize("family", ["slow", "health", "drift"])
def test_under_a_debugger_nothing_but_a_hang_is_told(family: Family) -> None:
    story = Story()
    story.hang("slow_rank")
    life = msgspec.structs.replace(story.life, family=family)
    now = Now(START + int(story.second * SECOND), story.wall_ns(story.second), "node0", (), ())
    assert planned(life, facts(debugged=(2,)), Config(), now) == Plan((), "rank 2 is being debugged")
    assert planned(life, facts(), Config(), now).why != "rank 2 is being debugged"


def test_people_in_a_terminal_can_be_told_all_the_same() -> None:
    loud = Config(tell=TellSection(terminals=True))
    assert silent([facts(in_terminal=True)], loud) == ("critical", False)
    assert silent([facts(debugged=(1,))], loud) == ("critical", False)
    assert silent([facts(debugged=(1,))]) == ("none", False)
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
        ("not_entered", "init", "40 s (tell.settle_seconds)"),
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


@pytest.mark.parametrize(
    ("begun", "failed", "severity"), [(True, True, "warning"), (False, True, "none"), (True, False, "none")]
)
def test_what_could_not_be_judged_is_told_of_a_job_that_has_begun(begun: bool, failed: bool, severity: str) -> None:
    """And of that alone, once the judge has failed: until then its verdict is still to come."""
    story, jobs = Story(), [facts(begun=begun)]
    story.at(6, stall(), jobs=jobs)
    story.looked()
    story.at(9, stall("confirmed"), jobs=jobs)
    story.looked()
    if failed:
        story.judged(None, "no verdict within 60 s")
    for second in (300, 320):
        story.at(second, stall("confirmed"), jobs=jobs)
    assert story.incident.severity == severity
