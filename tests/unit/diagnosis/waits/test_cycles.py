"""Cycles of waits, of groups and of messages: that they are told, and which rank began one."""

import pytest

from stallwatch.diagnosis import judge
from tests.builders.job import Call, Group, Rank, evidence, loop, transfer, world

W4 = world(4)


STEPS = loop(W4, 6)


def test_opposite_order_of_two_groups_is_a_cycle() -> None:
    pair = world(2)
    other = Group("1", "second", (0, 1), 1)
    ranks = [Rank(0, (Call(pair), Call(other)), 0), Rank(1, (Call(other), Call(pair)), 0)]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("group_order", (0, 1))


def test_the_rank_that_left_its_habit_started_the_cycle() -> None:
    other = Group("1", "side", (0, 1, 2, 3), 1)
    past = (Call(W4, line=10), Call(other, line=20)) * 4
    ranks = [Rank(r, (*past, Call(W4, line=10)), len(past)) for r in (0, 1, 3)]
    ranks.insert(2, Rank(2, (*past, Call(other, line=20)), len(past)))
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("group_order", (2,))


@pytest.mark.parametrize("members_known", [True, False])
def test_groups_without_names_and_of_the_same_members_are_told_apart_in_the_order_of_calls(
    members_known: bool,
) -> None:
    first, second = Group("1", "undefined", (0, 1, 2, 3), 1), Group("2", "undefined", (0, 1, 2, 3), 2)
    past = (Call(first, line=20), Call(second, line=20)) * 4
    ranks = [
        Rank(
            r,
            (*past, Call(second if r == 1 else first, line=20)),
            len(past),
            backend="gloo",
            members_known=members_known,
        )
        for r in range(4)
    ]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("group_order", (1,))
    assert any("where it had always called it in another group first" in fact.fact for fact in verdict.because)
    assert not any("undefined" in fact.fact for fact in verdict.because)


def test_two_receives_are_a_cycle_of_transfers() -> None:
    ranks = [
        Rank(0, (*STEPS, transfer(W4, ("recv", 1))), len(STEPS)),
        Rank(1, (*STEPS, transfer(W4, ("recv", 0))), len(STEPS)),
        *(Rank(rank, (*STEPS, STEPS[0]), len(STEPS)) for rank in (2, 3)),
    ]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("p2p_unmatched", (0, 1))


def test_one_call_less_in_a_run_of_equal_calls_started_the_cycle() -> None:
    """Four equal calls a step, then the world's: three of them and the world's come in every step as well."""
    pairs = [Group("1", "cp0", (0, 1), 1), Group("2", "cp1", (2, 3), 1)]

    def step(rank: int) -> tuple[Call, ...]:
        return (*(Call(pairs[rank // 2], line=20) for _ in range(4)), Call(W4, line=30))

    past = {rank: step(rank) * 3 for rank in range(4)}
    ranks = [
        Rank(0, (*past[0], *step(0)), len(past[0]) + 3),
        Rank(1, (*past[1], *step(1)[1:]), len(past[1]) + 3),
        *(Rank(rank, (*past[rank], *step(rank)), len(past[rank]) + 4) for rank in (2, 3)),
    ]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.culprits, verdict.confidence) == ((1,), "likely")


def test_who_started_a_cycle_over_groups_is_only_possible_where_nothing_tells() -> None:
    pair = world(2)
    other = Group("1", "second", (0, 1), 1)
    ranks = [Rank(0, (Call(pair), Call(other)), 0), Rank(1, (Call(other), Call(pair)), 0)]
    assert judge(evidence(*ranks)).verdicts[0].confidence == "possible"


def test_of_a_cycle_in_a_first_step_the_rank_is_possible_without_which_there_would_be_none() -> None:
    other = Group("1", "second", (0, 1, 2, 3), 1)
    ranks = [Rank(r, (Call(W4), Call(other))[:: -1 if r == 2 else 1], 0) for r in range(4)]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.culprits, verdict.confidence) == ((2,), "possible")


def test_of_a_cycle_that_several_but_not_all_may_have_begun_nobody_is_named() -> None:
    """Ranks 0 to 2 lie in all of its ways, 3 and 4 in one each."""
    ends = {0: (1,), 1: (2,), 2: (3, 4), 3: (0,), 4: (0,)}
    ranks = [Rank(r, (transfer(world(5), *(("recv", of) for of in ends[r]), batched=True),), 0) for r in range(5)]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("p2p_unmatched", (), "possible")
