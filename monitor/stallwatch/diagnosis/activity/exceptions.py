"""The last uncaught-looking exception in a rank's log, and whether it only tells that a peer went away."""

import re
from typing import NamedTuple

from stallwatch.diagnosis.frames import Origin, place
from stallwatch.model.verdict import Frame


class Raised(NamedTuple):
    text: str  # "ValueError: bad shard"
    consequence: bool
    frame: Frame | None  # innermost line of the job's code in the traceback


# torchrun --tee, torch itself and Ray put names before a line; ANSI colours may come before that.
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(r"^\s*(?:\[(?:default|rank)?(\d+)\]:?\s?|\(\w+ pid=\d+[^)]*\)\s?)+")
_RANK = re.compile(r"\[rank(\d+)\]")
_HEADER = re.compile(r"^Traceback \(most recent call last\)")
_LINE = re.compile(r'^\s+File "([^"]+)", line (\d+), in (.+)$')
_END = re.compile(
    r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure|Timeout|Warning)?)(?::\s?(.*))?$"
)
# Texts of gloo, NCCL and the store when somebody else failed first.
_CONSEQUENCE = re.compile(
    r"Connection (?:closed by peer|reset by peer|refused|was likely closed)|Broken pipe|Timed out waiting \d+ms"
    r"|DistBackendError|DistNetworkError|DistStoreError|remote process exited|NCCL communicator was aborted"
    r"|Watchdog caught collective|timed out in blocking wait|Socket Timeout|recvValue|ncclRemoteError|ncclInternalError"
    r"|gloo.*(?:timeout|timed out)|monitoredBarrier|SignalException|received death signal|ChildFailedError"
    r"|KeyboardInterrupt|wait timeout after|store based barrier",
    re.IGNORECASE,
)
_TEXT_LIMIT = 300


def last_exception(log: tuple[str, ...], rank: int, *, shared: bool = False) -> Raised | None:
    """Given the tail of a log, return the last traceback's exception. Lines that another rank wrote are left out; where
    ranks share the file, so are those that name nobody."""
    raised = None
    frames: list[Frame] = []
    inside = False
    for raw in log:
        text = _ANSI.sub("", raw).rstrip()
        writer = _RANK.search(text[:40])
        if (writer is None and shared) or (writer and int(writer.group(1)) != rank):
            continue
        line = _PREFIX.sub("", text) if _PREFIX.match(text) else text
        if _HEADER.match(line.strip()):
            inside, frames = True, []
        elif inside and (found := _LINE.match(line)):
            frames.append(Frame(found.group(1), int(found.group(2)), found.group(3).strip()))
        elif inside and line and not line[0].isspace() and (end := _END.match(line)):
            message = f"{end.group(1)}: {end.group(2)}" if end.group(2) else end.group(1)
            raised = Raised(message[:_TEXT_LIMIT], bool(_CONSEQUENCE.search(line)), _job_frame(frames))
            inside = False
    return raised


def is_consequence(text: str) -> bool:
    """Whether an exception's text only says that a peer or the store went away."""
    return bool(_CONSEQUENCE.search(text))


def _job_frame(frames: list[Frame]) -> Frame | None:
    """A traceback prints the innermost line last."""
    for origins in ({Origin.JOB}, {Origin.LIBRARY}):
        for frame in reversed(frames):
            if place(frame.file).origin in origins:
                return frame
    return None
