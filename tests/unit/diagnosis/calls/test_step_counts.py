"""A call too many or too few of the same shape, seen by how many calls each rank makes in a step."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis.calls.sample_verdict import judge_sample
from stallwatch.diagnosis.calls.step_counts import offsets, step_counts
from stallwatch.model.evidence import Evidence, RankEvidence
from stallwatch.model.summary import Offset, SampleMemory
from stallwatch.model.verdict import Verdict
from tests.builders.heartbeat import heartbeat
from tests.builders.job import FIRST_CALL_WALL_NS, STEP_NS, Call, Rank, world

W4 = world(4)
ONE = Call(W4, elements=7)
# The node's clocks: CLOCK_MONOTONIC was 0 when the first call was made.
WALL_MINUS_MONOTONIC_NS = FIRST_CALL_WALL_NS
STEPS = 40
NOTHING_YET = SampleMemory()


def _sampled(rank: int, *, per_step: int = 1, extra_at: int | None = None, until: int = STEPS) -> RankEvidence:
    """A rank that makes `per_step` calls and counts a step, again and again; at one step one call more."""
    calls: list[Call] = []
    ends: list[int] = []
    for step in range(until):
        calls += [ONE] * (per_step + (step == extra_at))
        ends.append(len(calls) * STEP_NS - STEP_NS // 2)  # after its last call, before the next step's first
    evidence = Rank(rank, (*calls, ONE), looks=1).evidence()
    beat = heartbeat(
        rank,
        step=until,
        last_step_ns=ends[-1],
        step_durations_ns=tuple(b - a for a, b in pairwise(ends))[-30:],
    )
    return replace(evidence, heartbeat=(beat,))


def _judge(
    ranks: Sequence[RankEvidence], before: SampleMemory = NOTHING_YET
) -> tuple[tuple[Verdict, ...], SampleMemory]:
    evidence = Evidence(4, "nccl", tuple(ranks), (), ())
    return judge_sample(evidence, before, WALL_MINUS_MONOTONIC_NS)


def _two_samples(**odd: int) -> tuple[Verdict, ...]:
    """Rank 2 is odd between the samples."""
    per_step = odd.get("per_step", 1)
    first, memory = _judge([_sampled(rank, per_step=per_step, until=30) for rank in range(4)])
    assert first == ()
    second = [_sampled(rank, per_step=per_step, until=90) for rank in (0, 1, 3)]
    found, _ = _judge([*second, _sampled(2, per_step=per_step, until=90, extra_at=odd.get("extra_at"))], memory)
    return found


def test_one_call_more_of_the_same_shape_is_told_with_its_rank() -> None:
    (verdict,) = _two_samples(per_step=3, extra_at=40)
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("collective_mismatch", (2,), "likely")
    assert verdict.mismatch is not None
    assert (verdict.mismatch.kind, verdict.mismatch.found) == ("count", "one call more")
    assert "still moves" in verdict.summary


def test_where_a_step_is_one_call_a_step_not_counted_looks_the_same_and_that_is_said() -> None:
    (verdict,) = _two_samples(extra_at=40)
    assert (verdict.culprits, verdict.confidence) == ((2,), "possible")
    assert any("does not count" in fact.fact for fact in verdict.because)


def test_a_healthy_job_is_not_off() -> None:
    assert _two_samples() == ()


def test_a_rank_that_counts_otherwise_from_the_start_is_its_program() -> None:
    ranks = [_sampled(0, extra_at=0), *(_sampled(rank) for rank in (1, 2, 3))]
    _, memory = _judge(ranks)
    assert [one.offset for one in memory.offsets] == [1, 0, 0, 0]
    assert _judge(ranks, memory)[0] == ()


def test_a_shift_is_told_at_every_later_sample() -> None:
    _, memory = _judge([_sampled(rank, until=30) for rank in range(4)])
    odd = [*(_sampled(rank, until=90) for rank in (0, 1, 3)), _sampled(2, until=90, extra_at=40)]
    for _ in range(3):
        found, memory = _judge(odd, memory)
        assert [verdict.culprits for verdict in found] == [(2,)]


def test_while_steps_do_not_agree_nothing_is_known() -> None:
    """The call more fell into the steps that the sample holds."""
    ranks = [_sampled(2, extra_at=25, until=30), *(_sampled(rank, until=30) for rank in (0, 1, 3))]
    known = offsets(count for rank in ranks for count in step_counts(rank, WALL_MINUS_MONOTONIC_NS))
    assert [one.rank for one in known] == [0, 1, 3]


@pytest.mark.parametrize("count", [1, 2])
def test_of_two_nobody_is_off(count: int) -> None:
    ranks = [_sampled(rank) for rank in range(count)]
    assert offsets(c for rank in ranks for c in step_counts(rank, WALL_MINUS_MONOTONIC_NS)) == ()


def test_half_of_a_group_is_no_minority() -> None:
    _, memory = _judge([_sampled(rank, until=30) for rank in range(4)])
    odd = [_sampled(rank, until=90, extra_at=40) for rank in (0, 1)]
    assert _judge([*odd, _sampled(2, until=90), _sampled(3, until=90)], memory)[0] == ()


def test_a_clock_that_is_set_while_it_is_sampled_moves_all_ranks_alike() -> None:
    """Wall clocks step; the ranks of a node share them."""
    _, memory = _judge([_sampled(rank, until=30) for rank in range(4)])
    evidence = Evidence(4, "nccl", tuple(_sampled(rank, until=90) for rank in range(4)), (), ())
    assert judge_sample(evidence, memory, WALL_MINUS_MONOTONIC_NS + 3 * STEP_NS)[0] == ()


def test_without_steps_or_times_nothing_is_counted() -> None:
    rank = _sampled(0)
    assert step_counts(replace(rank, heartbeat=()), 0) == ()
    assert step_counts(replace(rank, heartbeat=(heartbeat(0),)), 0) == ()
    assert step_counts(replace(rank, recorders=()), 0) == ()
    timeless = tuple(replace(operation, created_ns=None) for operation in rank.recorders[0].operations)
    assert step_counts(replace(rank, recorders=(replace(rank.recorders[0], operations=timeless),)), 0) == ()


def test_a_difference_of_type_is_a_verdict_of_the_sample() -> None:
    odd = Call(W4, elements=7, dtype="Int")
    ranks = [Rank(rank, (*[ONE] * 10, odd if rank == 3 else ONE, *[ONE] * 20)).evidence() for rank in range(4)]
    (verdict,) = _judge(ranks)[0]
    assert (verdict.culprits, verdict.seq, verdict.confidence) == ((3,), 11, "likely")
    assert verdict.mismatch is not None
    assert (verdict.mismatch.kind, verdict.mismatch.expected, verdict.mismatch.found) == ("dtype", "Float", "Int")
    assert verdict.culprit_processes[0].pid == 1003
    assert all("never ends" not in step for step in verdict.next_steps)


def test_a_difference_that_somebody_still_waits_in_is_left_to_the_look_at_a_hang() -> None:
    calls = [(*[ONE] * 10, Call(W4, elements=9) if rank == 3 else ONE) for rank in range(4)]
    assert _judge([Rank(rank, own, done=10).evidence() for rank, own in enumerate(calls)])[0] == ()


def test_offsets_are_kept_apart_by_group() -> None:
    _, memory = _judge([_sampled(rank) for rank in range(4)])
    assert all(isinstance(one, Offset) and one.group.ranks == (0, 1, 2, 3) for one in memory.offsets)
