"""One rank's recorders reduced to a RankSummary: linear in the entries, small in the result."""

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

from msgspec.structs import replace

from stallwatch.diagnosis.recorder import signature
from stallwatch.diagnosis.recorder.dumps import (
    EarlierLooks,
    Key,
    backend_of,
    by_backend,
    first_of_lanes,
    has_lost_pending,
    has_outrun,
    latest_of,
    reaches_its_end,
    same_source,
    unbroken,
)
from stallwatch.diagnosis.recorder.operations import (
    OPEN,
    PERHAPS_UNTOLD,
    Completion,
    HostThreads,
    RecordedCall,
    completion_of,
    read_recorded_calls,
)
from stallwatch.diagnosis.recorder.transfer_counts import TransferCounts
from stallwatch.formats.tested import newer_than_tested
from stallwatch.model.evidence import Operation, RankEvidence, Recorder
from stallwatch.model.summary import NO_CALL, Arrival, Call, PairCount, Pending, RankSummary, Stream, Transfer

_PENDING_KEPT = 64  # a CPU that runs ahead enqueues hundreds; a wait needs the first few of each lane and group
_ARRIVALS_KEPT = 256
_GAPS_FOR_PERIOD = 256


def reduce_rank(rank: RankEvidence) -> RankSummary:
    """Given one rank's evidence, return what its recorders say at the latest look that each of them answered whole."""
    if rank.summary is not None:
        return rank.summary  # made of the whole rings where they were read
    recorders = by_backend(map(unbroken, rank.recorders))
    latest = latest_of(recorders)
    training = next((beat.training_ident for beat in reversed(rank.heartbeat) if beat.training_ident), None)
    reduction = _Reduction(rank.rank, recorders, training)
    for recorder in latest:
        completion = completion_of(other for other in recorders if same_source(other, recorder))
        earlier = [
            other
            for other in recorders
            if other.look < recorder.look and same_source(other, recorder) and not other.cut_short
        ]
        reduction.add(recorder, [] if recorder.cut_short else earlier, completion)
    return reduction.result(
        look=max((recorder.look for recorder in latest), default=0), captured_at_ns=rank.captured_at_ns
    )


