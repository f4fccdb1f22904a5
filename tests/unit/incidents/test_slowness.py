"""One measure of slowness, and how long a look at it lasts."""

import msgspec
import pytest

from stallwatch.detectors.slow_words import SlowReason
from stallwatch.incidents import slowness
from stallwatch.model.incident import Incident
from stallwatch.model.verdict import Cause, CulpritProcess, Fact, Frame, Slowness, Verdict, cost_of
from stallwatch.progress.job_progress import BY_STEPS
from tests.unit.incidents.stories import Story, facts, finding, slow_report


def _incident(detector: str, step_seconds: float | None) -> Incident:
    cost = None if step_seconds is None else Slowness(0.1, 0.1, 0.1, step_seconds, 20, 10.0)
    story = Story()
    story.at(20, msgspec.structs.replace(finding(detector, "suspect"), slowness=cost), jobs=[facts(moved=True)])
    return story.incident


@pytest.mark.parametrize(
    ("step_seconds", "first", "seconds"),
    [(None, 3, 5), (0.05, 2, 5), (0.2, 2, 5), (1.3, 2, 5), (2.0, 3, 8), (5.0, 3, 12)],
    ids=lambda value: str(value),
)
def test_a_look_at_a_slow_rank_sees_some_of_its_steps(step_seconds: float | None, first: int, seconds: int) -> None:
    assert slowness.profile_seconds(_incident("slow", step_seconds), 2) == seconds
    assert slowness.profile_seconds(_incident("slow", step_seconds), 1) == first, "somebody waits to be told"
    assert slowness.look_seconds(_incident("slow", step_seconds), 2) > seconds + 10


def test_a_look_at_a_hang_sees_one_moment() -> None:
    incident = _incident("stall", None)
    assert (slowness.profile_seconds(incident, 1), slowness.look_seconds(incident, 1)) == (0, 0)


@pytest.mark.parametrize("limit", ["", "at most, "])
def test_what_detection_saw_stands_beside_what_a_look_saw(limit: str) -> None:
    story = Story()
    cost = Slowness(0.1, 0.1, 0.1, 0.3, 20, 10.0)
    reason = SlowReason("rank 2 holds the others back", f"; {limit}", "; its GPU is slow")
    assert reason.told(cost) == f"rank 2 holds the others back; {limit}{cost_of(cost)}; its GPU is slow"
    slow = msgspec.structs.replace(
        finding("slow", "suspect"), reason=reason.told(cost), without_cost=reason.told(None), slowness=cost
    )
    story.at(20, slow, jobs=[facts(moved=True)])
    verdicts = slow_report((0, 1, 2, 3), 0.06, 10.0).verdicts
    facts_now = [fact.fact for fact in slowness.measured(story.incident, verdicts).because]
    assert "rank 2 holds the others back; its GPU is slow" in facts_now, "and one figure of what it costs"


def test_what_many_steps_show_is_told_with_the_line_of_a_look_that_calls_the_job_healthy() -> None:
    began, now = Slowness(0.1, 0.1, 0.1, 0.3, 20, 10.0), Slowness(0.08, 0.07, 0.09, 0.29, 90, 26.0)
    slow = msgspec.structs.replace(finding("slow", "confirmed"), slowness=now)
    story = Story()
    story.at(20, slow, jobs=[facts(moved=True)])
    culprit = CulpritProcess(slow.ranks[0], frame=Frame("/job/train.py", 90, "main"))
    said = f"it holds the job back: {cost_of(began)}; it spends 30% there"
    by_steps = Verdict(
        "slow_rank", slow.ranks, "possible", said, (culprit,),
        because=(Fact("many steps ago", BY_STEPS),), slowness=began,
    )  # fmt: skip
    healthy = Verdict("healthy", (), "certain", "all moves")
    told = slowness.measured(story.incident, (healthy, by_steps))
    assert told.summary == f"it holds the job back: {cost_of(now)}; it spends 30% there"
    assert (told.slowness, told.culprit_processes, told.confidence) == (now, (culprit,), "likely")
    assert [fact.fact for fact in told.because] == [slow.reason]
    assert [rejected.cause for rejected in told.rejected] == ["healthy"]
    suspect = msgspec.structs.replace(slow, stage="suspect")
    early = Story()
    early.at(20, suspect, jobs=[facts(moved=True)])
    assert slowness.measured(early.incident, (healthy, by_steps)) == healthy


def _cost(cost_seconds: float, seconds: float = 20.0, steps: int = 40, step_seconds: float = 0.3) -> Slowness:
    return Slowness(cost_seconds, 0.9 * cost_seconds, 1.1 * cost_seconds, step_seconds, steps, seconds)


