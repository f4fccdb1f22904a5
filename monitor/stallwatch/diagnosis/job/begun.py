"""Hosts that are inside a coalesced call: they have recorded the first members of a batch and not its end.

What such a host has entered is nothing yet, and it has called nothing else than its peers: its batch is as theirs, as
far as it goes.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from msgspec.structs import replace

from stallwatch.model.summary import Call, RankSummary

if TYPE_CHECKING:
    from stallwatch.diagnosis.job.case import Case

OPEN = "open batch"  # in the name of a batch without its closing entry


def take_back(case: Case) -> None:
    """Take the newest call of every such host out of the case, and mark it as not issued."""
    for index, members in enumerate(case.streams):
        batches: dict[int, tuple[str, ...]] = {}
        for member in members.values():
            seq = member.stream.last_seq
            call = member.call_at(seq)
            if call is not None and call.members and OPEN not in call.operation:
                batches[seq] = max(batches.get(seq, ()), call.members, key=len)
        for rank, member in list(members.items()) if batches else ():
            seq = member.stream.last_seq
            call = member.call_at(seq)
            if call is None or member.stream.completed >= seq or not _is_begun(call, batches.get(seq, ())):
                continue
            members[rank] = member._replace(stream=replace(member.stream, calls=member.stream.calls[:-2]))
            stream = next(i for (r, i), group in case.group_of.items() if (r, group) == (rank, index))
            case.summaries[rank] = _without(case.summaries[rank], stream, seq, call)


def _is_begun(call: Call, batch: tuple[str, ...]) -> bool:
    if call.members:
        return OPEN in call.operation and call.members == batch[: len(call.members)]
    return bool(batch) and len(batch) > 1 and batch[0].startswith(f"{call.operation} of ")


def _without(summary: RankSummary, stream: int, seq: int, call: Call) -> RankSummary:
    pending = tuple(
        replace(item, launched=False) if (item.stream, item.seq) == (stream, seq) and not item.transfers else item
        for item in summary.pending
    )
    number = summary.calls.index(call)
    program = []
    for lane in summary.program:
        values = array("H", lane)
        if values and values[-1] == number:
            values.pop()
        program.append(values.tobytes())
    return replace(summary, pending=pending, program=tuple(program))
