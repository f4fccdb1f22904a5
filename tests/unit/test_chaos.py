"""The figures of tests/chaos: what they call growth, and what they call lost."""

import random
from collections import Counter
from types import SimpleNamespace

from tests.chaos.node import Told, twice
from tests.chaos.soak import grows, slope
from tests.chaos.stories import Result, Stories, unanswered


def test_a_slope_has_an_interval_that_holds_the_truth() -> None:
    chance = random.Random(1)
    points = [(at, 50 + 3 * at / 3600 + chance.gauss(0, 0.5)) for at in range(0, 3600, 5)]
    found = slope(points)
    assert found.low < 3 < found.high
    assert found.high - found.low < 1
    level = slope([(at, 50 + chance.gauss(0, 0.5)) for at in range(0, 3600, 5)])
    assert level.low < 0 < level.high


def test_what_leaks_grows_and_a_high_mark_that_is_reached_once_does_not() -> None:
    chance = random.Random(5)
    step = [(at, (25 if at < 480 else 28) + chance.gauss(0, 0.1)) for at in range(0, 2400, 5)]
    leak = [(at, 25 + 6.0 * at / 3600 + chance.gauss(0, 0.1)) for at in range(0, 2400, 5)]
    assert slope(step).low > 0 and slope(step).high > 4
    assert (grows(step), grows(leak)) == (False, True)


def test_of_too_few_points_no_slope_is_known() -> None:
    found = slope([(0, 1.0), (5, 2.0)])
    assert found.low == -found.high == float("-inf")


def told(step: str, incident: str = "a-1") -> Told:
    return Told("a", incident, step, "rank_exited", (1,))


def test_what_arrives_twice_is_counted_but_for_verdicts_that_change() -> None:
    messages = [told("told"), told("updated"), told("updated"), told("told"), told("resolved"), told("told", "a-2")]
    assert twice(messages) == Counter({("a-1", "told"): 1})


def test_anything_lost_is_no_good_result() -> None:
    assert Result(1).good
    assert not Result(1, untold=["job-1"]).good
    assert not Result(1, duplicates=["a-1 told"]).good
    assert not Result(1, left_behind=["python"]).good
    assert Result(1, excused=3).good
    assert "SOMETHING WAS LOST" in Result(1, false=["calm"]).lines()[-1]


def test_a_run_waits_until_both_outputs_have_told() -> None:
    """At load 24 a fault was called lost whose messages Slack took after the run was counted."""
    stories, node = object.__new__(Stories), SimpleNamespace(slack_texts=["job-1-killed ended"])
    first, second = (SimpleNamespace(name=f"job-{number}-killed", over_at=None) for number in (1, 2))
    stories._node, stories._stories = node, [first, second]  # type: ignore[assignment, list-item]
    first.over_at = 5.0
    assert not stories.all_over
    second.over_at = 6.0
    assert not stories.all_over
    node.slack_texts.append("job-2-killed told")
    assert stories.all_over


def test_a_message_that_nobody_answered_may_arrive_twice() -> None:
    line = "2026-11-30 01:33:51,519 level=WARNING logger=stallwatch.outputs slack: incident a-1, told: {}\n"
    log = line.format("no answer within 15 s") + line.format("503 busy")
    assert unanswered(log) == Counter({("slack", "a-1", "told"): 1})
