"""A circle of waits of which nobody is in the minority: what is told names nobody, and no place of nobody."""

from stallwatch.diagnosis import judge
from tests.builders.job import Call, Group, Rank, evidence, world

_WORLD = world(4)
_ONE, _OTHER = Group("1", "undefined", (0, 1, 2, 3), 1), Group("2", "undefined", (0, 1, 2, 3), 2)
_STEPS = (Call(_WORLD),) * 6


def test_two_halves_that_enter_their_groups_in_other_orders() -> None:
    def stands(rank: int, group: Group) -> Rank:
        return Rank(rank, (*_STEPS, Call(group, line=51)), len(_STEPS))

    told = judge(evidence(stands(0, _ONE), stands(1, _ONE), stands(2, _OTHER), stands(3, _OTHER))).verdicts[0]
    assert (told.cause, told.culprits) == ("group_order", ())
    assert "called at" in told.summary
    assert "train.py:51" in told.summary
    assert told.next_steps[0] == "Let every rank use its process groups in the same order."


def test_who_left_a_call_of_one_group_out_is_not_told_to_have_called_in_another_order_alone() -> None:
    """Both stand alike, in a call of the next group."""
    pairs = (Group("1", "ep", (0, 1), 1), Group("2", "ep", (2, 3), 2))

    def stands(rank: int, *last: Call) -> Rank:
        pair = pairs[rank // 2]
        steps = (Call(pair, "all_to_all", line=20), Call(_WORLD, line=30)) * 6
        calls = (*steps, *last)
        return Rank(rank, calls, len(calls) - 1)

    exchange = [Call(pair, "all_to_all", line=20) for pair in pairs]
    others = (stands(0, exchange[0], Call(_WORLD, line=30)), stands(1, exchange[0], Call(_WORLD, line=30)))
    told = judge(evidence(*others, stands(2, Call(_WORLD, line=30)), stands(3, exchange[1]))).verdicts[0]
    assert told.culprits == (2,)
    assert "left a call out" in told.summary