def _slow(
    now: Slowness | None = None, stage: str = "confirmed", ranks: tuple[int, ...] = (2,), **fields: bool
) -> Incident:
    """An incident of slowness, of which detection says this."""
    found = msgspec.structs.replace(finding("slow", stage), slowness=now, ranks=ranks, **fields)
    return msgspec.structs.replace(_incident("slow", None), findings=(found,))


def _says(cause: Cause = "slow_rank", cost: Slowness | None = None, by_design: str = "") -> Verdict:
    return Verdict(cause, (2,), "possible", "a look says so", slowness=cost, by_design=by_design)


@pytest.mark.parametrize(
    ("seconds", "steps", "sure"), [(8.0, 8, True), (7.9, 8, False), (8.0, 7, False), (80.0, 80, True)]
)
def test_a_measure_is_sure_once_it_spans_eight_seconds_and_steps(seconds: float, steps: int, sure: bool) -> None:
    assert slowness.is_sure(_cost(0.1, seconds, steps)) is sure


def test_what_a_look_sees_of_the_same_ranks_has_the_measure_that_there_is() -> None:
    now = _cost(0.1)
    seen = slowness.measured(_slow(now), [_says()])
    assert (seen.slowness, seen.confidence) == (now, "possible"), "its own it has not"
    own = _cost(0.2)
    seen = slowness.measured(_slow(now), [_says(cost=own)])
    assert (seen.slowness, seen.confidence) == (own, "likely")
    short = _cost(0.2, seconds=3.0)
    assert slowness.measured(_slow(now), [_says(cost=short)]).confidence == "possible"
    assert slowness.measured(_slow(None), [_says()]).slowness is None
    sure = msgspec.structs.replace(_says(cost=own), confidence="certain")
    assert slowness.measured(_slow(now), [sure]).confidence == "certain"


def test_of_hosts_that_run_ahead_steps_tell_what_they_cost() -> None:
    """By times of arrival in one look the others' hosts wait for a host of NCCL far longer than the job does."""
    now, bound = _cost(0.06), msgspec.structs.replace(_cost(0.25), at_most=True)
    look = msgspec.structs.replace(_says(cost=bound), summary=f"it holds the job back: {cost_of(bound)}")
    told = slowness.measured(_slow(now), [look])
    assert (told.slowness, told.summary) == (now, f"it holds the job back: {cost_of(now)}")
    assert slowness.measured(_slow(None), [look]).slowness == bound
    farther = msgspec.structs.replace(_cost(0.3), at_most=True)
    assert slowness.measured(_slow(farther), [look]).slowness == bound


def test_what_many_steps_show_is_said_where_a_look_sees_others_or_nobody_late() -> None:
    now, healthy = _cost(0.1), Verdict("healthy", (), "likely", "all moves")
    told = slowness.measured(_slow(now), [healthy])
    assert (told.cause, told.culprits, told.confidence, told.slowness) == ("slow_rank", (2,), "likely", now)
    assert [one.cause for one in told.rejected] == ["healthy"]
    others = slowness.measured(_slow(now, ranks=(1,)), [_says()])
    assert (others.culprits, others.rejected) == ((1,), ())
    assert slowness.measured(_slow(now, "suspect"), [healthy]) == healthy, "it is not sure yet"
    held = Verdict("process_stopped", (2,), "likely", "it is held")
    assert slowness.measured(_slow(now), [held]).cause == "slow_rank", "again and again: the job moves"
    assert slowness.measured(_slow(now, ranks=(1,)), [held]) == held, "another rank stands"
    stuck = Verdict("not_entered", (2,), "likely", "it stands")
    assert slowness.measured(_slow(now), [stuck]) == stuck
    no_finding = msgspec.structs.replace(_slow(now), findings=())
    assert slowness.measured(no_finding, [healthy]) == healthy


def test_a_verdict_by_many_steps_has_the_measure_of_now_once_that_is_sure() -> None:
    began, now = _cost(0.1), _cost(0.2)
    by_steps = msgspec.structs.replace(_says(cost=began), because=(Fact("many steps", BY_STEPS),))
    assert slowness.measured(_slow(now), [by_steps]).slowness == now
    assert slowness.measured(_slow(now, "suspect"), [by_steps]) == by_steps
    assert slowness.measured(_slow(None), [by_steps]).slowness == began
    bare = msgspec.structs.replace(by_steps, slowness=None)
    assert slowness.measured(_slow(now), [bare]).slowness == now


