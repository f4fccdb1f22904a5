"""Coalesced calls: members of a collective one by one, batches of sends and receives in rings and pipelines."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from stallwatch.diagnosis import judge
from stallwatch.diagnosis.recorder.reduce import reduce_rank
from stallwatch.model.evidence import CodeFrame, Evidence, Operation, Recorder
from stallwatch.model.verdict import Verdict
from tests.builders.job import (
    SLEEPS,
    Call,
    Group,
    Rank,
    evidence,
    from_any,
    loop,
    operations,
    recorder,
    transfer,
    world,
)

W4 = world(4)
SYNCHRONISES = (
    CodeFrame("synchronize", "/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", 1083),
    CodeFrame("step", "/srv/job/train.py", 20),
    CodeFrame("<module>", "/srv/job/train.py", 99),
)
Steps = list[Call]


def _first(told: Evidence) -> Verdict:
    return judge(told).verdicts[0]


# A gather of uneven parts: a broadcast of each rank's part, launched as one.


def _gathering(sizes: tuple[int, ...], kept: int | None = None, closes: bool = True) -> tuple[Operation, ...]:
    """Five steps that end, and a batch of broadcasts that does not; `kept`: only so many members are recorded."""
    steps = loop(W4, 5)
    entries = operations(0, steps, len(steps))
    template = msgspec.structs.replace(
        entries[-1], state="scheduled", retired=False, collective_seq_id=11, op_id=11, name="_broadcast_oop"
    )
    members = [
        msgspec.structs.replace(template, record_id=10 + place, input_sizes=((size,),), output_sizes=((size,),))
        for place, size in enumerate(sizes[:kept])
    ]
    closing = msgspec.structs.replace(
        template, record_id=10 + len(members), name="coalesced", input_sizes=(), output_sizes=(), input_dtypes=()
    )
    return (*entries, *members, *((closing,) if closes else ()))


def _gather(rank: int, entries: tuple[Operation, ...], frames: tuple[CodeFrame, ...] = SYNCHRONISES) -> Rank:
    def look(number: int) -> Recorder:
        return msgspec.structs.replace(recorder(rank, loop(W4, 5), look=number), operations=entries)

    return Rank(rank, dumped=False, frames=frames, extra=(look(1), look(2)))


SIZES = (300, 100, 100, 100)


def test_an_uneven_gather_that_all_entered_alike_is_no_mismatch() -> None:
    assert _first(evidence(*(_gather(rank, _gathering(SIZES)) for rank in range(4)))).cause == "comm_stuck"


@pytest.mark.parametrize("odd", [(300, 100, 200, 100), (100, 300, 100, 100)])
def test_a_member_that_differs_is_named_even_where_all_of_the_batch_is_as_large(odd: tuple[int, ...]) -> None:
    ranks = [_gather(rank, _gathering(odd if rank == 2 else SIZES)) for rank in range(4)]
    verdict = _first(evidence(*ranks))
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", (2,))
    assert verdict.mismatch is not None
    assert verdict.mismatch.kind == "size"
    assert "as member" in verdict.mismatch.found and "as member" in verdict.mismatch.expected


@pytest.mark.parametrize("kept", [1, 3])
def test_a_batch_that_is_not_closed_is_a_host_inside_the_call_and_no_mismatch(kept: int) -> None:
    ranks = [_gather(rank, _gathering(SIZES)) for rank in (0, 1, 3)]
    begun = _gather(2, _gathering(SIZES, kept, closes=False), frames=SLEEPS)
    verdict = _first(evidence(*ranks, begun))
    assert verdict.cause != "collective_mismatch"
    assert not set(verdict.culprits) - {2}


@pytest.mark.parametrize("cut", [False, True])
def test_a_batch_that_has_begun_is_no_other_call_where_the_others_have_gone_on_to_the_next(cut: bool) -> None:
    """A host runs ahead: that of the others has launched the batch and a call behind it. Two members, so that no
    majority hides that one call is compared with a whole batch; a sister group has called the batch as well."""
    usual = [_gather(rank, _and_one_more(_gathering(SIZES))) for rank in (0, 1, 3)]
    begun = _gather(2, _gathering(SIZES, 1, closes=False), frames=SLEEPS)
    begun = replace(begun, extra=tuple(msgspec.structs.replace(look, cut_short=cut) for look in begun.extra))
    for ranks in ([usual[0], begun], [*usual, begun]):
        verdict = _first(evidence(*ranks, world_size=4))
        assert verdict.cause != "collective_mismatch", verdict.summary
        assert not set(verdict.culprits) - {2}


def test_who_has_gone_on_from_one_call_in_place_of_a_batch_is_not_inside_it() -> None:
    """It left the batch out, and what it called next is of the batch's operation: its host has called more since, in
    another group."""
    beside = {"pg_id": 1, "group_name": "1", "group_description": "beside", "collective_seq_id": 1, "op_id": 1}
    *begun, last = _and_one_more(_gathering(SIZES, 1, closes=False))
    usual = [_gather(rank, _gathering(SIZES)) for rank in (0, 1, 3)]
    away = _gather(2, (*begun, msgspec.structs.replace(last, **beside)), frames=SLEEPS)
    verdict = _first(evidence(*usual, away, world_size=4))
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", (2,)), verdict.summary


def test_a_call_of_another_size_is_no_batch_that_has_begun_because_one_alone_launched_a_batch_there() -> None:
    """Rank 2 left it out and went on to the batch of the next step, which is of the same operation."""
    single = _gathering((7,), closes=False)[-1]
    usual = [_gather(rank, (*_gathering((), closes=False), single), frames=SYNCHRONISES) for rank in (0, 1, 3)]
    verdict = _first(evidence(*usual, _gather(2, _gathering(SIZES)), world_size=4))
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", (2,)), verdict.summary


def _and_one_more(entries: tuple[Operation, ...]) -> tuple[Operation, ...]:
    last = entries[-1]
    number = last.collective_seq_id + 1
    sizes = {"input_sizes": ((7,),), "output_sizes": ((7,),), "input_dtypes": ("Float",)}
    numbers = {"record_id": last.record_id + 1, "collective_seq_id": number, "op_id": number}
    return (*entries, msgspec.structs.replace(last, name="all_reduce", **numbers, **sizes))


# A ring of two in each stage of a pipeline: both of its members make the same calls, as those of a pipeline do not.


def _stage(rank: int) -> Steps:
    """One step: three microbatches forward, three backward."""
    pair = Group(f"{1 + rank // 2}", f"dp{rank // 2}", (2 * (rank // 2), 2 * (rank // 2) + 1), 1)
    line = Group(f"{3 + rank % 2}", f"pp{rank % 2}", (rank % 2, rank % 2 + 2), 2)
    first = rank < 2
    meets = transfer(pair, ("send", (rank + 1) % 2), ("recv", (rank + 1) % 2), batched=True, line=40)
    forward = [Call(pair, elements=64, line=10), meets]
    backward = [Call(pair, elements=32, line=60)]
    ahead = transfer(line, ("send", 1) if first else ("recv", 0), line=33 if first else 30)
    back = transfer(line, ("recv", 1) if first else ("send", 0), line=50 if first else 53)
    return [
        *([*forward, ahead] if first else [ahead, *forward]) * 3,
        *([back, *backward] if first else [*backward, back]) * 3,
    ]


def test_who_left_after_one_step_is_not_said_to_have_called_in_another_order_within_it() -> None:
    """Of itself alone each end of a loop within the first step looks as if the rank had left its way."""
    done = [len(_stage(rank)) for rank in range(4)]
    ranks = [Rank(rank, (*_stage(rank), *_stage(rank)), done[rank], frames=SYNCHRONISES) for rank in (0, 2, 3)]
    left = Rank(1, (*_stage(1), Call(W4, "barrier", line=200)), done[1], frames=SYNCHRONISES)
    verdict = _first(evidence(*ranks, left))
    assert (verdict.cause, verdict.culprits) == ("data_exhausted", (1,)), verdict.summary


# A ring: each sends to the next and receives from the one before, then all reduce.


def _ring(rank: int, *ends: tuple[str, int], size: int = 100) -> Call:
    exchange = transfer(W4, *(ends or (("send", (rank + 1) % 4), ("recv", (rank - 1) % 4))), batched=True)
    return replace(exchange, elements=size)


def _job(odd: Call | None, hang: tuple[int, ...]) -> Evidence:
    """Five steps, and a sixth in which rank 2 does `odd` (None: no batch at all); ranks of `hang` stand in theirs, and
    the others go on to the all-reduce."""
    ranks = []
    for rank in range(4):
        calls: Steps = [call for _ in range(5) for call in (_ring(rank), Call(W4, elements=500, line=60))]
        done = len(calls)
        mine = odd if rank == 2 else _ring(rank)
        if mine is not None:
            calls.append(mine)
            done += rank not in hang
        if rank not in hang or mine is None:
            calls.append(Call(W4, elements=500, line=60))
        ranks.append(Rank(rank, tuple(calls), done, frames=SYNCHRONISES))
    return evidence(*ranks)


RINGS: dict[str, Callable[[], Evidence]] = {
    "it lacks its receive": lambda: _job(_ring(2, ("send", 3)), (1,)),
    "it lacks its send": lambda: _job(_ring(2, ("recv", 1)), (3,)),
    "it sends once more": lambda: _job(_ring(2, ("send", 3), ("recv", 1), ("send", 3)), (2,)),
    "it receives once more": lambda: _job(_ring(2, ("send", 3), ("recv", 1), ("recv", 1)), (2,)),
    "it sends to another": lambda: _job(_ring(2, ("send", 0), ("recv", 1)), (2, 3)),
    "it receives from another": lambda: _job(_ring(2, ("send", 3), ("recv", 3)), (1, 2)),
    "it sends and receives another size": lambda: _job(_ring(2, size=200), (1, 2, 3)),
    "it has no batch": lambda: _job(None, (1, 3)),
}


@pytest.mark.parametrize("what", RINGS)
def test_of_a_ring_who_differs_from_the_others_is_named(what: str) -> None:
    verdict = _first(RINGS[what]())
    assert (verdict.cause, verdict.culprits) == ("p2p_unmatched", (2,)), verdict.summary


@pytest.mark.parametrize("told", [lambda e: e, from_any], ids=["from whom is told", "from anybody"])
def test_a_size_of_its_own_is_told_with_both_sizes(told: Callable[[Evidence], Evidence]) -> None:
    verdict = _first(told(RINGS["it sends and receives another size"]()))
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("p2p_unmatched", (2,), "likely")
    assert verdict.mismatch is not None
    assert (verdict.mismatch.found, verdict.mismatch.expected) == ("200 elements", "100 elements")


def test_of_two_ends_the_one_with_a_new_size_is_named() -> None:
    """A pipeline of two stages: the sender had always sent 100."""
    pair = world(2)
    send, receive = transfer(pair, ("send", 1)), transfer(pair, ("recv", 0))
    first = Rank(0, (*(send,) * 5, Call(pair, elements=300, line=50, transfers=(("send", 1),))), 5, frames=SYNCHRONISES)
    verdict = _first(evidence(first, Rank(1, (receive,) * 6, 5, frames=SYNCHRONISES)))
    assert (verdict.cause, verdict.culprits) == ("p2p_unmatched", (0,))
    both_new = Rank(1, (*(receive,) * 5, Call(pair, elements=7, line=50, transfers=(("recv", 0),))), 5)
    verdict = _first(evidence(first, both_new))
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("p2p_unmatched", (0, 1), "possible")


def test_a_batch_of_which_the_file_has_lost_the_end_is_no_other_call_than_that_of_the_others() -> None:
    entries = recorder(0, loop(world(2), 3), 3).operations
    member = msgspec.structs.replace(
        entries[-1],
        record_id=len(entries),
        collective_seq_id=entries[-1].collective_seq_id + 1,
        state="scheduled",
    )
    batch = (member, msgspec.structs.replace(member, record_id=len(entries) + 1))
    ring = msgspec.structs.replace(recorder(0, loop(world(2), 3), 3), operations=(*entries, *batch))
    for cut, kept in ((True, 0), (False, 1)):
        told = reduce_rank(
            msgspec.structs.replace(
                Rank(0, loop(world(2), 3)).evidence(), recorders=(msgspec.structs.replace(ring, cut_short=cut),)
            )
        )
        assert told.streams[0].last_seq == entries[-1].collective_seq_id + kept
