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
