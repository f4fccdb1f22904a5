"""Who waits for whom, point by point: what is shown, what is supposed, and of whom nothing is known."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis.activity import read_activity
from stallwatch.diagnosis.analysis import analyze_job
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.recorder.reduce import reduce_rank
from stallwatch.diagnosis.waits.graph import Blocker, Graph, Strength
from stallwatch.model.evidence import CodeFrame, NodeEvidence, RasCommunicator, RasRank
from tests.builders.job import IN_RECV, SLEEPS, Call, Group, Rank, loop, operations, recorder, transfer, world

W3, W4 = world(3), world(4)
STEPS = loop(W4, 6)
_TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
IN_REDUCE = (CodeFrame("all_reduce", _TORCH, 3000), CodeFrame("step", "/srv/job/train.py", 10), SLEEPS[-1])


def graph_of(
    *ranks: Rank,
    world_size: int = 4,
    captured_ns: Mapping[int, int] | None = None,
    nodes: tuple[NodeEvidence, ...] = (),
) -> Graph:
    told = [rank.evidence() for rank in ranks]
    told = [replace(rank, captured_at_ns=(captured_ns or {}).get(rank.rank, rank.captured_at_ns)) for rank in told]
    summaries, activities = [reduce_rank(rank) for rank in told], {rank.rank: read_activity(rank) for rank in told}
    return analyze_job(Case(summaries, activities, world_size, nodes, {rank.rank: rank for rank in told}, 2)).graph


def blockers(graph: Graph) -> list[tuple[Blocker, ...]]:
    return [found for _, found in sorted(graph.blockers.items())]


def test_a_call_that_its_recorder_would_show_is_no_hidden_wait() -> None:
    """Its dump is older than its stack, or the call has ended."""
    named = Rank(3, STEPS, backend="gloo", frames=IN_REDUCE)
    assert graph_of(*(Rank(rank, STEPS, backend="gloo") for rank in range(3)), named).unrecorded == ()
    receives = Rank(3, (*STEPS, transfer(W4, ("recv", 0))), len(STEPS), frames=IN_RECV)
    assert graph_of(*(Rank(rank, STEPS) for rank in range(3)), receives).unrecorded == (), "NCCL records transfers"
    connects = Rank(3, (*STEPS, transfer(W4, ("send", 0))), frames=IN_RECV)
    assert graph_of(*(Rank(rank, STEPS) for rank in range(3)), connects).unrecorded == (3,), "once both are connected"
    hidden = Rank(3, STEPS, backend="gloo", frames=IN_RECV)
    assert graph_of(*(Rank(rank, STEPS, backend="gloo") for rank in range(3)), hidden).unrecorded == (3,)


def test_a_rank_that_waits_for_a_program_beside_the_job_waits_for_no_rank() -> None:
    """It sends its weights to a server of inference by a group of the two, made without torch.distributed."""
    beside, barrier = Group("", "", (0,), 1), Call(W4, "barrier")
    frames = (CodeFrame("send_weights", "/srv/job/train.py", 30), SLEEPS[-1])
    others = [Rank(rank, (*STEPS, barrier), len(STEPS), backend="gloo", frames=IN_REDUCE) for rank in (1, 2, 3)]
    sends = Rank(0, (*STEPS, Call(beside, "broadcast")), len(STEPS), backend="gloo", frames=frames, members_known=False)
    graph = graph_of(sends, *others)
    assert {wait.rank for wait in graph.waits} == {1, 2, 3}
    assert [{blocker.rank for blocker in found} for found in blockers(graph)] == [{0}]


def test_a_group_of_torch_s_debug_mode_has_no_name_either() -> None:
    helper = Group("", "", (0, 1, 2, 3), 1)
    calls, done = (Call(helper), *STEPS, Call(helper)), len(STEPS) + 1
    ranks = [Rank(rank, calls, done + (rank == 3), backend="gloo", members_known=False) for rank in range(4)]
    assert {wait.rank for wait in graph_of(*ranks).waits} == {0, 1, 2}


@pytest.mark.parametrize("others", [(), (1, 2)])
def test_nor_has_it_where_the_rank_that_it_is_shared_with_gave_no_dump(others: tuple[int, ...]) -> None:
    """Two ranks, or two of four that share a group: nothing tells that the wait is for nobody of the job."""
    helper, of_all = Group("", "", (0, 3), 1), Group("", "", (0, 1, 2, 3), 1)
    waits = Rank(0, (Call(helper), *STEPS, Call(helper)), len(STEPS) + 1, backend="gloo", members_known=False)
    seen = [Rank(rank, (Call(of_all), *STEPS), backend="gloo", members_known=False) for rank in others]
    assert 0 in {wait.rank for wait in graph_of(waits, *seen, Rank(3, dumped=False, frames=SLEEPS)).waits}


def test_who_never_used_a_group_is_awaited_by_the_thread_that_stands_in_communication() -> None:
    late, other = Group("1", "late", (0, 3), 1), Group("2", "other", (2, 3), 2)
    second = Call(other, thread="2")

    def awaited(calls: tuple[Call, ...], done: int, frames: tuple[CodeFrame, ...]) -> tuple[Blocker, ...]:
        ranks = [
            Rank(0, (*STEPS, Call(late)), len(STEPS), frames=IN_REDUCE),
            *(Rank(rank, STEPS) for rank in (1, 2)),
            Rank(3, calls, done, frames=frames),
        ]
        graph = graph_of(*ranks)
        (point,) = {wait.point for wait in graph.waits if wait.rank == 0}
        return graph.blockers[point]

    assert awaited((*STEPS, second), len(STEPS), IN_REDUCE) == (Blocker(3, 1, Strength.RECORDED),)
    assert awaited((*STEPS, second), len(STEPS), SLEEPS) == (Blocker(3, 0, Strength.RECORDED),)
    assert awaited(STEPS, len(STEPS), IN_REDUCE) == (Blocker(3, 0, Strength.RECORDED),)
    both = (*STEPS, Call(other), second)
    assert awaited(both, len(STEPS), IN_REDUCE) == (Blocker(3, 0, Strength.RECORDED),), "two threads wait"


def of_unknown_members(
    *inside: int, others: tuple[Rank, ...], world_size: int, members_known: bool = False
) -> list[tuple[Blocker, ...]]:
    """All that were seen in a group whose members nobody wrote down stand in its next call."""
    group = Group("1", "mine", inside, 1)
    steps = (Call(group),) * 4
    waiting = (Rank(rank, steps, 3, frames=IN_REDUCE, members_known=members_known) for rank in inside)
    return blockers(graph_of(*waiting, *others, world_size=world_size))


def test_the_only_rank_that_is_left_may_be_the_member_that_lacks() -> None:
    own = (Call(Group("9", "own", (2,), 9)),)
    away = Rank(2, own, frames=SLEEPS, members_known=False)
    assert of_unknown_members(0, 1, others=(away,), world_size=3) == [(Blocker(2, 0, Strength.SUPPOSED),)]
    inside = Rank(2, own, frames=IN_REDUCE, members_known=False)
    assert of_unknown_members(0, 1, others=(inside,), world_size=3) == [()], "it stands in another call"
    assert of_unknown_members(0, 1, others=(away,), world_size=4) == [()], "a fourth, of which nothing is known"
    assert of_unknown_members(0, 1, others=(away,), world_size=3, members_known=True) == [()], "it is no member"
    fourth = Rank(3, (Call(Group("8", "own", (3,), 8)),), frames=SLEEPS, members_known=False)
    assert of_unknown_members(0, 1, others=(away, fourth), world_size=4) == [()], "either of two"


def test_who_else_than_the_one_that_is_seen_away_could_be_the_other_of_two() -> None:
    away = Rank(1, dumped=False, frames=SLEEPS)
    assert of_unknown_members(0, others=(away,), world_size=2) == [(Blocker(1, 0, Strength.HOST),)]
    assert of_unknown_members(0, others=(away, replaced(away, 2)), world_size=3) == [()], "either of two"
    assert of_unknown_members(0, others=(replaced(away, 1, frames=IN_REDUCE),), world_size=2) == [()]


def replaced(rank: Rank, number: int, **fields: Any) -> Rank:
    return dataclasses.replace(rank, rank=number, **fields)


@pytest.mark.parametrize(
    ("of_rank_3", "backend", "strength"),
    [
        ({"state": "T"}, "nccl", Strength.HOST),
        ({"exit_code": 1, "state": "Z"}, "nccl", Strength.HOST),
        ({"frames": SLEEPS}, "nccl", Strength.HOST),
        ({"frames": IN_RECV}, "gloo", Strength.HOST),  # gloo's collectives are in a recorder, its transfers in none
        ({"frames": IN_RECV}, "nccl", None),
        ({}, "nccl", None),
    ],
)
def test_of_a_member_without_a_dump_its_process_and_stack_tell_whether_it_has_come(
    of_rank_3: dict[str, Any], backend: str, strength: Strength | None
) -> None:
    waiting = [Rank(rank, (*STEPS, STEPS[0]), len(STEPS), frames=IN_REDUCE, backend=backend) for rank in (0, 1, 2)]
    graph = graph_of(*waiting, Rank(3, dumped=False, **of_rank_3))
    assert blockers(graph) == [() if strength is None else (Blocker(3, 0, strength),)]
    assert list(graph.unknown.values()) == [(3,) if strength is None else ()]


def test_a_member_without_a_dump_that_has_launched_less_by_nccls_own_count_has_not_come() -> None:
    waiting = [Rank(rank, (*STEPS, STEPS[0]), len(STEPS), frames=IN_REDUCE) for rank in (0, 1, 2)]
    counts = tuple(RasRank(rank, "node0", 1000 + rank, (("AllReduce", 13 - (rank == 3)),)) for rank in range(4))
    node = NodeEvidence("node0", (0, 1, 2, 3), ras=(RasCommunicator("0x1", 4, counts),))
    graph = graph_of(*waiting, Rank(3, dumped=False), nodes=(node,))
    assert blockers(graph) == [(Blocker(3, 0, Strength.RECORDED),)]


def test_a_member_whose_dump_is_behind_what_others_show_to_have_ended_may_have_come_since() -> None:
    """A collective of all has ended that it lacks."""
    calls = (*STEPS, STEPS[0], STEPS[1])
    waiting = [Rank(rank, calls, len(STEPS) + 1, frames=IN_REDUCE) for rank in (0, 1, 2)]
    graph = graph_of(*waiting, Rank(3, STEPS, frames=SLEEPS))
    assert (blockers(graph), list(graph.unknown.values())) == ([()], [(3,)])


def test_a_transfer_knows_nothing_of_a_peer_without_a_dump_and_waits_for_none_that_is_inside() -> None:
    receives = Rank(0, (*STEPS, transfer(W4, ("recv", 1))), len(STEPS), frames=IN_RECV)
    rest = [Rank(rank, STEPS) for rank in (2, 3)]
    dark = graph_of(receives, Rank(1, STEPS).lost(), *rest)
    assert (blockers(dark), list(dark.unknown.values())) == ([()], [(1,)])
    away = graph_of(receives, Rank(1, STEPS, dumped=False, frames=SLEEPS), *rest)
    assert (blockers(away), list(away.unknown.values())) == ([(Blocker(1, 0, Strength.HOST),)], [()])
    sends = Rank(1, (*STEPS, transfer(W4, ("send", 0))), len(STEPS), frames=IN_RECV)
    both = graph_of(receives, sends, *rest)
    assert (blockers(both), list(both.unknown.values())) == ([(), ()], [(), ()])
    absent = graph_of(receives, Rank(1, STEPS, frames=SLEEPS), *rest)
    assert (blockers(absent), list(absent.unknown.values())) == ([(Blocker(1, 0, Strength.RECORDED),)], [()])


def test_a_dump_that_is_older_than_a_wait_shows_who_has_entered_and_not_who_has_not() -> None:
    """Rank 3's was taken before rank 2 made its second call."""
    other = Group("2", "other", (2, 3), 2)
    entered, first, second = (*STEPS, STEPS[0]), Call(W4, line=10), Call(other, thread="2")
    waiting = [Rank(rank, entered, len(STEPS), frames=IN_REDUCE) for rank in (0, 1)]
    waiting.append(Rank(2, (*STEPS, first, second), len(STEPS), frames=IN_REDUCE))
    long_ago = {3: 1}
    inside = graph_of(*waiting, Rank(3, entered, len(STEPS), frames=SLEEPS), captured_ns=long_ago)
    assert blockers(inside) == [(), ()]
    assert list(inside.unknown.values()) == [(), (3,)], "it has entered the one; of the other its dump tells nothing"
    nowhere = graph_of(*waiting, Rank(3, STEPS, frames=()), captured_ns=long_ago)
    assert blockers(nowhere) == [(), ()]
    assert list(nowhere.unknown.values()) == [(3,), (3,)]
    now = graph_of(*waiting, Rank(3, STEPS, frames=()))
    assert [one.strength for found in blockers(now) for one in found] == [Strength.RECORDED] * 2


