"""How a recorder tells that an operation has ended: decided by what its entries do, never by its name.

NCCL's classic recorder moves entries to "completed". gloo's, and those of newer back ends, leave every entry
"scheduled" and retire it when it has ended. Some retire when the call was issued, or never: then nothing tells what
has ended, and one rank's dump alone may not show which of these it is.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from stallwatch.model.evidence import Operation, Recorder

Completion = Literal["states", "retired", "all_retired", "none_retired"]
"""states: entries are seen to complete. retired: some are retired and some are not. all_retired: everything has ended,
or entries are retired at issue. none_retired: nothing has ended yet, or nothing is ever told."""

UNTOLD: frozenset[str] = frozenset({"all_retired", "none_retired"})
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
    if retired == {False} and not ended and _goes_round(operations):
        return "none_retired"
    return "retired"


def _goes_round(operations: Sequence[Operation]) -> bool:
    calls = Counter((made.pg_id, made.name, made.input_sizes, made.frames) for made in operations)
    return max(calls.values(), default=0) >= _ROUNDS
