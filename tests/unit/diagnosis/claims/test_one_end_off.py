"""Two ends of a transfer that stand in it as if it were one, where their rings have lost the first of them: who of them
left its program before."""

from itertools import chain

import pytest

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import CodeFrame, Evidence
from tests.builders.job import Call, Group, Rank, evidence, recorder, transfer, world

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
