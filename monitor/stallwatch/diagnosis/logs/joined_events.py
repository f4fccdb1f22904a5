"""Events of a log that are one failure told in several lines, or read in several ways: as one."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from stallwatch.diagnosis.logs.consequence import CANN_OF_OTHERS, passes_on
from stallwatch.model.log_event import LogEvent

_CANN_LINES: Final = 3  # from HCCL's exception to CANN's reason: torch_npu prints its own number between them
_OF_HCCL: Final = re.compile(r"hccl function error|ops function error: hccl", re.IGNORECASE)


def merged(events: Sequence[LogEvent]) -> list[tuple[LogEvent, str]]:
    """An exception whose last line means more by itself comes as two events of one line: it is told once, as that."""
    events = _by_whom_they_are(_with_reasons(events))
    others = {(event.source, event.line): event for event in events if event.kind != "exception"}
    exceptions = {(event.source, event.line) for event in events if event.kind == "exception"}
    told = []
    for event in events:
        other = others.get((event.source, event.line))
        if (
            event.kind == "exception"
            and other is not None
            and (
                passes_on(event) or other.kind == "process_failed"  # spawn's, to torch 1.7
            )
        ):
            told.append((other, other.kind))
        elif event.kind == "exception" and other is not None:
            fields = {name: getattr(other, name) for name in ("ranks", "sides", "group_rank", "numel_in", "numel_out",
                      "joined", "expected", "seq", "operation", "enqueued", "completed", "peer")}  # fmt: skip
            fields["went_on"] = event.went_on or other.went_on
            told.append((msgspec.structs.replace(event, **fields), other.kind))
        elif event.kind == "exception" or (event.source, event.line) not in exceptions:
            told.append((event, event.kind))
    return told


def _by_whom_they_are(events: Sequence[LogEvent]) -> list[LogEvent]:
    """What ranks pass on to each other, once and as its own rank's. That one counts within their group: it is the job's
    where its own log, too, tells of it, or rank 0's alone does."""
    tellers = {event.rank for event in events if event.passed_from is not None and event.rank is not None}
    out: dict[tuple[object, ...], LogEvent] = {}
    for at, event in enumerate(events):
        if event.passed_from is None:
            out[at,] = event
            continue
        known = event.passed_from >= 0 and (event.passed_from in tellers or tellers <= {0})
        rank = event.passed_from if known else None
        key = event.passed_from, event.exception, event.message
        out.setdefault(key, msgspec.structs.replace(event, rank=rank, local_rank=None))
    return list(out.values())


def _with_reasons(events: Sequence[LogEvent]) -> list[LogEvent]:
    """Exceptions of HCCL's calls with the name of CANN's reason, which stands below them."""
    out = list(events)
    for at, (event, after) in enumerate(pairwise(events)):
        of_hccl = event.kind == "exception" and _OF_HCCL.search(event.message or "") is not None
        beneath = (event.source, event.rank) == (after.source, after.rank) and after.line <= event.line + _CANN_LINES
        if of_hccl and beneath and (reason := CANN_OF_OTHERS.search(after.text)):
            out[at] = msgspec.structs.replace(event, message=f"{event.message} ({reason[0]})")
    return out