class _Reduction:
    """Accumulates recorders of one rank; tables are shared by all of them."""

    def __init__(self, rank: int, recorders: Iterable[Recorder], training: int | None) -> None:
        self.rank = rank
        self.backends: list[str] = []
        self.completion: list[Completion] = []
        self.groupless: list[str] = []
        self.untested: set[str] = set()
        self.calls: list[Call] = []
        self._call_ids: dict[tuple[object, ...], int] = {}
        self._sites: dict[int, str] = {}
        self.streams: list[Stream] = []
        self.pending: list[Pending] = []
        self.issued: list[Pending] = []
        self.pairs: list[PairCount] = []
        self.program: dict[int, list[tuple[int, int, int]]] = {}  # lane → (created, order, call)
        self.whole = True
        self.cut_short = False
        self.outran = False
        self.advanced: bool | None = None
        self.advanced_lanes: set[int] = set()
        self._order = 0
        self.lanes = HostThreads(recorders, training)

    def add(self, recorder: Recorder, earlier: Sequence[Recorder], completion: Completion) -> None:
        self.backends.append(backend_of(recorder))
        if not (recorder.groups or recorder.operations or recorder.cut_short):
            self.groupless.append(backend_of(recorder))
        self.untested |= set(_untested(recorder))
        self.completion.append(completion)
        nodes = read_recorded_calls(recorder, completion)
        if recorder.cut_short and nodes and nodes[-1].partial:
            nodes = nodes[:-1]  # a batch whose end the file has lost: nothing tells what it would have been
        self.outran = self.outran or any(node.partial and not node.done for node in nodes)
        whole = not recorder.operations or recorder.operations[0].record_id == 0
        self.whole = self.whole and whole
        self.cut_short = self.cut_short or recorder.cut_short
        before = self._before(recorder, nodes, earlier, completion)
        groups: dict[int, list[RecordedCall]] = {}
        for node in nodes:
            groups.setdefault(node.pg_id, []).append(node)
        for group in groups.values():
            self._add_group(recorder, group, before, whole, completion)
        lost = recorder.cut_short and has_lost_pending(recorder, nodes)
        self.outran = self.outran or lost or (not whole and has_outrun(recorder, nodes))

    def _before(
        self, recorder: Recorder, nodes: Sequence[RecordedCall], earlier: Sequence[Recorder], completion: Completion
    ) -> EarlierLooks | None:
        """What was pending at any earlier look, or None when there was none; notes what advanced since the last."""
        if not earlier:
            return None
        earlier = sorted(earlier, key=lambda look: look.look)
        read = [read_recorded_calls(look, completion) for look in earlier]
        keys: set[Key] = {(node.pg_id, node.key) for old in read for node in old if not node.done}
        last, before = earlier[-1], read[-1]
        known = last.operations[-1].record_id if last.operations else -1
        self.advanced = bool(self.advanced) or self._moved((last, before), (recorder, nodes))
        first = first_of_lanes(before, self.lanes)
        stands = {pg_id for pg_id, _ in first}
        for operation in reversed(recorder.operations):
            if operation.record_id <= known:
                break
            # Without threads, what another group records beside the one that stands may be another thread's.
            if operation.thread_id is not None or not stands or operation.pg_id in stands:
                self.advanced_lanes.add(self.lanes.of(operation))
        return EarlierLooks(keys, first, {(node.pg_id, node.key) for old in read for node in old})

    def _moved(
        self, old: tuple[Recorder, Sequence[RecordedCall]], new: tuple[Recorder, Sequence[RecordedCall]]
    ) -> bool:
        """Whether the training thread's operations went on between two looks; where an entry names no thread, whether
        anything did."""
        of_whom = self.lanes.of if all(self.lanes.knows(recorder.operations) for recorder, _ in (old, new)) else None
        words = [
            (
                max((op.record_id for op in recorder.operations if of_whom is None or of_whom(op) == 0), default=-1),
                sum(node.done for node in nodes if of_whom is None or of_whom(node.first) == 0),
                recorder.status if of_whom is None else (),
            )
            for recorder, nodes in (old, new)
        ]
        return words[0] != words[1]

    def _add_group(
        self,
        recorder: Recorder,
        nodes: Sequence[RecordedCall],
        before: EarlierLooks | None,
        whole: bool,
        completion: Completion,
    ) -> None:
        stream = len(self.streams)
        ids: dict[int, int] = {}
        completed = 0
        lane, starts = 0, _notes_starts(recorder)
        unfinished: list[RecordedCall] = []
        sent = TransferCounts()
        newest: deque[Pending] = deque(maxlen=_PENDING_KEPT)
        for node in nodes:
            lane = self.lanes.of(node.first)
            transfers: list[Transfer] = []
            if node.partial and not node.transfers:  # what it was would be compared with whole batches
                call = NO_CALL
                if node.seq > 0:
                    ids[node.seq] = call
                if not node.calls:
                    continue  # of which kind, its closing entry alone does not tell
                completed = max(completed, node.seq) if node.done else completed
            elif node.is_transfer:
                call = NO_CALL
                for entry in node.transfers:
                    call = self._call(stream, entry, (entry,))
                    self._note(lane, entry.created_ns, call)
                    transfers.append(sent.add(entry, done=node.done))
            else:
                call = self._call(stream, node.calls[0], node.calls, node.closed)
                self._note(lane, node.first.created_ns, call)
                ids[node.seq] = call
                if node.done:
                    completed = max(completed, node.seq)
            if not node.done:
                unfinished.append(node)
                if len(unfinished) <= _PENDING_KEPT:
                    waits = _pending(stream, node, call, lane, tuple(transfers), before)
                    self.pending.append(replace(waits, begun=node.first.state == "started" if starts else None))
            if completion in PERHAPS_UNTOLD:
                issued = _pending(stream, node, call, lane, tuple(transfers), before)
                newest.append(
                    replace(issued, seen_before=before and (node.pg_id, node.key) in before.all, was_first=None)
                )
        self.issued += newest
        if completion == "states":
            self.pending = [
                item
                for item in self.pending
                if item.stream != stream or item.transfers or item.timed_out or item.seq > completed
            ]
        first_open = min((node.seq for node in unfinished if not node.is_transfer), default=None)
        if first_open is not None and completion != "states":
            completed = min(completed, first_open - 1)
        self.streams.append(_stream(recorder, nodes, ids, completed, lane))
        self.pairs += sent.pairs(stream, whole)

    def _note(self, lane: int, created_ns: int | None, call: int) -> None:
        self.program.setdefault(lane, []).append((created_ns or 0, self._order, call))
        self._order += 1

    def _call(self, stream: int, first: Operation, members: Sequence[Operation], closed: bool = True) -> int:
        place = self._sites.get(id(first.frames))
        if place is None:
            place = self._sites[id(first.frames)] = signature.site(first.frames)
        key = (stream, first.name, first.input_sizes, first.output_sizes, first.input_dtypes, place, len(members))
        known = self._call_ids.get(key) if len(members) == 1 else None
        if known is not None:
            return known
        sizes = [signature.elements(member) for member in members]
        batch = f" ({'batch' if closed else OPEN} of {len(members)})" if len(members) > 1 else ""
        call = Call(
            stream=stream,
            operation=first.name + batch,
            elements=None if None in sizes else sum(size for size in sizes if size is not None),
            dtype=signature.dtype(first),
            site=place,
            shape=signature.shape(first),
            members=tuple(map(signature.member, members)) if len(members) > 1 else (),
        )
        index = self._call_ids.setdefault(("call", call), len(self.calls))
        if index == len(self.calls):
            self.calls.append(call)
        self._call_ids[key] = index
        return min(index, NO_CALL - 1)

    def result(self, look: int, captured_at_ns: int | None) -> RankSummary:
        lanes = range(max(self.program, default=-1) + 1)
        return RankSummary(
            rank=self.rank,
            look=look,
            backends=tuple(self.backends),
            calls=tuple(self.calls),
            streams=tuple(self.streams),
            pending=_in_order(self.pending),
            issued=_in_order(self.issued),
            completion=tuple(self.completion),
            untested=tuple(sorted(self.untested)),
            groupless=tuple(self.groupless),
            pairs=tuple(self.pairs),
            program=tuple(
                array("H", [call for _, _, call in sorted(self.program.get(lane, []))]).tobytes() for lane in lanes
            ),
            whole=self.whole,
            advanced=self.advanced,
            advanced_lanes=tuple(sorted(self.advanced_lanes)),
            captured_at_ns=captured_at_ns,
            cut_short=self.cut_short,
            outran=self.outran,
        )