def test_who_stands_in_the_function_that_called_it_on_the_others_is_a_member_on_its_way() -> None:
    def others(frames: tuple[CodeFrame, ...]) -> tuple[Rank, ...]:
        own = tuple((Call(Group(str(8 + rank), "own", (rank,), 8 + rank)),) for rank in (2, 3))
        return Rank(2, own[0], frames=frames, members_known=False), Rank(3, own[1], frames=(), members_known=False)

    above = CodeFrame("step", "/srv/job/train.py", 9)
    found = of_unknown_members(0, 1, others=others((above, SLEEPS[-1])), world_size=4)
    assert found == [(Blocker(2, 0, Strength.HOST),)]
    assert of_unknown_members(0, 1, others=others((IN_REDUCE[0], above, SLEEPS[-1])), world_size=4) == [()]
    assert of_unknown_members(0, 1, others=others(SLEEPS), world_size=4) == [()]
    near, far = others((above, SLEEPS[-1]))
    seen_once = dataclasses.replace(near, looks=1)
    assert of_unknown_members(0, 1, others=(seen_once, far), world_size=4) == [()], "it may move"
    own = Call(Group("7", "own", (2, 3), 7))
    waits = dataclasses.replace(near, calls=(own, own), done=1)
    assert of_unknown_members(0, 1, others=(waits, far), world_size=4)[0] == (), "it waits in another"


