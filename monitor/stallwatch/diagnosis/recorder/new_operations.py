"""Whether a thread issued operations between two looks at the recorders of its process."""

from stallwatch.diagnosis.recorder.operations import is_autograd, is_started
from stallwatch.model.evidence import Operation, Recorder


def new_operations(
    recorders: tuple[Recorder, ...], ident: str, *, in_main: bool = False, communicates: bool = False
) -> bool | None:
    """Whether the thread issued operations between the recorder's last two looks. None: not told.

    A background thread's operations do not count; where the stack carries no ident, one issuing thread is the loop,
    unless Python started that one, the loop is seen in one that it did not start (`in_main`), and either communicates
    there or the other has never used the default group."""
    newest: dict[str, dict[int, int]] = {}
    threads = issuers(recorders)  # also those of files that broke off: who issues is told by what they still hold
    recorders = tuple(recorder for recorder in recorders if not recorder.cut_short)
    for recorder in recorders:
        ids = [op.record_id for op in recorder.operations]
        newest.setdefault(recorder.backend, {})[recorder.look] = max(ids, default=-1)
    told = None
    for recorder in recorders:
        seen = newest[recorder.backend]
        if len(seen) < 2 or recorder.look != max(seen):
            continue
        earlier = next(one for one in recorders if one.backend == recorder.backend and one.look == sorted(seen)[-2])
        fresh = [op for op in recorder.operations if op.record_id > seen[earlier.look]]
        if _holds_the_active_alone(earlier, recorder):
            if not earlier.status:
                continue
            fresh = _enqueued_since(fresh, earlier, recorder)
        told = told or False
        if ident and threads:
            told = told or any(op.thread_id == ident or is_autograd(op) for op in fresh)
        elif not threads:  # dumps before 2.9 name no thread: only the default group is the loop's for sure
            told = told or any(op.group_description == "default_pg" for op in fresh)
            if fresh and not told:
                return None
        elif len(threads) <= 1:
            used = {op.group_description for one in recorders for op in one.operations}
            beside = in_main and (communicates or "default_pg" not in used)
            told = told or any(not (beside and is_started(op)) for op in fresh)
        elif fresh:
            return told or None
    return told


def _holds_the_active_alone(earlier: Recorder, later: Recorder) -> bool:
    """A dump without what had ended by then (torch's onlyActive): what the next one holds beside may be older."""
    return not any(_has_ended(op) for op in earlier.operations) and any(_has_ended(op) for op in later.operations)


def _has_ended(operation: Operation) -> bool:
    return operation.retired or operation.state == "completed"


def _enqueued_since(operations: list[Operation], earlier: Recorder, later: Recorder) -> list[Operation]:
    """Given operations, oldest first, return as many of each group, the newest, as its counter has gone up."""
    before = {status.pg_id: status.enqueued for status in earlier.status}
    more = {status.pg_id: status.enqueued - before.get(status.pg_id, 0) for status in later.status}
    fresh = []
    for operation in reversed(operations):
        if more.get(operation.pg_id, 0) > 0:
            more[operation.pg_id] -= 1
            fresh.append(operation)
    return fresh[::-1]


def issuers(recorders: tuple[Recorder, ...]) -> frozenset[str]:
    """Idents of the threads that issued operations."""
    return frozenset(op.thread_id for recorder in recorders for op in recorder.operations if op.thread_id is not None)
