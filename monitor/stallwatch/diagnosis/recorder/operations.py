"""A recorder's entries as operations: how it tells that one has ended, batches as one, host threads."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from stallwatch.model.evidence import GroupStatus, Operation, Recorder

# How a recorder tells that an operation has ended: decided by what its entries do, never by its name.
#
# NCCL's classic recorder moves entries to "completed". gloo's, and those of newer back ends, leave every entry
# "scheduled" and retire it when it has ended. Some retire when the call was issued, or never: then nothing tells what
# has ended, and one rank's dump alone may not show which of these it is.


Completion = Literal["states", "retired", "all_retired", "none_retired", "none_yet"]
"""states: entries are seen to complete. retired: some are retired and some are not. all_retired: everything has ended,
or entries are retired at issue. none_retired: nothing is ever told. none_yet: nothing has ended, and too little was
called to say that something must have: as the other ranks' recorders do."""

UNTOLD: frozenset[str] = frozenset({"all_retired", "none_retired"})
PERHAPS_UNTOLD = UNTOLD | {"none_yet"}
# A call that was made so often from one line was made in a loop: its first rounds have ended.
_ROUNDS = 3


def completion_of(looks: Iterable[Recorder]) -> Completion:
    """Given one recorder's looks, return how it tells that an operation has ended."""
    operations = [operation for look in looks for operation in look.operations]
    if any(operation.state in ("completed", "started") for operation in operations):
        return "states"
    retired = {operation.retired for operation in operations}
    if retired == {True}:
        return "all_retired"
    ended = any(status.completed > 0 for look in looks for status in look.status)
    if retired == {False} and not ended:
        return "none_retired" if _goes_round(operations) else "none_yet"
    return "retired"


def _goes_round(operations: Sequence[Operation]) -> bool:
    calls = Counter((made.pg_id, made.name, made.input_sizes, made.frames) for made in operations)
    return max(calls.values(), default=0) >= _ROUNDS


# A flight recorder's entries as calls: one per collective, single transfer, or batch; what is done, what is not.
#
# The traps that live here: members of a batch never complete, its closing entry does; an entry whose CUDA events are
# not recorded yet, for its host is still inside the call, reads "completed"; entries of a group that was destroyed or
# started anew are no longer pending; a ring drops entries, not calls, and a file breaks off between any two of them.


_CLOSING = "coalesced"
_RESET_DISTANCE = 4  # numbers of one group may swap by a few when two threads record; a restart begins at 0 or 1
LEAP = 1 << 20  # numbers of one group that no ring spans


class RecordedCall(msgspec.Struct, frozen=True):
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
    partial: bool  # a batch, or what may be one, of which members are lost: what it called is not known
    first: Operation

    @property
    def is_transfer(self) -> bool:
        """Whether it is a single send or receive, or a batch of them."""
        return not self.calls


class _Lost(NamedTuple):
    """Records next to which others are missing: the ring's oldest, and the newest of a file that broke off."""

    before: int | None
    after: int | None
    retires_members: bool  # perhaps; then only what has completed has ended by itself, and is none

    def cuts(self, entries: Sequence[Operation]) -> bool:
        """Whether a batch's members may be missing: of one that begins, the file has but a call of the same looks."""
        first, last = entries[0], entries[-1]
        if first is last and last.name != _CLOSING:
            ended = last.state == "completed" or (last.retired and not self.retires_members)
            return last.record_id == self.after and not ended
        return first.record_id == self.before or (last.record_id == self.after and last.name != _CLOSING)


def _losses(recorder: Recorder, completion: Completion) -> _Lost:
    held = recorder.operations
    before = held[0].record_id if held and held[0].record_id > 0 else None
    if not (recorder.cut_short and held):
        return _Lost(before, None, False)
    batches = any(entry.name == _CLOSING for entry in held)
    return _Lost(before, held[-1].record_id, batches or completion in PERHAPS_UNTOLD)


def read_recorded_calls(recorder: Recorder, completion: Completion | None = None) -> list[RecordedCall]:
    """Given a recorder and how its looks tell that something has ended, return its nodes in order of recording; older
    lives of a group are left out."""
    completion = completion or completion_of((recorder,))
    settles, lost = completion == "states", _losses(recorder, completion)
    told = {status.pg_id: status for status in recorder.status}
    nodes = []
    for pg_id, operations in _by_group(recorder.operations).items():
        status = told.get(pg_id)
        of_group = _group_nodes(operations, settles, status.completed if status else None, lost)
        if settles and of_group and told:
            of_group[-1] = _still_inside(of_group, status)
        nodes += of_group
    nodes.sort(key=lambda node: node.record)
    return nodes


