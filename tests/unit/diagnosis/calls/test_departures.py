"""Who left the program, where rings have lost their beginning and where some of a pipeline left no dump."""

from dataclasses import replace

import msgspec
import pytest

from stallwatch.diagnosis.calls.sequences import find_departures, transfers_apart
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.recorder.reduce import reduce_rank
from tests.builders.job import Call, Group, Rank, evidence, transfer, world

_WORLD = world(6)
_PIPES = [Group(f"p{place}", f"pp{place}", (place, place + 3), 1) for place in range(3)]
_MICRO = 2


def _step(rank: int) -> list[Call]:
    """Two microbatches forward, two backward, and the end of a step that all share."""
    pipe, first = _PIPES[rank % 3], rank < 3
    there, back = ("send", "recv") if first else ("recv", "send")
    peer = 1 if first else 0
    forward = [transfer(pipe, (there, peer), line=33)]
    backward = [transfer(pipe, (back, peer), line=50)]
    return [*forward * _MICRO, *backward * _MICRO, Call(_WORLD, elements=7, line=90)]


def _program(rank: int, steps: int) -> tuple[Call, ...]:
    return tuple(_step(rank) * steps)


def _departed(ranks: list[Rank], lost_entries: int = 0, held_entries: int = 1_000_000) -> set[int]:
    summaries = []
    for rank in evidence(*ranks).ranks:
        held = tuple(
            msgspec.structs.replace(one, operations=one.operations[lost_entries:][-held_entries:])
            for one in rank.recorders
        )
        summaries.append(reduce_rank(msgspec.structs.replace(rank, recorders=held)))
    case = Case(summaries, {}, len(ranks))
    return {departure.rank for departure in find_departures(case, case.summaries)}


@pytest.mark.parametrize("lost_entries", range(1, 10))
def test_what_all_of_a_stage_do_is_no_departure_where_the_rings_hold_little_more_than_a_step(lost_entries: int) -> None:
    assert _departed([Rank(rank, _program(rank, 3)) for rank in range(6)], lost_entries) == set()


@pytest.mark.parametrize("lost_entries", range(1, 9))
def test_one_that_leaves_out_a_message_is_found_where_the_rings_have_lost_their_beginning(lost_entries: int) -> None:
    ranks = [Rank(rank, _program(rank, 3)) for rank in range(6)]
    calls = list(ranks[1].calls)
    del calls[-2]
    ranks[1] = replace(ranks[1], calls=tuple(calls))
    assert _departed(ranks, lost_entries) == {1}


