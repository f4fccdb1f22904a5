"""A batch of which the ring or the file has lost members: what it called cannot be compared, that it was called can."""

from dataclasses import dataclass
from itertools import chain

import msgspec
import pytest

from stallwatch.diagnosis import judge
from stallwatch.diagnosis.calls.sequences import find_departures
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.recorder.operations import read_recorded_calls
from stallwatch.diagnosis.recorder.reduce import reduce_rank
from stallwatch.model.evidence import Evidence, Operation, Recorder
from tests.builders.job import SLEEPS, Call, Group, Rank, evidence, operations, recorder, world
from tests.simulator.semantics import SEMANTICS, rewritten

ROUNDS = 6
MEMBERS = 3


def _entries(group: Group, rounds: int, done: int, single: bool = False) -> tuple[Operation, ...]:
    """Rounds of a batch of three gathers and a single call; `done` calls have ended, and the last round is a batch
    alone. `single`: no batch, but one gather in its place."""
    plain = operations(0, [Call(group, elements=500) for _ in range(2 * rounds - 1)], done)
    taken = [[entry] if single or place % 2 else _batch(entry) for place, entry in enumerate(plain)]
    return tuple(msgspec.structs.replace(entry, record_id=n) for n, entry in enumerate(chain.from_iterable(taken)))


def _batch(entry: Operation) -> list[Operation]:
    member = msgspec.structs.replace(entry, state="scheduled", retired=False, name="all_gather")
    closing = msgspec.structs.replace(entry, name="coalesced", input_sizes=(), output_sizes=(), input_dtypes=())
    sized = [msgspec.structs.replace(member, input_sizes=((100 + n,),)) for n in range(MEMBERS)]
    return [*sized, closing]


def _ring(group: Group, kept: slice, *, cut: bool = False, rounds: int = ROUNDS, look: int = 1) -> Recorder:
    empty = recorder(0, [Call(group)], look=look)
    return msgspec.structs.replace(empty, operations=_entries(group, rounds, 2 * rounds - 2)[kept], cut_short=cut)


@dataclass(frozen=True)
class Lost:
    """Which entries of rank 0 are left, and whether its file says that it has lost some."""

    kept: slice
    cut: bool


WRAPPED = {f"the ring has lost {n}": Lost(slice(n, None), False) for n in range(1, 10)}
BROKE_OFF = {f"the file has lost {n}": Lost(slice(None, -n), True) for n in range(1, 10)}
BOTH = {"both have": Lost(slice(2, -2), True)}
ALL = {**WRAPPED, **BROKE_OFF, **BOTH}


def _job(lost: Lost, ranks: int, group: Group, semantics: str = "") -> Evidence:
    """All stand in the last batch but one, who sleeps before it; rank 0 has lost entries."""
    told = []
    for rank in range(ranks):
        last = rank == ranks - 1
        of_rank = lost if rank == 0 else Lost(slice(None, -MEMBERS - 1 if last else None), False)
        looks = tuple(_ring(group, of_rank.kept, cut=of_rank.cut, look=look) for look in (1, 2))
        told.append(Rank(rank, dumped=False, frames=SLEEPS if last else (), extra=looks))
    found = evidence(*told)
    return rewritten(found, semantics) if semantics else found


@pytest.mark.parametrize("semantics", ["", *SEMANTICS])
@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("lost", ALL)
def test_who_has_lost_members_of_a_batch_has_called_no_other_thing(lost: str, ranks: int, semantics: str) -> None:
    verdict = judge(_job(ALL[lost], ranks, world(ranks), semantics)).verdicts[0]
    assert verdict.cause != "collective_mismatch", verdict.summary
    assert set(verdict.culprits) <= {ranks - 1}, verdict.summary


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("lost", WRAPPED)
def test_who_is_missing_is_named_all_the_same(lost: str, ranks: int) -> None:
    verdict = judge(_job(ALL[lost], ranks, world(ranks))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (ranks - 1,)), verdict.summary


def _reduced(ring: Recorder) -> list[str]:
    """What rank 0 called under each number; "" where nothing tells."""
    summary = reduce_rank(msgspec.structs.replace(Rank(0).evidence(), recorders=(ring,)))
    (stream,) = summary.streams
    numbers = memoryview(stream.calls).cast("H")
    return [summary.calls[n].operation if n < len(summary.calls) else "" for n in numbers]


def test_that_it_was_called_is_kept_and_what_it_called_is_not() -> None:
    whole, single = f"all_gather (batch of {MEMBERS})", "all_reduce"
    usual = [whole, single, whole]
    group = world(2)
    assert _reduced(_ring(group, slice(0, None), rounds=2)) == usual
    for lost in range(1, MEMBERS + 1):
        assert _reduced(_ring(group, slice(lost, None), rounds=2)) == ["", *usual[1:]]
    assert _reduced(_ring(group, slice(MEMBERS + 1, None), rounds=2)) == usual[1:], "it begins with a single call"


def test_a_file_that_broke_off_behind_a_call_that_has_ended_keeps_that() -> None:
    usual = [f"all_gather (batch of {MEMBERS})", "all_reduce"]
    assert _reduced(_ring(world(2), slice(None, MEMBERS + 2), cut=True, rounds=3)) == usual
    assert _reduced(_ring(world(2), slice(None, MEMBERS + 3), cut=True, rounds=3)) == usual, "one member of the next"


def test_behind_an_entry_that_could_not_be_read_nothing_is_read() -> None:
    """It may be what its rank waits in."""
    ring = _ring(world(2), slice(None), cut=True)
    kept = tuple(entry for entry in ring.operations if entry.record_id != MEMBERS + 3)
    usual = [f"all_gather (batch of {MEMBERS})", "all_reduce"]
    assert _reduced(msgspec.structs.replace(ring, operations=kept)) == usual


def test_what_is_unfinished_and_not_whole_is_waited_in_and_nothing_more_is_said_of_it() -> None:
    """A ring so small that what its rank waits in is half out of it."""
    ring = _ring(world(2), slice(-MEMBERS, None))
    (node,) = read_recorded_calls(ring)
    assert node.partial and not node.done
    summary = reduce_rank(msgspec.structs.replace(Rank(0).evidence(), recorders=(ring,)))
    assert summary.outran
    assert [pending.seq for pending in summary.pending] == [2 * ROUNDS - 1]


@pytest.mark.parametrize("spoiled", range(2, 14))
@pytest.mark.parametrize("ranks", [2, 4])
def test_who_has_an_entry_less_in_between_has_not_left_its_program(spoiled: int, ranks: int) -> None:
    """A ring whose rank waits like the others in a group of its own, and of which one entry could not be read."""
    group = world(ranks)
    rounds = [Call(group, elements=size, line=line) for _ in range(5) for size, line in ((9, 1), (9, 2), (9, 3))]
    done = len(rounds) - 2
    told = []
    for rank in range(ranks):
        looks = [recorder(rank, rounds, done, look=look) for look in (1, 2)]
        if rank == 0:
            kept = [tuple(o for o in look.operations if o.record_id != spoiled) for look in looks]
            looks = [
                msgspec.structs.replace(look, operations=left, cut_short=True)
                for look, left in zip(looks, kept, strict=True)
            ]
        told.append(Rank(rank, dumped=False, extra=tuple(looks)).evidence())
    case = Case([reduce_rank(rank) for rank in told], {}, ranks)
    assert not find_departures(case, case.summaries)