def of_pairs(*alone: int, world_size: int = 4) -> tuple[list[tuple[Blocker, ...]], list[tuple[int, ...]]]:
    """Of these ranks some wait, each in a pair of its own kind, in which nobody else was seen; the others sleep."""
    pairs = {rank: (Call(Group(str(1 + rank), f"pair{rank}", (rank,), 1 + rank)),) * 4 for rank in alone}
    waiting = [Rank(rank, calls, 3, frames=IN_REDUCE, members_known=False) for rank, calls in pairs.items()]
    own = {rank: (Call(Group(str(10 + rank), "own", (rank,), 10 + rank)),) for rank in range(world_size)}
    rest = [Rank(rank, calls, frames=(), members_known=False) for rank, calls in own.items() if rank not in alone]
    graph = graph_of(*waiting, *rest, world_size=world_size)
    return blockers(graph), sorted(graph.unknown.values())


def test_any_rank_that_is_in_no_pair_may_be_the_other_of_one_unless_pairs_overlap() -> None:
    assert of_pairs(0) == ([tuple(Blocker(rank, 0, Strength.SUPPOSED) for rank in (1, 2, 3))], [()])
    assert of_pairs(0, 1)[0] == [tuple(Blocker(rank, 0, Strength.SUPPOSED) for rank in (2, 3))] * 2
    assert of_pairs(0, 1, world_size=3) == ([(), ()], [(0, 2), (1, 2)]), "a row of three"
    ring = of_pairs(0, 1, 2, 3)
    assert ring == ([()] * 4, [(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)])


