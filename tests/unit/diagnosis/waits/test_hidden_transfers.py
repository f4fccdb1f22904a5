"""Ranks that may wait in a message that their back end does not record: nobody is accused of it for certain."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import CodeFrame, SourceLine
from tests.builders.job import IN_RECV, SLEEPS, Call, Group, Rank, evidence, loop, world

W4 = world(4)
STEPS = loop(W4, 6)
IN_REDUCE = (CodeFrame("all_reduce", IN_RECV[0].filename, 3000), *IN_RECV[1:])
NATIVE = (CodeFrame("exchange", "/srv/job/ring.py", 40), *SLEEPS[1:])  # a call into C shows no frame of its own


def _job(*absent: int) -> tuple[str, tuple[int, ...], str]:
    ranks = [
        Rank(rank, STEPS[:-1], backend="gloo", frames=NATIVE, wchan="futex_do_wait")
        if rank in absent
        else Rank(rank, STEPS, len(STEPS) - 1, backend="gloo")
        for rank in range(4)
    ]
    first = judge(evidence(*ranks)).verdicts[0]
    return first.cause, first.culprits, first.confidence


def test_one_that_stands_in_native_code_may_wait_for_a_message_and_is_only_possibly_the_cause() -> None:
    cause, culprits, confidence = _job(3)
    assert (cause, culprits) == ("not_entered", (3,))
    assert confidence == "possible"


def test_of_several_that_stand_so_nobody_is_named() -> None:
    assert _job(2, 3)[1] == ()


def test_under_gloo_a_rank_without_a_stack_may_stand_in_a_transfer_like_the_others() -> None:
    unseen = Rank(3, STEPS, backend="gloo", wchan="futex_do_wait")
    stands = [Rank(r, STEPS, frames=IN_RECV, wchan="futex_do_wait", backend="gloo") for r in (0, 1)]
    waits = Rank(2, (*STEPS, STEPS[0]), len(STEPS), backend="gloo")
    verdict = judge(evidence(*stands, waits, unseen)).verdicts[0]
    assert verdict.confidence == "possible"


@pytest.mark.parametrize(("backend", "culprits"), [("gloo", ()), ("nccl", (2, 3))])
def test_under_gloo_of_several_without_a_stack_one_may_stand_in_a_transfer_with_another(
    backend: str, culprits: tuple[int, ...]
) -> None:
    waits = [Rank(r, (*STEPS, STEPS[0]), len(STEPS), backend=backend) for r in (0, 1)]
    unseen = [Rank(r, STEPS, backend=backend, wchan="futex_do_wait") for r in (2, 3)]
    verdict = judge(evidence(*waits, *unseen)).verdicts[0]
    assert verdict.culprits == culprits, verdict.summary
    assert culprits or "a stack of ranks 2-3" in verdict.missing


@pytest.mark.parametrize(("frames", "culprits"), [(IN_RECV, ()), (IN_REDUCE, (2,))])
def test_under_gloo_one_without_a_stack_is_in_no_transfer_where_those_without_a_dump_stand_in_collectives(
    frames: tuple[CodeFrame, ...], culprits: tuple[int, ...]
) -> None:
    """Rank 3 stands in a message, for which rank 2 may wait as well; or in what all others wait in."""
    waits = [Rank(r, (*STEPS, STEPS[0]), len(STEPS), backend="gloo") for r in (0, 1)]
    unseen = Rank(2, STEPS, backend="gloo", wchan="futex_do_wait")
    undumped = Rank(3, dumped=False, frames=frames, wchan="futex_do_wait", backend="gloo")
    verdict = judge(evidence(*waits, unseen, undumped)).verdicts[0]
    assert (verdict.culprits, verdict.confidence) == (culprits, "possible"), verdict.summary


@pytest.mark.parametrize("unseen", [False, True])
def test_under_gloo_who_waits_at_the_end_left_those_that_stand_in_transfers(unseen: bool) -> None:
    end = Call(W4, "barrier", line=80)
    ranks = [Rank(0, (*STEPS, end), len(STEPS), backend="gloo")]
    ranks += [Rank(r, STEPS, frames=IN_RECV, wchan="futex_do_wait", backend="gloo") for r in (1, 2)]
    ranks += [Rank(3, STEPS, frames=() if unseen else IN_RECV, wchan="futex_do_wait", backend="gloo")]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("data_exhausted", (0,))


def test_of_two_under_gloo_the_one_at_the_end_left_the_other() -> None:
    pair = world(2)
    steps = loop(pair, 4)
    end = Rank(0, (*steps, Call(pair, "barrier", line=80)), len(steps), backend="gloo")
    stands = Rank(1, steps, frames=IN_RECV, wchan="futex_do_wait", backend="gloo")
    verdict = judge(evidence(end, stands)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("data_exhausted", (0,))


def test_under_gloo_a_rank_without_a_dump_that_stands_in_a_receive_is_not_in_the_collective() -> None:
    pair = world(2)
    steps = loop(pair, 4)
    waits = Rank(1, (*steps, steps[0]), len(steps), backend="gloo")
    stands = Rank(0, dumped=False, frames=IN_RECV, wchan="futex_do_wait", backend="gloo")
    verdict = judge(evidence(stands, waits)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("p2p_unmatched", ()), "it waits for a message, and who owes it one?"
    assert verdict.next_steps[0].startswith("Look at rank ") and "has left one out" in verdict.next_steps[0]
    assert not any("not read" in step for step in verdict.next_steps)


@pytest.mark.parametrize(("size", "cause"), [(2, "p2p_unmatched"), (4, "undecided")])
def test_that_all_stand_in_messages_is_said_only_where_all_were_seen(size: int, cause: str) -> None:
    """Half of a pipeline waits for its neighbours in health, too."""
    stands = [Rank(rank, frames=IN_RECV, wchan="futex_do_wait", backend="gloo") for rank in (0, 1)]
    assert judge(evidence(*stands, world_size=size)).verdicts[0].cause == cause


def test_a_wait_for_a_message_is_not_that_of_another_thread_of_the_rank() -> None:
    """Metrics threads of all but rank 3 wait for it; rank 2 stands in a message of rank 3, and has not come either."""
    metrics = Call(Group("9", "metrics", (0, 1, 2, 3), 9), thread="2")
    steps = tuple(call for step in STEPS for call in (step, metrics))
    waits = [Rank(rank, (*steps, STEPS[0], metrics), len(steps), backend="gloo") for rank in (0, 1)]
    stands = Rank(2, (*steps, metrics), len(steps), backend="gloo", frames=NATIVE, wchan="futex_do_wait")
    absent = Rank(3, backend="gloo", frames=SLEEPS, dumped=False)
    told = evidence(*waits, stands, absent)
    line = (SourceLine(NATIVE[0].filename, NATIVE[0].line, "req.wait()"),)
    told = replace(told, ranks=tuple(replace(r, sources=line) if r.rank == 2 else r for r in told.ranks))
    verdict = judge(told).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (3,)), verdict.summary


def test_of_two_that_left_the_program_in_different_ways_neither_is_named() -> None:
    group, pair = world(8), Group("1", "pair", (1, 2), 1)
    steps = (Call(pair), *loop(group, 6))
    left = [(*steps[1:], Call(group, "barrier", line=80)), (*steps, Call(pair, elements=3, line=77))]
    ranks = [Rank(r, calls, len(calls) - 1, backend="gloo") for r, calls in enumerate(left)]
    ranks += [Rank(r, steps[r > 2 :], frames=IN_RECV, wchan="futex_do_wait", backend="gloo") for r in range(2, 8)]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert verdict.culprits == (), verdict.summary


@pytest.mark.parametrize("seen", [True, False])
def test_a_rank_s_own_habits_name_it_only_where_all_its_peers_were_seen(seen: bool) -> None:
    row = Group("1", "row", (0, 1), 1)
    steps = tuple(call for step in STEPS for call in (Call(row, line=5), step))
    calls = (*steps, Call(row, "broadcast", 3, line=77))
    ranks = [Rank(0, calls, len(steps), backend="gloo")]
    ranks += [
        Rank(r, steps[0 if r == 1 else 1 :: 1 if r == 1 else 2], frames=IN_RECV, wchan="futex_do_wait", backend="gloo")
        for r in (1, 2, 3)
    ]
    if not seen:
        ranks[1] = Rank(1, frames=IN_RECV, wchan="futex_do_wait", backend="gloo", dumped=False)
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert verdict.culprits == ((0,) if seen else ()), verdict.summary
    assert verdict.cause == ("collective_mismatch" if seen else "p2p_unmatched"), "no circle over groups is shown"


@pytest.mark.parametrize("alone", [True, False])
def test_what_all_members_of_a_group_do_alike_is_no_departure_from_their_habits(alone: bool) -> None:
    """Ranks 0 and 1 run programs of their own, and both, or one, call something new in a row; the others receive."""
    everybody, row = world(8), Group("1", "row", (0, 1), 1)
    first = {0: Group("2", "embedding", (0, 2), 2), 1: Group("3", "head", (1, 3), 3)}
    step, new, lacks = Call(everybody, line=10), Call(row, "broadcast", 3, line=77), Call(everybody, line=90)
    ranks = []
    for rank in range(8):
        own = (Call(first[rank % 2]),) if rank < 4 else ()
        steps = (*own, *((Call(row, line=5), step) if rank < 2 else (step,)) * 6)
        if rank == 0 or (rank == 1 and not alone):
            ranks.append(Rank(rank, (*steps, new, lacks), len(steps) + (not alone), backend="gloo"))
        else:
            ranks.append(Rank(rank, steps, frames=IN_RECV, wchan="futex_do_wait", backend="gloo"))
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert verdict.culprits == ((0,) if alone else ()), verdict.summary


@pytest.mark.parametrize("standing", [1, 4])
def test_of_more_that_left_the_program_alike_than_stand_in_messages_nobody_is_named(standing: int) -> None:
    """Each that has left owes somebody a message: four that went another way owe four."""
    everybody, rows = world(12), [Group(str(n), f"row{n}", tuple(range(4 * n - 4, 4 * n)), n) for n in (1, 2, 3)]
    step = Call(everybody, line=10)
    ranks = []
    for rank in range(12):
        in_row = Call(rows[rank // 4], line=5)
        calls: tuple[Call, ...] = (*(in_row, step) * 6, in_row)
        if rank < 4:
            calls = (*calls, Call(rows[0], "broadcast", 3, line=77), step)
        elif rank < 8:
            calls = (*calls, step)
        if rank >= 12 - standing:
            ranks.append(Rank(rank, calls[:12], frames=IN_RECV, wchan="futex_do_wait", backend="gloo"))
        else:
            ranks.append(Rank(rank, calls, len(calls) - 1, backend="gloo"))
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert verdict.culprits == ((0, 1, 2, 3) if standing > 1 else ()), verdict.summary


_SCHEDULES = "/opt/venv/lib/python3.11/site-packages/torch/distributed/pipelining/schedules.py"


def _stage(line: int) -> tuple[CodeFrame, ...]:
    calls = (CodeFrame("_wait_batch_p2p", _SCHEDULES, 683), CodeFrame("_step_microbatches", _SCHEDULES, line))
    return (*calls, CodeFrame("train", "/srv/job/train.py", 40), SLEEPS[-1])


@pytest.mark.parametrize("dumped", [True, False])
def test_stages_that_all_wait_for_a_neighbour_have_sends_and_receives_that_do_not_match(dumped: bool) -> None:
    """One stage has a micro-batch less: it waits for a gradient, the next one for an activation."""
    stages = [
        Rank(rank, frames=_stage(line), wchan="futex_do_wait", backend="gloo", dumped=dumped)
        for rank, line in enumerate((928, 938, 910, 910))
    ]
    verdict = judge(evidence(*stages)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("p2p_unmatched", ()), verdict.summary
    stages[3] = Rank(3, frames=SLEEPS, backend="gloo", dumped=dumped)
    verdict = judge(evidence(*stages)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (3,)), verdict.summary
