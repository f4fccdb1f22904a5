"""Of two members of a group, what tells which one differs: no majority does."""

import pytest

from stallwatch.diagnosis import judge
from stallwatch.model.verdict import Verdict
from tests.builders.job import SLEEPS, Call, Group, Rank, evidence, transfer, world

W2 = world(2)
A, B, C = (Call(W2, elements=size, line=size) for size in (10, 20, 30))
# One step: the pair A B twice, then C.
STEP = (A, B, A, B, A, B, C)


def _judged(zero: tuple[Call, ...], one: tuple[Call, ...], agreed: int) -> Verdict:
    """Both stand in call number `agreed` + 1."""
    ranks = [Rank(0, zero[: agreed + 1], agreed), Rank(1, one[: agreed + 1], agreed)]
    return judge(evidence(*ranks, world_size=2)).verdicts[0]


@pytest.mark.parametrize("skipped", [7 + 1, 7 + 3, 7 + 5])
def test_a_call_too_few_in_a_loop_within_the_step_is_told_by_the_step_before(skipped: int) -> None:
    """The pair before is the same in each round of the loop: only how many rounds there were tells the next call."""
    usual = STEP * 2
    short = (*usual[:skipped], *usual[skipped + 1 :])
    verdict = _judged(usual, short, skipped)
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", (1,))


@pytest.mark.parametrize("rounds_missing", [1, 2])
def test_a_loop_of_fewer_rounds_is_told_by_the_rounds_of_the_step_before(rounds_missing: int) -> None:
    usual = STEP * 2
    short = (*STEP, *STEP[2 * rounds_missing :])
    agreed = len(STEP) + len(STEP) - 1 - 2 * rounds_missing
    assert usual[:agreed] == short[:agreed]
    verdict = _judged(usual, short, agreed)
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", (1,))


def test_a_call_from_a_line_that_was_never_seen_is_the_odd_one_but_only_possibly() -> None:
    """All calls look alike, so that no history of operations tells."""
    first = tuple(Call(W2, elements=size, line=10) for size in (5, 6, 5, 6))
    extra = Call(W2, elements=5, line=140)
    verdict = _judged((*first, first[0]), (*first, Call(W2, "broadcast", 5, line=140)), 4)
    assert (verdict.culprits, verdict.confidence) == ((1,), "possible")
    assert extra.line == 140


def test_a_line_that_was_passed_once_has_no_habit() -> None:
    """An object collective: one line makes two calls. The other rank left out the first of them."""
    sizes, content = Call(W2, "all_gather", 1, "Long", line=110), Call(W2, "all_gather", 512, "Byte", line=110)
    log = Call(W2, elements=1, line=120)
    start = (A, B)
    verdict = _judged((*start, sizes, log), (*start, sizes, content), 3)
    assert verdict.confidence == "possible"
    assert verdict.culprits != (1,)


def test_the_rank_that_has_used_none_of_a_kind_belongs_to_the_group_that_lacks_one() -> None:
    groups = [Group(str(1 + n), f"dp{n}", (3 * n, 3 * n + 1, 3 * n + 2), 1) for n in range(3)]
    start = Call(world(9))
    inside = [Rank(r, (start, Call(groups[r // 3])), 2, backend="gloo", members_known=False) for r in range(6)]
    lack = [Rank(r, (start, Call(groups[2])), 1, backend="gloo", members_known=False) for r in (6, 7)]
    away = Rank(8, (start,), 1, backend="gloo", members_known=False, frames=SLEEPS)
    verdict = judge(evidence(*inside, *lack, away, world_size=9)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (8,))
    assert verdict.process_group is not None
    assert verdict.process_group.ranks == (6, 7, 8)


def test_a_group_whose_members_are_not_known_is_not_said_to_be_entered_by_all() -> None:
    group = Group("1", "odd", (0, 1, 2), 1)
    inside = [Rank(rank, (Call(group),), 0, backend="gloo", members_known=False) for rank in (0, 1)]
    others = [Rank(rank, (Call(world(4)),), 1, backend="gloo", members_known=False) for rank in (2, 3)]
    verdict = judge(evidence(*inside, *others, world_size=4)).verdicts[0]
    assert verdict.cause != "comm_stuck"
    assert any(item.cause == "comm_stuck" and "ranks 2-3 may be one" in item.why for item in verdict.rejected)


def test_groups_that_overlap_in_a_ring_accuse_nobody_who_is_in_none_of_them() -> None:
    """Ranks 0 to 2 each stand in the pair that the next has not come to; rank 3 is in no pair and waits in the step.
    Nobody wrote down who is in the pairs, and there is but one rank left for three of them."""
    pairs = [Group(str(1 + n), "undefined", tuple(sorted((n, (n + 1) % 3))), 1) for n in range(3)]
    steps = tuple(Call(world(4)) for _ in range(6))
    inside = [Rank(n, (*steps[:5], Call(pairs[n])), 5, backend="gloo", members_known=False) for n in range(3)]
    verdict = judge(evidence(*inside, Rank(3, steps, 5, backend="gloo", members_known=False), world_size=4)).verdicts[0]
    assert 3 not in verdict.culprits


def test_in_a_first_step_a_new_line_is_not_odd_where_the_other_member_left_out_the_call_of_its_peers() -> None:
    """Every line is new once: rank 0 left out a call, which its peers of the same stage make there."""
    everybody = Call(world(8), line=90)
    ranks = []
    for rank in range(4):
        pair, stages = (
            Group("1", f"dp{rank // 2}", (rank & 2, rank | 1), 1),
            Group("2", f"pp{rank}", (rank, rank + 4), 2),
        )
        one, two = Call(pair, elements=20, line=60), Call(pair, elements=80, line=63)
        send, receive = transfer(stages, ("send", 1), line=53), transfer(stages, ("recv", 0), line=30)
        sends = (one, two, send, one, two, send, everybody)
        stands = {0: Rank(0, (one, send, one), 2), 1: Rank(1, (one, two), 1)}
        ranks.append(stands.get(rank, Rank(rank, sends, len(sends) - 1)))
        came = {0: 1, 1: 0}.get(rank, 2)
        ranks.append(Rank(rank + 4, (receive, receive, everybody)[: came + 1], came))
    verdict = judge(evidence(*ranks, world_size=8)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", (0,)), verdict.summary
