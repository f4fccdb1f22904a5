"""What a rank's own log tells of it: the exception that it ended with, and how its launcher saw it end."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stallwatch.diagnosis.frames.code_origin import Origin, code_origin
from stallwatch.diagnosis.logs.consequence import is_of_training, meaning
from stallwatch.diagnosis.logs.told import shown_message
from stallwatch.model.evidence import CodeFrame, LogEvent
from stallwatch.model.verdict import Frame

_TEXT_LIMIT = 300
# Kinds that say nothing about who failed first.
_WEAK = ("interrupted", "cancelled", "nccl_error", "init_timeout", "store_unreachable")


class Raised(NamedTuple):
    """An exception that a log ends with."""

    text: str  # "ValueError: bad shard"
    consequence: bool  # it only says that a peer or the store went away
    frame: Frame | None  # innermost line of the job's code in the traceback


def last_exception(events: Iterable[LogEvent], rank: int, *, shared: bool = False) -> Raised | None:
    """Given the events of a log, return its last exception. Those that another rank wrote are left out; where ranks
    share the file, so are those that name nobody."""
    own = [
        event
        for event in events
        if event.kind == "exception" and (event.rank == rank or (event.rank is None and not shared))
    ]
    own = [event for event in own if is_of_training(event)] or own
    return as_raised(_of_chain(own)) if own else None


def _of_chain(events: Sequence[LogEvent]) -> LogEvent:
    """The last exception; of those that were raised while others were handled, the first that is no consequence."""
    chain = [events[-1]]
    for event, after in zip(reversed(events[:-1]), reversed(events[1:]), strict=True):
        if not after.chained:
            break
        chain.append(event)
    if len(chain) > 1 and _follows(chain[-1]):
        return chain[-1]
    return next((event for event in chain if not _follows(event)), chain[0])


def _follows(event: LogEvent) -> bool:
    said = meaning(event)
    return bool(said.consequence) or said.kind in _WEAK


def as_raised(event: LogEvent) -> Raised:
    """Given an event with an exception, return it as what its rank raised, its text cut to a line."""
    message = shown_message(event)
    text = f"{event.exception}: {message}" if message else event.exception or ""
    return Raised(text[:_TEXT_LIMIT], _follows(event), job_frame(event.frame))


def job_frame(frame: CodeFrame | None) -> Frame | None:
    """A frame of a traceback, if it is the job's own code; else None."""
    if frame is None or code_origin(frame.filename).origin not in (Origin.JOB, Origin.LIBRARY):
        return None
    return Frame(frame.filename, frame.line, frame.name)


def logged_end(events: Iterable[LogEvent], rank: int) -> LogEvent | None:
    """The launcher's word on how this rank ended."""
    told = [event for event in events if event.kind == "launcher_failure" and event.rank in (rank, None)]
    return next((event for event in told if event.first), told[0] if told else None)
