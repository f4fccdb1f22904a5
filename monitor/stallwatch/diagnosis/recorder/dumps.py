"""Several dumps of one rank: which to read, which belong together, and what earlier ones, and the statuses before the
entries, say of what the last one does not hold."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from stallwatch.diagnosis.recorder.operations import UNTOLD, HostThreads, RecordedCall, completion_of
from stallwatch.model.evidence import Operation, Recorder


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


def unbroken(recorder: Recorder) -> Recorder:
    """Given a dump, return what lies before the first gap of one that has lost entries: an entry that could not be read
    may be the one that its rank waits in, and without it the order of calls is another."""
    held = recorder.operations
    gaps = (n for n, (one, other) in enumerate(pairwise(held), 1) if other.record_id != one.record_id + 1)
    end = next(gaps, len(held)) if recorder.cut_short else len(held)
    return recorder if end == len(held) else replace(recorder, operations=held[:end])


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
