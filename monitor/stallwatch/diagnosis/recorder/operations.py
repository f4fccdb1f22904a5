"""A recorder's entries as operations: how it tells that one has ended, batches as one, host threads, several looks."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

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
# started anew are no longer pending.


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
    first: Operation

    @property
    def is_transfer(self) -> bool:
        """Whether it is a single send or receive, or a batch of them."""
        return not self.calls


def read_recorded_calls(recorder: Recorder, completion: Completion | None = None) -> list[RecordedCall]:
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


def _group_nodes(operations: Sequence[Operation], settles: bool, completed: int | None) -> list[RecordedCall]:
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
        node = _node(operations[start:end], settles, completed, closes, lost_head=start == 0)
        if node is not None:
            nodes.append(node)
        start = end
    return nodes


def _node(
    entries: Sequence[Operation], settles: bool, completed: int | None, closes: bool, lost_head: bool
) -> RecordedCall | None:
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
    return RecordedCall(
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


# Host threads, numbered as lanes: operations of one lane wait for each other, lanes go on independently.
#
# The autograd engine records from threads of its own while the training thread is inside backward(): one lane.


_AUTOGRAD = "pt_autograd"
_DEFAULT_GROUP = "default_pg"
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
        """Whether each of them names its thread (before torch 2.8 none does)."""
        return all(operation.thread_id is not None for operation in operations)

    def of(self, operation: Operation) -> int:
        """The number of the host thread that recorded the operation: 0 is the training thread, and any that is not
        told."""
        thread = _thread(operation)
        return 0 if thread is None else self._numbers[thread]


def _thread(operation: Operation) -> str | None:
    return None if is_autograd(operation) else operation.thread_id


def is_started(operation: Operation) -> bool:
    """Recorded by a thread that Python's threading started, by its outermost frames."""
    return any(frame.filename.endswith("/threading.py") for frame in operation.frames[-_OUTERMOST:])


def is_autograd(operation: Operation) -> bool:
    """Recorded by a thread of the autograd engine, for the thread that is inside backward()."""
    return (operation.thread_name or "").startswith(_AUTOGRAD)


# Several dumps of one rank: which to read, which belong together, and what earlier ones, and the statuses before the
# entries, say of what the last one does not hold.


def by_backend(recorders: Iterable[Recorder]) -> list[Recorder]:
    """Given dumps, return one recorder for each back end in each of them: back ends may share a ring, and number their
    calls and tell of their ends each in its own way."""
    parts: list[Recorder] = []
    for recorder in recorders:
        backends = {operation.backend for operation in recorder.operations}
        if len(backends) < 2:
            parts.append(recorder)
        else:
            parts += _parts(recorder, sorted(backends))
    return parts


def _parts(recorder: Recorder, backends: Sequence[str]) -> list[Recorder]:
    entries = {name: tuple(entry for entry in recorder.operations if entry.backend == name) for name in backends}
    parts = {name: replace(recorder, backend=name, operations=entries[name]) for name in backends}
    telling = {_identity(entry) for name in backends if _tells(parts[name]) for entry in entries[name]}
    for name in backends:
        if not _tells(parts[name]):
            twice = {entry.group_name for entry in entries[name] if _identity(entry) in telling}
            kept = tuple(entry for entry in entries[name] if entry.group_name not in twice)
            parts[name] = replace(parts[name], operations=kept)
    return [part for part in parts.values() if part.operations]


def _tells(recorder: Recorder) -> bool:
    return completion_of((recorder,)) not in UNTOLD


def _identity(entry: Operation) -> tuple[str, int, str]:
    """What a hook on the process group ("allreduce") and the back end itself ("all_reduce") record of one call."""
    return entry.group_name, entry.collective_seq_id, entry.name.replace("_", "")


def latest_of(recorders: Iterable[Recorder]) -> list[Recorder]:
    """Of several dumps of a rank the newest one of each back end, ordered by back end."""
    best: dict[str, Recorder] = {}
    for recorder in recorders:
        known = best.get(backend_of(recorder))
        if known is None or _newness(recorder) > _newness(known):
            best[backend_of(recorder)] = recorder
    return [best[backend] for backend in sorted(best)]


def _newness(recorder: Recorder) -> tuple[bool, int, int, int, str]:
    """A dump that broke off has lost its newest entries: the look before it says more."""
    last = recorder.operations[-1].record_id if recorder.operations else -1
    return not recorder.cut_short, recorder.look, last, len(recorder.operations), recorder.source


def backend_of(recorder: Recorder) -> str:
    """The back end that wrote a dump, by itself or by its entries; "" where neither tells."""
    return recorder.backend or (recorder.operations[-1].backend if recorder.operations else "")


def same_source(one: Recorder, other: Recorder) -> bool:
    """Whether two dumps are looks at one recorder."""
    return backend_of(one) == backend_of(other)


Key = tuple[int, tuple[int, int]]  # group id and the numbers of a node in it


class EarlierLooks(NamedTuple):
    """What the looks before the last one say of operations that are unfinished now."""

    pending: set[Key]  # at any earlier look
    first: set[Key]  # of each lane, at the look before this one
    all: set[Key]  # that were recorded at any earlier look


def first_of_lanes(nodes: Iterable[RecordedCall], lanes: HostThreads) -> set[Key]:
    """Given a look's nodes, return the first of each lane that had been issued and had not finished."""
    first: dict[int, RecordedCall] = {}
    for node in nodes:
        if node.done or not node.launched:
            continue
        lane = lanes.of(node.first)
        known = first.get(lane)
        if known is None or _place(node) < _place(known):
            first[lane] = node
    return {(node.pg_id, node.key) for node in first.values()}


def _place(node: RecordedCall) -> tuple[int, int]:
    return node.first.created_ns or 0, node.record


def reaches_its_end(recorder: Recorder, nodes: Sequence[RecordedCall]) -> bool:
    """True when pg_status, which lies before the entries, names the last of a group's as its newest. It may be the
    number of a transfer, and those are counted apart: a lower one says nothing."""
    enqueued = next((status.enqueued for status in recorder.status if status.pg_id == nodes[-1].pg_id), -1)
    return enqueued == nodes[-1].seq and not any(node.transfers for node in nodes)


def has_outrun(recorder: Recorder, nodes: Sequence[RecordedCall]) -> bool:
    """True when others' calls have pushed a group's pending one, and so all of its own, out of the ring.

    What the ring still holds tells more: NCCL's entries complete at a dump, pg_status when the watchdog next looks."""
    held = {node.pg_id for node in nodes}
    return any(status.pending and status.pg_id not in held for status in recorder.status)


def has_lost_pending(recorder: Recorder, nodes: Sequence[RecordedCall]) -> bool:
    """True when pg_status, which lies before the entries, names a group's newest call as one that has not completed,
    and it is among the entries that the file has lost. Where transfers were recorded the numbers may be theirs."""
    newest: dict[int, int] = {}
    for node in nodes:
        newest[node.pg_id] = max(newest.get(node.pg_id, 0), node.seq)
    mixed = {node.pg_id for node in nodes if node.transfers}
    return any(
        status.pending and status.enqueued > newest.get(status.pg_id, 0)
        for status in recorder.status
        if status.pg_id not in mixed
    )


OPEN = "open batch"  # in the name of a batch without its closing entry