@pytest.mark.parametrize("held_entries", range(12, 20))
def test_who_waits_at_the_end_is_found_where_its_ring_has_lost_less_than_those_that_went_on(held_entries: int) -> None:
    """Pairs that exchange, and one of them has called less: the two of that pair are of one program with all others."""
    ranks = []
    for rank in range(6):
        pair = Group(f"e{rank // 2}", f"ep{rank // 2}", (rank // 2 * 2, rank // 2 * 2 + 1), 1)
        meets = transfer(pair, ("send", 1 - rank % 2), ("recv", 1 - rank % 2), batched=True, line=40)
        forward, backward = [Call(pair, elements=64, line=10), meets], [Call(pair, elements=32, line=60)]
        step = [*forward * 2, *backward * 2, Call(_WORLD, elements=7, line=90)]
        calls = [*step, *([Call(_WORLD, "barrier", line=200)] if rank == 2 else step)]
        ranks.append(Rank(rank, tuple(calls), len(step)))
    assert _departed(ranks, held_entries=held_entries) == {2}


def test_what_a_first_round_comes_to_is_no_departure_where_ranks_of_another_program_have_done_it() -> None:
    """Ranks 0 and 1 have not come to the group of both pairs, and look like another program; rank 0 stands in a message
    that no recorder shows, and rank 1 has gone on from the four microbatches forward to the first backward."""
    pairs = [Group(f"t{place}", f"tp{place}", (2 * place, 2 * place + 1), 1) for place in range(2)]
    ranks = []
    for rank in range(4):
        forward, back = Call(pairs[rank // 2], elements=8), Call(pairs[rank // 2], elements=5, line=60)
        last = [Call(Group(f"d{rank % 2}", f"dp{rank % 2}", (rank % 2, rank % 2 + 2), 2), elements=9, line=90)]
        own = [back] * (0, 1, 4, 4)[rank] + (last if rank > 1 else [])
        ranks.append(Rank(rank, (*[forward] * 4, *own), 4, backend="gloo"))
    assert _departed(ranks) == set()


def test_a_pair_of_which_one_left_no_dump_is_what_its_sisters_are() -> None:
    ranks = [Rank(rank, _program(rank, 3)) for rank in range(6)]
    assert _departed([*ranks[:5], ranks[5].lost()]) == set()


def test_pipelines_of_two_whose_groups_are_new_are_no_rings() -> None:
    """What lies before the first message of a group that was made anew is alike at all stages."""
    there = Call(_WORLD, elements=9, line=10)
    back, end = Call(_WORLD, elements=9, line=60), Call(_WORLD, elements=7, line=90)
    ranks = []
    for rank in range(6):
        send, receive = (transfer(_PIPES[rank % 3], (way, int(rank < 3))) for way in ("send", "recv"))
        exchange = [there, send, receive, back] if rank < 3 else [receive, there, back, send]
        ranks.append(Rank(rank, (*[there, back, end] * 8, *exchange, end, *exchange, end)))
    ranks[4] = replace(ranks[4], calls=(*ranks[4].calls[:-2], end))
    summaries = [reduce_rank(rank) for rank in evidence(*ranks).ranks]
    case = Case(summaries, {}, len(ranks))
    group = next(group.index for group in case.groups if group.ranks == (1, 4))
    apart = transfers_apart(case, (1, 4), group)
    assert apart[1] is None
    assert apart[4] is not None


def test_what_was_due_is_said_in_the_groups_of_the_rank_itself() -> None:
    """Ranks number their groups by themselves; peers exchange with peers of their own."""
    ranks = [Rank(rank, _program(rank, 3)) for rank in range(6)]
    calls = list(ranks[1].calls)
    del calls[-2]
    for rank in (0, 1, 2):
        alone = Call(Group("9", f"node{rank}", (rank,), 9), elements=3, line=5)
        ranks[rank] = replace(ranks[rank], calls=(*calls, alone) if rank == 1 else (alone, *ranks[rank].calls))
    summaries = [reduce_rank(rank) for rank in evidence(*ranks).ranks]
    case = Case(summaries, {}, len(ranks))
    (departure,) = (found for found in find_departures(case, case.summaries) if found.rank == 1)
    (due,) = departure.expected
    assert due.operation.startswith("recv ")
    assert case.groups[case.group_of[1, due.stream]].ranks == _PIPES[1].ranks


_PAIRS = [Group(f"t{place}", f"tp{place}", (2 * place, 2 * place + 1), 1) for place in range(4)]
_TWINS = [Group(f"d{place}", f"dp{place}", ranks, 2) for place, ranks in enumerate(((0, 2), (1, 3), (4, 6), (5, 7)))]


def _unrecorded_step(rank: int) -> list[Call]:
    """What gloo records of a step of two stages of four ranks that exchange two microbatches: no message."""
    forward, back = (Call(_PAIRS[rank // 2], elements=8, line=line) for line in (10, 60))
    order = [forward, forward, back, back] if rank < 4 else [forward, back, forward, back]
    twins = next(group for group in _TWINS if rank in group.ranks)
    return [*order, Call(twins, elements=5, line=90)]


def test_a_stage_of_which_one_has_come_to_the_end_and_others_wait_on_its_way_is_told_from_the_next() -> None:
    """Rank 3 leaves out a call that another one pairs with: rank 2 waits for its last one."""
    end = Call(world(8), "barrier", line=200)
    ranks = []
    for rank in range(8):
        calls = _unrecorded_step(rank) * 4
        if rank == 3:
            del calls[8]
        calls = {0: calls, 2: calls[:-1]}.get(rank, [*calls, end])
        ranks.append(Rank(rank, tuple(calls), len(calls) - 1, backend="gloo"))
    assert _departed(ranks) == {3}


@pytest.mark.parametrize("ahead", range(2, 5))
def test_stages_are_told_apart_by_how_they_came_to_the_last_meeting_where_no_ring_holds_two(ahead: int) -> None:
    """Rings that begin in the middle of a step do not hold that a step begins with two microbatches."""
    meeting = Call(Group("0", "default_pg", tuple(range(8)), 0), elements=1, line=120)
    ranks = []
    for rank in range(8):
        step = [*_unrecorded_step(rank), meeting]
        calls = [*step, *step, *step[: ahead if rank < 4 else 2]]
        ranks.append(Rank(rank, tuple(calls), len(calls) - 1, backend="gloo"))
    assert _departed(ranks, lost_entries=len(step) + 1) == set()


_FOUR = world(4)


def _around(rank: int, steps: int, last: tuple[str, int] | None = None) -> Rank:
    """In each step one exchange around a ring of four; `last`: what it sends in the last one, if not to the next."""
    receive = ("recv", (rank - 1) % 4)
    calls = [_reduced(10), transfer(_FOUR, ("send", (rank + 1) % 4), receive, batched=True), _reduced(90)] * steps
    if last is not None:
        calls[-2] = transfer(_FOUR, last, receive, batched=True)
    return Rank(rank, tuple(calls), len(calls) - 2)


def _reduced(line: int) -> Call:
    return Call(_FOUR, elements=9, line=line)


@pytest.mark.parametrize("lost_entries", [0, 6])
def test_one_that_sends_to_another_is_found_though_that_is_where_another_sends_always(lost_entries: int) -> None:
    """Of a ring of which one member left no dump, and which one other leaves, nothing tells that it is one: each member
    is a program of its own. Rank 3 sends to 1 as rank 0 does, which did so in all steps before, when rank 3 did not."""
    assert _departed([_around(0, 4), _around(1, 4), Rank(2).lost(), _around(3, 4, ("send", 1))], lost_entries) == {3}


@pytest.mark.parametrize("always", [(), (1,)], ids=["all for the first time", "one of them always has"])
def test_what_several_send_for_the_first_time_is_no_departure_of_theirs(always: tuple[int, ...]) -> None:
    """After some steps all others send to rank 0 what they have found, each a program of its own."""
    ranks = []
    for rank in range(4):
        gathered = [transfer(_FOUR, *(("send", 0),) if rank else [("recv", n) for n in (1, 2, 3)], line=70)]
        step = [*_around(rank, 1).calls[:1], *(gathered if rank in always else ()), *_around(rank, 1).calls[1:]]
        calls = (*step * 4, _reduced(10), *gathered, _reduced(95))
        ranks.append(Rank(rank, calls, len(calls) - 2))
    assert _departed(ranks).isdisjoint({2, 3})


def test_in_a_first_step_what_another_stage_always_does_may_be_what_comes_next() -> None:
    """Stage 1 has sent on three microbatches and waits for the first to come back, as the last stage does always."""
    calls = {
        stage: [
            *[transfer(_FOUR, ("recv", stage - 1)), transfer(_FOUR, ("send", stage + 1))] * 3,
            transfer(_FOUR, ("recv", stage + 1)),
        ]
        for stage in (1, 2)
    }
    calls[3] = [transfer(_FOUR, ("recv", 2)), transfer(_FOUR, ("send", 2))] * 4
    ranks = [Rank(0).lost(), *(Rank(rank, tuple(own), len(own) - 1) for rank, own in calls.items())]
    assert _departed(ranks).isdisjoint({1})


def test_of_collectives_those_of_another_stage_are_where_this_one_comes_to_as_well() -> None:
    """The other stage goes back after its second microbatch forward, this one after its fourth."""
    pairs = [Group(f"t{place}", f"tp{place}", (2 * place, 2 * place + 1), 1) for place in range(2)]
    ranks = []
    for rank in range(4):
        forward, back = (Call(pairs[rank // 2], elements=8, line=line) for line in (10, 60))
        own = [forward] * 4 if rank < 2 else [forward, forward, back, forward, back]
        twins = Group(f"d{rank % 2}", f"dp{rank % 2}", (rank % 2, rank % 2 + 2), 2)
        last = {0: [back], 1: []}.get(rank, [Call(twins, elements=9, line=95)])
        ranks.append(Rank(rank, (_reduced(90), _reduced(90), *own, *last), 5, backend="gloo"))
    assert _departed(ranks) == set()


def _one_step(rank: int, tensor_parallel: int) -> list[Call]:
    """The first step of a pipeline of four stages: two microbatches forward, two backward, and what all share."""
    stage, place = divmod(rank, tensor_parallel)
    pipe = Group(f"p{place}", f"pp{place}", tuple(range(place, 4 * tensor_parallel, tensor_parallel)), 1)
    there, back = (
        [transfer(pipe, (way, stage + to), line=line)] if 0 <= stage + to < 4 else []
        for way, to, line in (("recv", -1, 50), ("recv", 1, 60))
    )
    on, home = (
        [transfer(pipe, (way, stage + to), line=line)] if 0 <= stage + to < 4 else []
        for way, to, line in (("send", 1, 55), ("send", -1, 65))
    )
    every = Call(world(4 * tensor_parallel), elements=7, line=90)
    return [*[*there, *on] * 2, *[*back, *home] * 2, every]


@pytest.mark.parametrize(
    ("tensor_parallel", "innocent"),
    [(1, {0, 3}), (2, {0, 1, 3, 4, 5, 6, 7})],
    ids=["alone in its stage", "beside the one that lacks a message"],
)
def test_at_the_end_of_a_first_round_what_all_stages_come_to_is_no_departure(
    tensor_parallel: int, innocent: set[int]
) -> None:
    """One member of the second stage leaves out a message; who does the second round as well comes to the end of its
    step for the first time, as ranks of all other stages that have come so far do."""
    ranks = []
    for rank in range(4 * tensor_parallel):
        calls = _one_step(rank, tensor_parallel)
        if rank == tensor_parallel:
            calls.remove(next(call for call in calls if call.line == 65))
        ranks.append(Rank(rank, tuple(calls), len(calls) - 1))
    assert _departed(ranks).isdisjoint(innocent)