def test_who_has_gone_on_from_a_call_is_not_awaited_in_it() -> None:
    ahead = Rank(3, (*STEPS, STEPS[0], STEPS[1]), len(STEPS) + 1, frames=IN_REDUCE)
    behind = [Rank(rank, (*STEPS, STEPS[0]), len(STEPS), frames=IN_REDUCE) for rank in (0, 1, 2)]
    assert blockers(graph_of(*behind, ahead)) == [(), tuple(Blocker(rank, 0, Strength.RECORDED) for rank in (0, 1, 2))]


def test_a_recorder_of_another_back_end_does_not_show_that_a_rank_lacks_a_call() -> None:
    waiting = [Rank(rank, (*STEPS, STEPS[0]), len(STEPS), frames=IN_REDUCE, backend="gloo") for rank in (0, 1, 2)]
    other = Rank(3, (Call(Group("9", "own", (3,), 9)),), frames=(), backend="nccl")
    assert blockers(graph_of(*waiting, other)) == [(Blocker(3, 0, Strength.SUPPOSED),)]


def test_a_rank_without_a_dump_waits_where_its_stack_or_what_its_file_has_lost_says_so() -> None:
    torch = "/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py"
    others = [Rank(rank, STEPS, frames=SLEEPS) for rank in (0, 1, 2)]

    def unrecorded(*frames: CodeFrame) -> tuple[int, ...]:
        return graph_of(*others, Rank(3, dumped=False, frames=frames)).unrecorded

    assert unrecorded(CodeFrame("synchronize", torch, 900), *IN_REDUCE[1:]) == (3,)
    assert unrecorded(*IN_REDUCE) == (3,)
    assert unrecorded(*SLEEPS) == unrecorded() == ()


