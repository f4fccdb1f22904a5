"""One measure of slowness, and how long a look at it lasts."""

import msgspec
import pytest

from stallwatch.detectors.slow import SlowReason
from stallwatch.incidents import slowness
from stallwatch.model.incident import Incident
from stallwatch.model.verdict import CulpritProcess, Fact, Frame, Slowness, Verdict, cost_of
from stallwatch.progress.job_progress import BY_STEPS
from tests.unit.incidents.stories import Story, facts, finding, slow_report


def _incident(detector: str, step_seconds: float | None) -> Incident:
    cost = None if step_seconds is None else Slowness(0.1, 0.1, 0.1, step_seconds, 20, 10.0)
    story = Story()
    story.at(20, msgspec.structs.replace(finding(detector, "suspect"), slowness=cost), jobs=[facts(moved=True)])
    return story.incident


@pytest.mark.parametrize(
    ("step_seconds", "seconds"), [(None, 5), (0.05, 5), (0.2, 5), (2.0, 8), (5.0, 12)], ids=lambda value: str(value)
)
def test_a_look_at_a_slow_rank_sees_some_of_its_steps(step_seconds: float | None, seconds: int) -> None:
    assert slowness.profile_seconds(_incident("slow", step_seconds), 2) == seconds
    assert slowness.profile_seconds(_incident("slow", step_seconds), 1) <= seconds


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
