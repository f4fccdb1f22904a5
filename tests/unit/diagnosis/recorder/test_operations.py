"""Entries as nodes: what is done, what is pending, what belongs to an older life of a group."""

from typing import Any

import msgspec

from stallwatch.diagnosis.recorder.operations import RecordedCall, read_recorded_calls
from stallwatch.model.evidence import GroupStatus, Operation, Recorder
from tests.builders.job import Call, Group, operations, recorder, transfer, world

W2 = world(2)


def _with(entries: tuple[Operation, ...], **fields: Any) -> Recorder:
    return msgspec.structs.replace(recorder(0, (Call(W2),)), operations=entries, **fields)


def _pending(nodes: list[RecordedCall]) -> list[int]:
    return [node.seq for node in nodes if not node.done]


def test_members_of_a_batch_have_the_state_of_the_closing_entry() -> None:
    batch = transfer(W2, ("send", 1), ("recv", 1), batched=True)
    done, open_ = read_recorded_calls(recorder(0, (batch, batch), 1))
    assert (done.done, open_.done) == (True, False)
    assert len(done.transfers) == 2
    assert done.is_transfer


def test_a_batch_without_closing_entry_is_not_issued() -> None:
    closed = transfer(W2, ("send", 1), ("recv", 1), batched=True)
    open_ = transfer(W2, ("send", 1), ("recv", 1), batched=True, closed=False)
    assert [node.launched for node in read_recorded_calls(recorder(0, (closed, open_), 1))] == [True, False]


def test_a_closing_entry_is_not_a_collective() -> None:
    batch = transfer(W2, ("send", 1), batched=True)
    nodes = read_recorded_calls(recorder(0, (Call(W2), batch, Call(W2))))
    assert [node.seq for node in nodes if not node.is_transfer] == [1, 2]


def test_gloo_tells_by_retired() -> None:
    assert _pending(read_recorded_calls(recorder(0, (Call(W2),) * 3, 2, backend="gloo"))) == [3]


def test_gloo_tells_by_group_status_too() -> None:
    entries = tuple(
        msgspec.structs.replace(entry, retired=False) for entry in operations(0, (Call(W2),) * 3, 0, "gloo")
    )
    status = (GroupStatus(0, 3, -1, 2),)
    assert _pending(read_recorded_calls(_with(entries, backend="gloo", status=status))) == [3]


def test_retired_and_not_completed_has_timed_out() -> None:
    entries = tuple(msgspec.structs.replace(entry, retired=True) for entry in operations(0, (Call(W2),) * 2, 1))
    _, node = read_recorded_calls(_with(entries))
    assert (node.done, node.timed_out) == (False, True)


def _statuses(enqueued: int, completed: int) -> tuple[GroupStatus, ...]:
    return (GroupStatus(0, enqueued, -1, completed),)


def test_an_entry_that_is_not_enqueued_yet_has_not_completed_whatever_its_state_says() -> None:
    """Its host is inside the call, its events are not recorded, and such an event reads as one that is over."""
    entries = operations(0, (Call(W2),) * 3, 3)
    entries = (*entries[:2], msgspec.structs.replace(entries[2], retired=False))
    assert _pending(read_recorded_calls(_with(entries, status=_statuses(2, 2)))) == [3]
    assert _pending(read_recorded_calls(_with(entries, status=_statuses(3, 2)))) == [], "the watchdog comes by later"
    assert _pending(read_recorded_calls(_with(entries, status=()))) == [], "nothing tells"


def test_a_transfer_counts_by_itself() -> None:
    calls = (Call(W2), Call(W2), transfer(W2, ("send", 1)))
    entries = operations(0, calls, 3)
    entries = (*entries[:2], msgspec.structs.replace(entries[2], retired=False))
    inside, enqueued = (read_recorded_calls(_with(entries, status=_statuses(number, 2))) for number in (2, 1))
    assert [node.done for node in inside] == [True, True, False]
    assert [node.done for node in enqueued] == [True, True, True]


def test_numbers_that_start_again_are_a_new_life() -> None:
    first = operations(0, (Call(W2),) * 9, 8)
    second = operations(0, (Call(W2),) * 2, 2, first_record=9)
    assert _pending(read_recorded_calls(_with((*first, *second)))) == []


def test_a_group_made_anew_leaves_the_old_ones_pending_entries_behind() -> None:
    old, new = Group("0", "default_pg", (0, 1), 0), Group("0", "default_pg", (0, 1), 4)
    entries = (*operations(0, (Call(old),) * 3, 2), *operations(0, (Call(new),), 1, first_record=3))
    nodes = read_recorded_calls(_with(entries))
    assert _pending(nodes) == []
    assert {node.pg_id for node in nodes} == {4}
