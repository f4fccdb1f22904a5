"""Waits that a recorder does not show: cut dumps, gloo's transfers; and calls that only look like transfers."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.diagnosis.recorder.signature import is_transfer
from stallwatch.model.evidence import CodeFrame, SourceLine
from tests.builders.job import IN_RECV, SLEEPS, Call, Group, Rank, evidence, loop, transfer, world

W4 = world(4)
STEPS = loop(W4, 6)
_TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
IN_REDUCE = (CodeFrame("all_reduce", _TORCH, 3000), CodeFrame("step", "/srv/job/train.py", 10), *SLEEPS[-1:])


def _waiting(*ranks: int, backend: str = "gloo") -> list[Rank]:
    return [Rank(r, (*STEPS, STEPS[0]), len(STEPS), backend=backend, frames=IN_REDUCE) for r in ranks]


def test_a_coalesced_collective_is_no_transfer() -> None:
    assert [is_transfer(name) for name in ("send 0->1", "recv 1<-0", "all_reduce (batch of 2)", "barrier")] == [
        True,
        True,
        False,
        False,
    ]


def test_a_rank_whose_dump_broke_off_and_that_stands_in_a_collective_is_not_accused() -> None:
    broken = Rank(3, STEPS, backend="gloo", frames=IN_REDUCE).evidence()
    cut = replace(broken, recorders=tuple(replace(recorder, cut_short=True) for recorder in broken.recorders))
    told = evidence(*_waiting(0, 1), Rank(2, STEPS, backend="gloo", frames=SLEEPS), world_size=4)
    verdict = judge(replace(told, ranks=(*told.ranks, cut))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (2,))


def test_where_gloo_transfers_are_under_way_a_rank_without_a_stack_may_be_in_one() -> None:
    """Rank 1 is seen elsewhere; of rank 2 only the record is left, and transfers are in no record."""
    ranks = [
        *_waiting(0),
        Rank(1, STEPS, backend="gloo", frames=SLEEPS),
        Rank(2, STEPS, backend="gloo", frames=()),
        Rank(3, STEPS, backend="gloo", frames=IN_RECV),
    ]
    verdict = judge(evidence(*ranks, world_size=4)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (1,))


def test_of_ranks_that_stand_in_transfers_nobody_is_named_where_each_may_wait_for_another() -> None:
    """Ranks 0 and 3 stand in receives; 1 waits for the one, 2 for the other. The message of each may be late because of
    any of them."""
    pairs = (Group("1", "ep0", (0, 1), 1), Group("2", "ep1", (2, 3), 2))
    steps = {rank: (Call(W4), Call(pairs[rank // 2])) * 4 for rank in range(4)}
    waiting = [Rank(rank, steps[rank], 7, backend="gloo", frames=IN_REDUCE) for rank in (1, 2)]
    received = [Rank(rank, steps[rank][:-1], backend="gloo", frames=IN_RECV) for rank in (0, 3)]
    assert judge(evidence(*waiting, *received, world_size=4)).verdicts[0].culprits == ()
    # Two for both of whom all others wait are the ends of one message.
    world_waits = [Rank(rank, (*STEPS, STEPS[0]), len(STEPS), backend="gloo", frames=IN_REDUCE) for rank in (1, 2)]
    both = [Rank(rank, STEPS, backend="gloo", frames=IN_RECV) for rank in (0, 3)]
    assert judge(evidence(*world_waits, *both, world_size=4)).verdicts[0].culprits == (0, 3)


def test_one_that_stands_in_a_transfer_may_wait_for_whom_nothing_is_known_of() -> None:
    """Rank 2 waits for rank 3 in their group; that one receives, and of the others no stack was read."""
    pairs = (Group("1", "tp0", (0, 1), 1), Group("2", "tp1", (2, 3), 2))
    steps = {rank: (Call(W4), Call(pairs[rank // 2])) * 4 for rank in range(4)}
    ranks = [
        *(Rank(rank, steps[rank], backend="gloo", frames=()) for rank in (0, 1)),
        Rank(2, steps[2], 7, backend="gloo", frames=IN_REDUCE),
        Rank(3, steps[3][:-1], backend="gloo", frames=IN_RECV),
    ]
    assert judge(evidence(*ranks, world_size=4)).verdicts[0].culprits == ()


def test_where_others_may_be_in_transfers_a_rank_of_which_there_is_only_a_dump_is_not_named() -> None:
    inside = (CodeFrame("ring", "/srv/job/ring.py", 4), *SLEEPS[1:])
    native = Rank(2, STEPS, backend="gloo", frames=inside, wchan="futex_do_wait")
    told = evidence(*_waiting(0, 1), native, Rank(3, STEPS, backend="gloo", frames=()), world_size=4)
    assert judge(told).verdicts[0].culprits == ()


def test_two_that_wait_for_each_other_are_a_deadlock_whatever_else_they_wait_for() -> None:
    """Ranks 0 and 1 entered two groups in opposite order; ranks 2 and 3, for which one of them waits too, stand in
    transfers that gloo does not record."""
    pair = Group("1", "pair", (0, 1), 1)
    both, own = Call(W4), Call(pair)
    history = (both, own) * 4
    ranks = [
        Rank(0, (*history, both), len(history), backend="gloo"),
        Rank(1, (*history, own), len(history), backend="gloo"),
        *(Rank(r, (both,) * 4, backend="gloo", frames=IN_RECV) for r in (2, 3)),
    ]
    verdict = judge(evidence(*ranks, world_size=4)).verdicts[0]
    assert verdict.cause == "group_order"
    assert set(verdict.culprits) <= {0, 1}


def test_stages_that_share_no_embedding_run_another_program_than_those_that_do() -> None:
    """gloo tells no stages. Ranks 0 and 3 reduce their tied embedding, 1 and 2 never do; rank 3 goes on without."""
    tied, pairs = Group("1", "embedding", (0, 3), 1), [Group(str(2 + n), f"dp{n}", (n, 3 - n), 2) for n in (0, 1)]
    log = Call(W4, elements=1, line=120)

    def step(rank: int, *, embedding: bool) -> tuple[Call, ...]:
        own = (Call(tied, elements=8, line=102),) if embedding else ()
        return (Call(pairs[min(rank, 3 - rank)], line=90), *own, log)

    calls = {rank: step(rank, embedding=rank in (0, 3)) * 4 for rank in range(4)}
    calls[0] += step(0, embedding=True)[:2]
    for rank in (1, 2, 3):
        calls[rank] += step(rank, embedding=False)
    verdict = judge(evidence(*(Rank(r, own, len(own) - 1, backend="gloo") for r, own in calls.items()))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("group_order", (3,))


def test_absent_ranks_are_named_whether_their_stacks_were_read_or_not() -> None:
    """Nobody stands in what no recorder shows: the dumps alone decide."""
    waiting = [Rank(r, (*STEPS, STEPS[0]), len(STEPS), frames=IN_REDUCE) for r in (0, 3)]
    ranks = [*waiting, Rank(1, STEPS, frames=SLEEPS), Rank(2, STEPS, frames=())]
    verdict = judge(evidence(*ranks, world_size=4)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (1, 2))


def test_beside_a_transfer_that_no_recorder_shows_only_who_was_seen_elsewhere_is_named() -> None:
    """Rank 2's build records transfers, and it may still stand in one of another group's: no stack tells."""
    sends = transfer(W4, ("send", 3))
    ranks = [
        *_waiting(0),
        Rank(1, STEPS, backend="gloo", frames=SLEEPS),
        Rank(2, (*STEPS, sends), backend="gloo", frames=()),
        Rank(3, STEPS, backend="gloo", frames=IN_RECV),
    ]
    assert judge(evidence(*ranks, world_size=4)).verdicts[0].culprits == (1,)


IN_WAIT = (CodeFrame("finish", "/srv/job/ring.py", 40), *SLEEPS[-1:])


def _groups(kind: str, members: tuple[tuple[int, ...], ...], first: int) -> list[Group]:
    return [Group(str(first + n), f"{kind}{n}", ranks, first + n) for n, ranks in enumerate(members)]


def _meshed(*ends: int) -> list[Rank]:
    """Two groups of three and three pairs, whose members gloo names nowhere. All have met in the pairs, and those that
    are none of `ends` have come to the first call of the groups of three, for which nobody has met before."""
    threes, pairs = _groups("dp", ((0, 2, 4), (1, 3, 5)), 1), _groups("tp", ((0, 1), (2, 3), (4, 5)), 3)
    told = []
    for rank in range(6):
        met = [Call(pairs[rank // 2], elements=64, line=10)] * 2
        calls = met if rank in ends else [*met, Call(threes[rank % 2], elements=8, line=20)]
        done = len(met) - (rank in ends)
        told.append(Rank(rank, tuple(calls), done if rank in ends else 2, backend="gloo", members_known=False))
    return told


def test_of_a_group_of_which_no_members_are_known_some_may_stand_in_another_that_is_whole() -> None:
    """Ranks 0 and 1 have both entered the second call of their pair, and it does not end."""
    verdict = judge(evidence(*_meshed(0, 1))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("comm_stuck", ()), verdict.summary
    assert verdict.operation == "all_reduce" and verdict.waiting == "0-5"
    assert verdict.process_group is not None and verdict.process_group.description == "tp0"


def test_of_a_group_of_which_no_members_are_known_one_may_stand_in_a_transfer() -> None:
    """Rank 1 has not come to the second call of its pair, and stands in a message."""
    ranks = _meshed(0, 1)
    ranks[1] = Rank(1, ranks[1].calls[:1], 1, backend="gloo", members_known=False, frames=IN_RECV)
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("p2p_unmatched", ()), verdict.summary


def test_beside_one_in_a_transfer_a_wait_without_a_name_is_of_one_too_and_nobody_is_named() -> None:
    """Rank 3 has recorded nothing yet and stands in `Work.wait`, which is C++; rank 2 waits for it perhaps."""
    source = SourceLine(IN_WAIT[0].filename, IN_WAIT[0].line, "req.wait()")
    pairs = _groups("tp", ((0, 1), (2, 3)), 1)
    waits = [
        Rank(2 * n, calls, len(calls) - 1, backend="gloo", members_known=False, frames=IN_REDUCE)
        for n, calls in enumerate(((Call(pairs[0]), Call(pairs[0])), (Call(pairs[1]),)))
    ]
    receives = Rank(1, (Call(pairs[0]),), 1, backend="gloo", members_known=False, frames=IN_RECV)
    told = evidence(*waits, receives, Rank(3, backend="gloo", frames=IN_WAIT, wchan="futex_do_wait"))
    ranks = tuple(replace(rank, sources=(source,)) if rank.rank == 3 else rank for rank in told.ranks)
    verdict = judge(replace(told, ranks=ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("p2p_unmatched", ()), verdict.summary


@pytest.mark.parametrize(("cut", "cause"), [(False, "p2p_unmatched"), (True, "undecided")])
def test_a_wait_without_a_name_is_of_a_transfer_only_where_the_record_is_whole(cut: bool, cause: str) -> None:
    """What they wait in may be among the entries that a file has lost."""
    source = SourceLine(IN_WAIT[0].filename, IN_WAIT[0].line, "req.wait()")
    told = evidence(*(Rank(r, STEPS, backend="gloo", frames=IN_WAIT, wchan="futex_do_wait") for r in range(4)))
    ranks = (
        replace(rank, sources=(source,), recorders=tuple(replace(one, cut_short=cut) for one in rank.recorders))
        for rank in told.ranks
    )
    verdict = judge(replace(told, ranks=tuple(ranks))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == (cause, ()), verdict.summary