def test_nobody_is_told_of_a_slow_rank_that_is_not_sure_that_is_meant_or_that_costs_little() -> None:
    cost, finding_of = _cost(0.1), _slow(_cost(0.1))
    assert slowness.untold(finding_of, _says(cost=cost), 0.03) == ""
    assert slowness.untold(finding_of, None, 0.03) == "no look has shown who holds the job back"
    assert slowness.untold(finding_of, Verdict("healthy", (), "likely", ""), 0.03).startswith("no look")
    suspect = _slow(_cost(0.1), "suspect")
    assert slowness.untold(suspect, _says(cost=cost), 0.03) == ""
    assert slowness.untold(suspect, _says(cost=_cost(0.1, seconds=3.0)), 0.03).startswith("it must have been so")
    assert slowness.untold(suspect, _says(), 0.03) == "it must have been so for 8 s and 8 steps"
    assert slowness.untold(_slow(cost, ranks=(1,)), _says(), 0.03).startswith("it must have been so"), "of another"
    assert slowness.untold(finding_of, _says(cost=cost, by_design="it evaluates"), 0.03) == "it evaluates"
    assert slowness.untold(finding_of, _says(cost=_cost(0.003)), 0.03).startswith("it costs the job 1% of a step")
    assert slowness.untold(finding_of, _says(cost=_cost(0.003, step_seconds=0.0)), 0.03) == "", "of no known step"
    warms_up = _slow(cost, "suspect", from_start=True)
    assert slowness.untold(warms_up, _says(cost=cost), 0.03).startswith("it has been so since the first steps")
    assert slowness.untold(_slow(cost, from_start=True), _says(cost=cost), 0.03) == ""


def test_whom_the_others_wait_for_all_the_time_costs_nobody_knows_what() -> None:
    """Of hosts that run ahead who has drawn the longest batches is waited for at every look until it has caught up: a
    calm job was told so."""
    for cost_seconds in (0.3, 0.35):
        bound = msgspec.structs.replace(_cost(cost_seconds), at_most=True)
        assert "nobody has seen" in slowness.untold(_slow(bound), _says(cost=bound), 0.1)
    bound = msgspec.structs.replace(_cost(0.29), at_most=True)
    assert slowness.untold(_slow(bound), _says(cost=bound), 0.1) == ""


@pytest.mark.parametrize(
    ("now", "changed"), [(0.1, False), (0.14, False), (0.16, False), (0.18, True), (0.065, False), (0.059, True)]
)
def test_news_is_what_is_beyond_one_and_a_half_times_by_all_that_a_measure_leaves_open(
    now: float, changed: bool
) -> None:
    answer = slow_report((2,), 0.1, 20.0)
    incident = msgspec.structs.replace(_slow(_cost(now)), report=answer)
    assert slowness.has_changed(incident) is changed


def test_another_rank_is_news_and_what_cannot_be_compared_is_none() -> None:
    def changed(now: Slowness | None, before: float = 0.1, ranks: tuple[int, ...] = (2,)) -> bool:
        incident = _slow(now, ranks=ranks)
        return slowness.has_changed(msgspec.structs.replace(incident, report=slow_report((2,), before, 20.0)))

    assert changed(_cost(0.1), ranks=(1,))
    assert not changed(None, ranks=(1,))
    assert not changed(_cost(0.5), before=0.0)
    assert not slowness.has_changed(_slow(_cost(0.5))), "without a verdict"
    no_finding = msgspec.structs.replace(_slow(_cost(0.5)), findings=(), report=slow_report((2,), 0.1, 20.0))
    assert not slowness.has_changed(no_finding)


def test_detection_and_a_look_agree_where_both_say_that_the_same_ranks_hold_the_job_back() -> None:
    assert slowness.agrees(_slow(), _says())
    assert not slowness.agrees(_slow(ranks=(1,)), _says())
    assert not slowness.agrees(_slow(), _says("not_entered"))
    assert not slowness.agrees(msgspec.structs.replace(_slow(), findings=()), _says())
    assert slowness.untold(_slow(None, "suspect", ranks=(1,)), _says(cost=_cost(0.1)), 0.03) == "", "the look is sure"
    no_finding = msgspec.structs.replace(_slow(), findings=())
    assert slowness.untold(no_finding, _says(cost=_cost(0.1)), 0.03) == ""
    by_others = msgspec.structs.replace(_says("not_entered"), because=(Fact("many steps", BY_STEPS),))
    assert slowness.measured(_slow(_cost(0.1)), [by_others]) == by_others