def test_a_first_transfer_under_nccl_is_no_record_yet() -> None:
    receives = Rank(3, STEPS, frames=IN_RECV, looks=1)
    assert graph_of(*(Rank(rank, STEPS, looks=1) for rank in range(3)), receives).unrecorded == (3,)


def test_of_one_that_has_come_since_the_look_before_nobody_knows_whether_it_stands() -> None:
    """It was in another call then: what it is in now may end."""
    calls = (*STEPS, STEPS[0])
    moves = Rank(1, STEPS, len(STEPS) - 1, looks=1, extra=(recorder(1, calls, len(STEPS), look=2),))
    graph = graph_of(Rank(0, calls, len(STEPS)), moves, *(Rank(rank, calls, len(STEPS)) for rank in (2, 3)))
    assert (graph.moving, set(graph.unknown.values())) == ((1,), {(1,)})
    assert blockers(graph) == [()]


def test_a_thread_that_stands_in_a_call_is_in_it_whatever_another_of_its_rank_does() -> None:
    other = Call(Group("2", "other", (2, 3), 2), thread="2")
    first, second = (*STEPS, other, STEPS[0]), (*STEPS, other, STEPS[0], other)
    moves = Rank(3, first, len(STEPS), looks=1, extra=(recorder(3, second, len(STEPS) + 1, look=2),))
    stands = Rank(2, (*STEPS, other, STEPS[0]), len(STEPS) + 1)
    graph = graph_of(*(Rank(rank, (*STEPS, STEPS[0]), len(STEPS)) for rank in (0, 1)), stands, moves)
    point = next(wait.point for wait in graph.waits if wait.rank == 0)
    assert (graph.moving, graph.blockers[point], graph.unknown[point]) == ((3,), (), ())


def in_batches(rank: int, *, closed: bool) -> Rank:
    """After the loop two broadcasts that are launched as one, twice; the last time `closed` or not."""
    entries = list(operations(rank, STEPS, len(STEPS)))
    for done, names in ((True, ("", "", "coalesced")), (False, ("", "", "coalesced") if closed else ("", ""))):
        before, state = entries[-1], "completed" if done else "scheduled"
        for name in names:
            number = {"record_id": len(entries), "collective_seq_id": before.collective_seq_id + 1, "retired": done}
            entries.append(replace(before, name=name or "broadcast", state=state, op_id=before.op_id + 1, **number))
    looks = (replace(recorder(rank, STEPS, look=look), operations=tuple(entries)) for look in (1, 2))
    return Rank(rank, dumped=False, frames=IN_REDUCE, extra=tuple(looks))


def test_who_is_inside_a_batch_of_calls_has_issued_none_of_them() -> None:
    graph = graph_of(*(in_batches(rank, closed=True) for rank in (0, 1, 2)), in_batches(3, closed=False))
    assert blockers(graph) == [(Blocker(3, 0, Strength.RECORDED),)]
    assert blockers(graph_of(*(in_batches(rank, closed=True) for rank in range(4)))) == [()]