def _still_inside(nodes: Sequence[RecordedCall], status: GroupStatus | None) -> RecordedCall:
    """The newest node of a group, not done where its host has not come back from the call. Only then is it enqueued,
    and before that its events are not recorded, and such an event reads as one that is over."""
    last = nodes[-1]
    before = _number(nodes[-2]) if len(nodes) > 1 else None
    enqueued = status.enqueued if status else -1
    inside = enqueued != _number(last) and (enqueued == before if before is not None else enqueued <= 0)
    return msgspec.structs.replace(last, done=False) if last.done and not last.retired and inside else last


def _number(node: RecordedCall) -> int:
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
        if entries and operation.collective_seq_id - entries[-1].collective_seq_id > LEAP:
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


def _group_nodes(
    operations: Sequence[Operation], settles: bool, completed: int | None, lost: _Lost
) -> list[RecordedCall]:
    closes = any(operation.name == _CLOSING for operation in operations)
    nodes: list[RecordedCall] = []
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
        node = _node(operations[start:end], settles, completed, closes, lost, is_oldest=start == 0)
        if node is not None:
            nodes.append(node)
        start = end
    return nodes


def _node(
    entries: Sequence[Operation],
    settles: bool,
    completed: int | None,
    closes: bool,
    lost: _Lost,
    is_oldest: bool,
) -> RecordedCall | None:
    first, last = entries[0], entries[-1]
    transfers = tuple([entry for entry in entries if entry.is_p2p])
    calls = () if transfers else tuple([entry for entry in entries if entry.name != _CLOSING])
    partial = lost.cuts(entries)
    if not transfers and not calls and not partial:
        if is_oldest:
            return None  # the ring has lost the members: nothing says what this closed
        transfers = (last,)
    closed = last.name == _CLOSING or len(entries) == 1
    if closed:
        done, timed_out = _settled(last, settles, completed)
    else:
        states = [_settled(entry, settles, completed) for entry in entries]
        done, timed_out = all(state[0] for state in states), any(state[1] for state in states)
    return RecordedCall(
        first.record_id,
        first.pg_id,
        first.group_name,
        first.group_description,
        first.collective_seq_id,
        (first.collective_seq_id, first.p2p_seq_id),
        calls,
        transfers,
        done,
        timed_out,
        launched=closed or not closes or done,
        retired=last.retired,
        closed=closed,
        partial=partial,
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


# Host threads, numbered as lanes: operations of one lane wait for each other, lanes go on independently.
#
# The autograd engine records from threads of its own while the training thread is inside backward(): one lane.


_AUTOGRAD = "pt_autograd"
_DEFAULT_GROUP = "default_pg"
_STARTED = "started"  # any thread that Python's threading started, where no entry names its own
_OUTERMOST = 3  # frames: _bootstrap, _bootstrap_inner, run


class HostThreads:
    """Numbers a process' threads; 0 is the training thread: the one that steps, by the hook; where no hook tells, one
    that Python's threading did not start, and of these the one that uses the default group first, or records first."""

    def __init__(self, recorders: Iterable[Recorder], training: int | None = None) -> None:
        """`training`: ident of the thread that steps."""
        own = str(training)
        first: dict[str, tuple[bool, bool, bool, int, int]] = {}
        started_by: dict[int, bool] = {}  # by id of the frames, which calls of one site share
        for recorder in recorders:
            for operation in recorder.operations:
                thread = _thread(operation)
                if thread is None:
                    continue
                elsewhere = operation.group_description != _DEFAULT_GROUP
                started = started_by.get(id(operation.frames))
                if started is None:
                    started = started_by[id(operation.frames)] = is_started(operation)
                rank = (thread != own, started, elsewhere, operation.created_ns or 0, operation.record_id)
                if thread not in first or rank < first[thread]:
                    first[thread] = rank
        order = sorted(first, key=lambda name: first[name])
        # Threads beside it, in groups of their own: the training thread has recorded nothing yet.
        beside = bool(order) and all(first[order[0]][:3])
        self._numbers = {thread: number for number, thread in enumerate(order, 1 if beside else 0)}

    def knows(self, operations: Iterable[Operation]) -> bool:
        """Whether each of them names its thread (before torch 2.8 none does), or their frames tell one apart."""
        return _STARTED in self._numbers or all(operation.thread_id is not None for operation in operations)

    def of(self, operation: Operation) -> int:
        """The number of the host thread that recorded the operation: 0 is the training thread, and any that is not
        told."""
        thread = _thread(operation)
        return 0 if thread is None else self._numbers[thread]


def _thread(operation: Operation) -> str | None:
    if is_autograd(operation):
        return None
    return operation.thread_id or (_STARTED if is_started(operation) else None)


def is_started(operation: Operation) -> bool:
    """Recorded by a thread that Python's threading started, by its outermost frames."""
    return any(frame.filename.endswith("/threading.py") for frame in operation.frames[-_OUTERMOST:])


def is_autograd(operation: Operation) -> bool:
    """Recorded by a thread of the autograd engine, for the thread that is inside backward()."""
    return (operation.thread_name or "").startswith(_AUTOGRAD)


OPEN = "open batch"  # in the name of a batch without its closing entry
