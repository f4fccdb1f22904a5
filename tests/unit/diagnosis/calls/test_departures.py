"""Who left the program, where rings have lost their beginning and where some of a pipeline left no dump."""

from dataclasses import replace

import msgspec
import pytest

from stallwatch.diagnosis.calls.sequences import find_departures
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


def _departed(ranks: list[Rank], lost_entries: int = 0) -> set[int]:
    summaries = []
    for rank in evidence(*ranks).ranks:
        held = tuple(msgspec.structs.replace(one, operations=one.operations[lost_entries:]) for one in rank.recorders)
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


def test_a_pair_of_which_one_left_no_dump_is_what_its_sisters_are() -> None:
    ranks = [Rank(rank, _program(rank, 3)) for rank in range(6)]
    assert _departed([*ranks[:5], ranks[5].lost()]) == set()
