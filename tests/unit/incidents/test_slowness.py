"""One measure of slowness, and how long a look at it lasts."""

import msgspec
import pytest

from stallwatch.incidents import slowness
from stallwatch.model.incident import Incident
from stallwatch.model.verdict import Slowness, cost_of
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


def test_what_detection_saw_stands_beside_what_a_look_saw() -> None:
    story = Story()
    cost = Slowness(0.1, 0.1, 0.1, 0.3, 20, 10.0)
    reason = f"rank 2 holds the others back; {cost_of(cost)}; its GPU is slow"
    slow = msgspec.structs.replace(finding("slow", "suspect"), reason=reason, slowness=cost)
    story.at(20, slow, jobs=[facts(moved=True)])
    (verdict,) = slow_report((0, 1, 2, 3), 0.06, 10.0).verdicts
    facts_now = [fact.fact for fact in slowness.measured(story.incident, verdict).because]
    assert "rank 2 holds the others back; its GPU is slow" in facts_now, "and one figure of what it costs"
