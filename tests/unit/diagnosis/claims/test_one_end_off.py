"""Two ends of a transfer that stand in it as if it were one, where their rings have lost the first of them: who of them
left its program before."""

import dataclasses
from itertools import chain

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import CodeFrame, Evidence
from tests.builders.job import Call, Group, Rank, evidence, recorder, transfer, world


def resized(call: Call, elements: int) -> Call:
    return dataclasses.replace(call, elements=elements)


SYNCHRONISES = (
    CodeFrame("synchronize", "/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", 1083),
    CodeFrame("step", "/srv/job/train.py", 20),
    CodeFrame("<module>", "/srv/job/train.py", 99),
)
STEPS = 5
LINES = 3


def _step(rank: int, odd: tuple[str, ...] | None = None) -> list[Call]:
    """A batch of both ways between the two stages of a line, then a message back, then all reduce."""
    line = Group(f"{1 + rank // 2}", f"pp{rank // 2}", (rank - rank % 2, rank - rank % 2 + 1), 1)
    other = 1 - rank % 2
    both = ("send", "recv") if odd is None else odd
    return [
        transfer(line, *((way, other) for way in both), batched=True, line=40),
        transfer(line, ("send" if rank % 2 else "recv", other), batched=True, line=50),
        Call(world(2 * LINES), elements=500, line=60),
    ]


def _job(odd: tuple[str, ...], first_record: int) -> Evidence:
    """In the last step rank 1, of the second stage, brings `odd` to the exchange; what it lacks or has too many its
    other end waits for. Rings have lost what lies before `first_record`."""
    told = []
    for rank in range(2 * LINES):
        calls = [*chain.from_iterable(_step(rank) for _ in range(STEPS)), *_step(rank, odd if rank == 1 else None)]
        lacks = len(odd) == 1
        ended = {0: int(not lacks), 1: int(lacks)}.get(rank, 2)
        rings = tuple(recorder(rank, calls, 3 * STEPS + ended, look=n, first_record=first_record) for n in (1, 2))
        told.append(Rank(rank, dumped=False, frames=SYNCHRONISES, extra=rings))
    return evidence(*told)


@pytest.mark.parametrize("odd", [("send",), ("send", "recv", "recv")])
def test_who_alone_of_its_peers_brought_another_batch_is_named(odd: tuple[str, ...]) -> None:
    verdict = judge(_job(odd, first_record=70)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("p2p_unmatched", (1,), "likely"), verdict.summary


def test_where_nobody_left_its_program_both_ends_stand_in_it_and_nobody_is_named() -> None:
    told = []
    for rank in range(2 * LINES):
        calls = [*chain.from_iterable(_step(rank) for _ in range(STEPS + 1))]
        ended = 0 if rank < 2 else 2
        rings = tuple(recorder(rank, calls, 3 * STEPS + ended, look=look, first_record=70) for look in (1, 2))
        told.append(Rank(rank, dumped=False, frames=SYNCHRONISES, extra=rings))
    verdict = judge(evidence(*told)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("comm_stuck", ())


def _stage_step(rank: int, *, astray: bool = False) -> list[Call]:
    """Of a pipeline of four: a batch of both ways with the next stage, one with the one before. `astray`: what is meant
    for the next stage is sent to the first."""
    line, stage = Group(str(1 + rank % 2), f"pp{rank % 2}", tuple(range(rank % 2, 8, 2)), 1), rank // 2
    calls = [
        transfer(line, ("send", other), ("recv", other), batched=True, line=50 if other > stage else 60)
        for other in (stage + 1, stage - 1)
        if 0 <= other < 4
    ]
    if astray:
        calls[0] = transfer(line, ("send", 0), ("recv", stage + 1), batched=True, line=50)
    return [*calls, Call(world(8), elements=5, line=90)]


def test_in_a_circle_of_messages_who_waits_behind_what_is_posted_is_none_of_its_ends() -> None:
    """Rank 5 sends to rank 1 instead of 7: 1 waits for 3, which waits for 5, which waits for 1. Of earlier steps the
    rings hold nothing, so that only its mate of the other pipeline tells."""
    told = []
    for rank in range(8):
        calls = [*_stage_step(rank) * 3, *_stage_step(rank, astray=rank == 5)]
        one = Rank(rank, tuple(calls), len(calls) * 3 // 4 if rank % 2 else len(calls) - 1).evidence()
        kept = 3 * (len(_stage_step(rank)) - 1) + 2  # a batch of two is three entries
        rings = (replace(ring, operations=ring.operations[-kept:]) for ring in one.recorders)
        told.append(replace(one, recorders=tuple(rings)))
    verdict = judge(replace(evidence(*map(Rank, range(8))), ranks=tuple(told))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("p2p_unmatched", (5,)), verdict.summary


@pytest.mark.parametrize("passes_on", [False, True])
def test_of_sizes_that_differ_the_one_that_is_not_its_mates_at_that_line_is_odd(passes_on: bool) -> None:
    """Rings hold one exchange, and none before it that tells of two sizes which is usual: the other lines do. A rank
    that has that size at its other lines, too, may rightly have it, and its other end not."""
    told = []
    for rank in range(2 * LINES):
        line = Group(f"{1 + rank // 2}", f"pp{rank // 2}", (rank - rank % 2, rank - rank % 2 + 1), 1)
        peer, size = 1 - rank % 2, 4096 if rank == 1 else 2048
        ways = ("recv", "send") if rank % 2 else ("send", "recv")
        before = [resized(transfer(line, (way, peer), line=at), 2048) for way, at in zip(ways, (20, 30), strict=True)]
        if passes_on and rank == 1:
            before.append(resized(transfer(line, ("recv", peer), line=35), size))
        if passes_on and rank == 0:
            before.append(resized(transfer(line, ("send", peer), line=25), 4096))
        end = Call(world(2 * LINES), elements=500, line=60)
        exchange = resized(transfer(line, (ways[0], peer), line=40 + rank % 2), size)
        calls = [end, *before, exchange, end]
        told.append(Rank(rank, tuple(calls), len(calls) - 1 - (rank < 2), frames=SYNCHRONISES))
    verdict = judge(evidence(*told)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("p2p_unmatched", (0, 1) if passes_on else (1,)), verdict.summary
