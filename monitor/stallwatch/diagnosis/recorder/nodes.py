"""A flight recorder's entries as nodes: one per collective, single transfer, or batch; what is done, what is not.

The traps that live here: members of a batch never complete, its closing entry does; an entry whose CUDA events are not
recorded yet, for its host is still inside the call, reads "completed"; entries of a group that was destroyed or
started anew are no longer pending.
"""

from collections.abc import Iterable, Sequence

import msgspec

from stallwatch.diagnosis.recorder.completion import Completion, completion_of
from stallwatch.model.evidence import GroupStatus, Operation, Recorder

_CLOSING = "coalesced"
_RESET_DISTANCE = 4  # numbers of one group may swap by a few when two threads record; a restart begins at 0 or 1
_LEAP = 1 << 20


class Node(msgspec.Struct, frozen=True):
    """One thing that all members of a group, or both ends of a pair, do together."""

    record: int
    pg_id: int
    group_name: str
    group_description: str
    seq: int  # collective_seq_id; comparable across ranks only when `transfers` is empty
    key: tuple[int, int]  # (collective_seq_id, p2p_seq_id): unique within the group and process
    calls: tuple[Operation, ...]  # the collective or its coalesced members, without transfers
    transfers: tuple[Operation, ...]
    done: bool
    timed_out: bool
    launched: bool
    retired: bool
    closed: bool  # False: a batch whose closing entry is not there
    first: Operation

    @property
    def is_transfer(self) -> bool:
        return not self.calls


def read_nodes(recorder: Recorder, completion: Completion | None = None) -> list[Node]:
    """Given a recorder and how its looks tell that something has ended, return its nodes in order of recording; older
    lives of a group are left out."""
    settles = (completion or completion_of((recorder,))) == "states"
    told = {status.pg_id: status for status in recorder.status}
    nodes = []
    for pg_id, operations in _by_group(recorder.operations).items():
        status = told.get(pg_id)
        of_group = _group_nodes(operations, settles, status.completed if status else None)
        if settles and of_group and told:
            of_group[-1] = _still_inside(of_group, status)
        nodes += of_group
    nodes.sort(key=lambda node: node.record)
    return nodes


def _still_inside(nodes: Sequence[Node], status: GroupStatus | None) -> Node:
    """The newest node of a group, not done where its host has not come back from the call. Only then is it enqueued,
    and before that its events are not recorded, and such an event reads as one that is over."""
    last = nodes[-1]
    before = _number(nodes[-2]) if len(nodes) > 1 else None
    enqueued = status.enqueued if status else -1
    inside = enqueued != _number(last) and (enqueued == before if before is not None else enqueued <= 0)
    return msgspec.structs.replace(last, done=False) if last.done and not last.retired and inside else last


def _number(node: Node) -> int:
    """As pg_status counts: transfers by themselves."""
    return node.key[1] if node.is_transfer else node.key[0]


def _by_group(operations: Iterable[Operation]) -> dict[int, list[Operation]]:
    """Entries of each live group: of several lives (new id, or numbers that start again) only the last counts."""
    groups: dict[int, list[Operation]] = {}
    life: dict[tuple[str, str], int] = {}
    for operation in operations:
        identity = (operation.group_name, operation.group_description)
        if life.setdefault(identity, operation.pg_id) != operation.pg_id:
            groups.pop(life[identity], None)
            life[identity] = operation.pg_id
        entries = groups.setdefault(operation.pg_id, [])
        if entries and operation.collective_seq_id - entries[-1].collective_seq_id > _LEAP:
            continue  # no dump of torch's counts so: a spoiled number, for which a hole of gigabytes would be kept
        if entries and _starts_again(entries[-1], operation):
            entries.clear()
        entries.append(operation)
    return groups


def _starts_again(before: Operation, after: Operation) -> bool:
    if after.op_id > before.op_id and after.collective_seq_id >= before.collective_seq_id:
        return False
    back = before.collective_seq_id - after.collective_seq_id
    return back > _RESET_DISTANCE or (back > 1 and after.collective_seq_id <= 1)


def _group_nodes(operations: Sequence[Operation], settles: bool, completed: int | None) -> list[Node]:
    closes = any(operation.name == _CLOSING for operation in operations)
    nodes: list[Node] = []
    start = 0
    count = len(operations)
    for end in range(1, count + 1):
        here = operations[start]
        if (
            end < count
            and operations[end].collective_seq_id == here.collective_seq_id
            and operations[end].p2p_seq_id == here.p2p_seq_id
        ):
            continue
        node = _node(operations[start:end], settles, completed, closes, lost_head=start == 0)
        if node is not None:
            nodes.append(node)
        start = end
    return nodes


def _node(
    entries: Sequence[Operation], settles: bool, completed: int | None, closes: bool, lost_head: bool
) -> Node | None:
    first, last = entries[0], entries[-1]
    transfers = tuple(entry for entry in entries if entry.is_p2p)
    calls = () if transfers else tuple(entry for entry in entries if entry.name != _CLOSING) or ()
    if not transfers and not calls:
        if lost_head:
            return None  # the ring has lost the members: nothing says what this closed
        transfers = (last,)
    closed = last.name == _CLOSING or len(entries) == 1
    if closed:
        done, timed_out = _settled(last, settles, completed)
    else:
        states = [_settled(entry, settles, completed) for entry in entries]
        done, timed_out = all(state[0] for state in states), any(state[1] for state in states)
    return Node(
        record=first.record_id,
        pg_id=first.pg_id,
        group_name=first.group_name,
        group_description=first.group_description,
        seq=first.collective_seq_id,
        key=(first.collective_seq_id, first.p2p_seq_id),
        calls=calls,
        transfers=transfers,
        done=done,
        timed_out=timed_out,
        launched=closed or not closes or done,
        retired=last.retired,
        closed=closed,
        first=first,
    )


def _settled(operation: Operation, settles: bool, completed: int | None) -> tuple[bool, bool]:
    """Return (done, timed out)."""
    if operation.state == "completed":
        return True, False
    if settles:
        return False, operation.retired
    if operation.retired:
        return True, False
    return completed is not None and completed >= 0 and operation.op_id <= completed, False