def _pending(
    stream: int, node: RecordedCall, call: int, lane: int, transfers: tuple[Transfer, ...], before: EarlierLooks | None
) -> Pending:
    return Pending(
        record=node.record,
        lane=lane,
        stream=stream,
        call=call,
        seq=0 if node.is_transfer else node.seq,
        transfers=transfers,
        created_ns=node.first.created_ns,
        timeout_ms=node.first.timeout_ms,
        timed_out=node.timed_out,
        launched=node.launched,
        seen_before=None if before is None else (node.pg_id, node.key) in before.pending,
        was_first=None if before is None else (node.pg_id, node.key) in before.first,
    )


def _notes_starts(recorder: Recorder) -> bool:
    """NCCL's does with TORCH_NCCL_ENABLE_TIMING=1."""
    return any(operation.state == "started" or operation.started_ns is not None for operation in recorder.operations)


def _untested(recorder: Recorder) -> list[str]:
    library = "NCCL" if backend_of(recorder) == "nccl" else ""
    versions = {"flight recorder dump": recorder.version, library: recorder.comm_lib_version}
    return [f"{what} {version}" for what, version in versions.items() if what and newer_than_tested(what, version)]


def _stream(
    recorder: Recorder, nodes: Sequence[RecordedCall], ids: dict[int, int], completed: int, lane: int
) -> Stream:
    """What is kept of one group. `ids`: its collectives' calls, by number."""
    first = nodes[0]
    collectives = [node for node in nodes if not node.is_transfer]
    return Stream(
        description=first.group_description,
        name=first.group_name,
        backend=backend_of(recorder),
        ranks=_members(recorder, first),
        first_seq=min(ids, default=1),
        calls=_dense(ids),
        completed=completed,
        lane=lane,
        size_hint=_size_hint(collectives),
        arrivals=tuple(
            Arrival(node.seq, node.first.created_ns)
            for node in collectives[-_ARRIVALS_KEPT:]
            if node.first.created_ns is not None
        ),
        period_ns=_period_ns(collectives[-_GAPS_FOR_PERIOD:], ids),
        last_created_ns=nodes[-1].first.created_ns,
        cut_short=recorder.cut_short and not reaches_its_end(recorder, nodes),
    )


def _in_order(pending: Iterable[Pending]) -> tuple[Pending, ...]:
    return tuple(sorted(pending, key=lambda p: (p.lane, p.created_ns or 0, p.record)))


def _dense(ids: dict[int, int]) -> bytes:
    if not ids:
        return b""
    low, high = min(ids), max(ids)
    values = array("H", [NO_CALL]) * (high - low + 1)
    for seq, call in ids.items():
        values[seq - low] = call
    return values.tobytes()


def _members(recorder: Recorder, node: RecordedCall) -> tuple[int, ...]:
    """Members of a node's group. gloo keys the group that it made last '', whatever its entries say: it counts only for
    the default group, and if that is alone."""
    told = next((g.ranks for g in recorder.groups if g.name and g.name == node.group_name and g.ranks), ())
    alone = len({operation.group_name for operation in recorder.operations}) == 1 and len(recorder.status) <= 1
    if told or not (alone and node.group_description in ("default_pg", "") and len(recorder.groups) == 1):
        return told
    return recorder.groups[0].ranks if recorder.groups[0].name == "" else ()


def _size_hint(nodes: Sequence[RecordedCall]) -> int | None:
    for node in reversed(nodes):
        size = signature.group_size_by_shape(node.calls[0])
        if size is not None:
            return size
    return None


def _period_ns(nodes: Sequence[RecordedCall], ids: dict[int, int]) -> int | None:
    """Median time between equal calls, the most frequent call only: others may occur once an epoch."""
    times: dict[int, list[int]] = {}
    for node in nodes:
        if node.first.created_ns is not None:
            times.setdefault(ids[node.seq], []).append(node.first.created_ns)
    longest = max(times.values(), key=len, default=[])
    gaps = [after - before for before, after in pairwise(longest)]
    return int(median(gaps)) if len(gaps) >= 3 else None
