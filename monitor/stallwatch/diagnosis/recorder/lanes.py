"""Host threads as lanes: operations of one lane wait for each other, lanes go on independently.

The autograd engine records from threads of its own while the training thread is inside backward(): one lane.
"""

from collections.abc import Iterable

from stallwatch.model.evidence import Operation, Recorder

_AUTOGRAD = "pt_autograd"
_DEFAULT_GROUP = "default_pg"
_OUTERMOST = 3  # frames: _bootstrap, _bootstrap_inner, run


class Lanes:
    """Numbers a process' threads; 0 is the training thread: the one that steps, by the hook; where no hook tells, one
    that Python's threading did not start, and of these the one that uses the default group first, or records first."""

    def __init__(self, recorders: Iterable[Recorder], training: int | None = None) -> None:
        """`training`: ident of the thread that steps."""
        own = str(training)
        first: dict[str, tuple[bool, bool, bool, int, int]] = {}
        for recorder in recorders:
            for operation in recorder.operations:
                thread = _thread(operation)
                if thread is None:
                    continue
                elsewhere = operation.group_description != _DEFAULT_GROUP
                started = _is_started(operation)
                rank = (thread != own, started, elsewhere, operation.created_ns or 0, operation.record_id)
                if thread not in first or rank < first[thread]:
                    first[thread] = rank
        self._numbers = {thread: number for number, thread in enumerate(sorted(first, key=lambda name: first[name]))}

    def knows(self, operations: Iterable[Operation]) -> bool:
        """Whether each of them names its thread (before torch 2.8 none does)."""
        return all(operation.thread_id is not None for operation in operations)

    def of(self, operation: Operation) -> int:
        thread = _thread(operation)
        return 0 if thread is None else self._numbers[thread]


def _thread(operation: Operation) -> str | None:
    return None if is_autograd(operation) else operation.thread_id


def _is_started(operation: Operation) -> bool:
    """Recorded by a thread that Python's threading started, by its outermost frames."""
    return any(frame.filename.endswith("/threading.py") for frame in operation.frames[-_OUTERMOST:])


def is_autograd(operation: Operation) -> bool:
    """Recorded by a thread of the autograd engine, for the thread that is inside backward()."""
    return (operation.thread_name or "").startswith(_AUTOGRAD)
