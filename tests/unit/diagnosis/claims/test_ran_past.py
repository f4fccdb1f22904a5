"""A rank that others wait for and whose steps go on: it passed the call."""

from typing import Any

import msgspec
import pytest

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import Evidence, RankEvidence
from stallwatch.model.snapshot import Heartbeat
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import heartbeat
from tests.builders.job import SLEEPS, Call, Rank, evidence, loop, world

STEPS = loop(world(4), 6)
STEP_NS = SECOND_NS // 20


def beat(rank: int, step: int, last_step_ns: int) -> Heartbeat:
    return heartbeat(
        rank,
        step=step,
        last_step_ns=last_step_ns,
        step_durations_ns=(STEP_NS,) * 8,
        pulse_count=9,
        pulse_ns=last_step_ns,
    )


def job(step: int, seconds_after: float, step_before: int | None = None, calls: tuple[Call, ...] = STEPS) -> Evidence:
    """Ranks 0 to 2 wait since step 63, after these calls; rank 3, outside of the call, was at `step` so many seconds
    later."""

    def with_beats(rank: RankEvidence, *beats: Heartbeat) -> RankEvidence:
        return msgspec.structs.replace(rank, heartbeat=beats)

    stopped_ns = 100 * SECOND_NS
    later_ns = stopped_ns + int(seconds_after * SECOND_NS)
    waiting = [Rank(r, (*calls, STEPS[0]), len(calls), backend="gloo") for r in range(3)]
    told = evidence(*waiting, Rank(3, calls, frames=SLEEPS, backend="gloo"))
    before = beat(3, step - 40 if step_before is None else step_before, later_ns - 40 * STEP_NS)
    ranks = [with_beats(rank, *[beat(rank.rank, 63, stopped_ns)] * 2) for rank in told.ranks[:3]]
    ranks.append(with_beats(told.ranks[3], before, beat(3, step, later_ns)))
    return msgspec.structs.replace(told, ranks=tuple(ranks))


def test_a_rank_that_goes_on_by_itself_is_not_waited_for_in_patience() -> None:
    verdict = judge(job(294, 11.5)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.where) == ("not_entered", (3,), "user_code")
    assert "has gone on for 231 steps without all_reduce number 13, in which ranks 0-2 wait" in verdict.summary
    assert "no_sync()" in " ".join(verdict.next_steps)
    assert verdict.ends_by_itself is None  # it sleeps within its steps, and its step ends; the others' wait does not


@pytest.mark.parametrize(
    ("step", "seconds_after"),
    [
        (62, 11.5),  # behind the others: late
        (66, 0.15),  # a loop that launches ahead
        (5000, 11.5),  # it counts something else, and always did
    ],
)
def test_a_rank_that_was_never_in_step_or_is_behind_is_waited_for(step: int, seconds_after: float) -> None:
    assert judge(job(step, seconds_after, step - 1)).verdicts[0].cause == "waiting"


@pytest.mark.parametrize("calls", [(), STEPS[:1]])
def test_who_steps_without_calls_as_the_others_did_until_they_were_done_has_left_none_out(
    calls: tuple[Call, ...],
) -> None:
    """Predictions of shards of unequal size: ranks meet when they are done with theirs."""
    assert judge(job(143, 4.0, calls=calls)).verdicts[0].cause == "waiting"


@pytest.mark.parametrize("unlike", [{"heartbeat": ()}, {"host": "node1"}])
def test_steps_are_compared_where_all_that_wait_count_theirs_by_the_same_clock(unlike: dict[str, Any]) -> None:
    told = job(294, 11.5)
    ranks = (msgspec.structs.replace(told.ranks[0], **unlike), *told.ranks[1:])
    verdict = judge(msgspec.structs.replace(told, ranks=ranks)).verdicts[0]
    assert "has gone on for" not in verdict.summary
