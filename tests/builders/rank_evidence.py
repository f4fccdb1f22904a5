"""Evidence of one rank, written short: stacks as "function@path:line" lines, innermost first."""

from typing import Any, Unpack

from stallwatch.formats.training_log import parse
from stallwatch.model.evidence import (
    CodeFrame,
    Operation,
    ProcessLook,
    RankEvidence,
    Recorder,
    SourceLine,
    Stacks,
    ThreadStack,
    ThreadState,
)
from stallwatch.model.log_event import LogEvent
from stallwatch.model.snapshot import Heartbeat
from tests.builders.heartbeat import HeartbeatFields, heartbeat

PID = 700
STDLIB = "/usr/lib/python3.11"
TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
JOB = "/srv/job/train.py"
MODULE = f"<module>@{JOB}:99"
C10D = "TORCH/distributed/distributed_c10d.py"
LOADER = "TORCH/utils/data/dataloader.py"
STEP = ("step@JOB:20", MODULE)
WAITS = ("Condition.wait@PY/threading.py:327", "load@JOB:7", *STEP)

Frames = tuple[CodeFrame, ...]


def frame(text: str) -> CodeFrame:
    """ "Condition.wait@PY/threading.py:327"; PY, TORCH and JOB stand for their places."""
    name, _, place = text.partition("@")
    path, _, line = place.rpartition(":")
    for short, long in (("PY/", f"{STDLIB}/"), ("TORCH/", f"{TORCH}/")):
        if path.startswith(short):
            path = long + path.removeprefix(short)
    return CodeFrame(name, JOB if path == "JOB" else path, int(line))


def stack(*lines: str) -> Frames:
    return tuple(frame(line) for line in lines)


def thread(
    frames: Frames,
    *,
    name: str = "MainThread",
    tid: int = PID,
    active: bool = False,
    owns_gil: bool = False,
    ident: int | None = None,
) -> ThreadStack:
    return ThreadStack(name, tid, active, owns_gil, frames, PID, ident)


def process(
    state: str | None = "S",
    wchan: str | None = None,
    *,
    look: int = 1,
    ticks: int | None = None,
    threads: tuple[ThreadState, ...] | None = None,
    at_seconds: int | None = None,
    **fields: Any,
) -> ProcessLook:
    """A look whose main thread is in `state` and asleep in `wchan`."""
    main = (ThreadState(PID, "python", state or "", ticks, wchan),)
    values: dict[str, Any] = {
        "source": f"process-{look}.json",
        "look": look,
        "pid": PID,
        "state": state,
        "exit_code": None,
        "exit_signal": None,
        "wchan": wchan,
        "cpu_ticks": ticks,
        "threads": main if threads is None else threads,
        "at_ns": at_seconds * 10**9 if at_seconds is not None else None,
    }
    return ProcessLook(**(values | fields))


def own_record(**fields: Unpack[HeartbeatFields]) -> Heartbeat:
    """The record of the one rank that is looked at; its pulse has begun."""
    words: HeartbeatFields = {"pid": PID, "pulse_count": 5}
    words.update(fields)
    return heartbeat(2, **words)


def stacks(*threads: ThreadStack, look: int = 1, source: str = "stacks.json", pid: int = PID) -> Stacks:
    return Stacks(source, look, pid, threads)


def rank(
    frames: Frames = (),
    state: str | None = "S",
    wchan: str | None = None,
    *,
    active: bool = False,
    owns_gil: bool = False,
    sources: tuple[SourceLine, ...] = (),
    **fields: Any,
) -> RankEvidence:
    """One look at a rank whose main thread has this stack."""
    values: dict[str, Any] = {
        "rank": 2,
        "host": "node0",
        "pid": PID,
        "stacks": (stacks(thread(frames, active=active, owns_gil=owns_gil)),) if frames else (),
        "processes": (process(state, wchan),),
        "sources": sources,
    }
    if "log" in fields:
        values["log_events"] = logged(*fields["log"])
    return RankEvidence(**(values | fields))


def logged(*lines: str) -> tuple[LogEvent, ...]:
    """What a log of these lines tells."""
    return parse("\n".join(lines).encode()).events


def source(line: int, text: str) -> tuple[SourceLine, ...]:
    return (SourceLine(JOB, line, text),)


def operation_of(record_id: int, thread_id: str) -> Operation:
    """An all_reduce of gloo's that this thread issued and that has not ended; all its numbers are `record_id`."""
    return Operation(
        record_id, 0, "0", "default_pg", record_id, 0, record_id, "all_reduce", "gloo", "scheduled", False, False,
        (), (), (), (), None, None, None, None, thread_id=thread_id,
    )  # fmt: skip


def issued_by(look: int, *operations: tuple[int, str], backend: str = "gloo") -> Recorder:
    """A recorder of one look with these operations, each (record id, ident of the thread that issued it)."""
    return Recorder(
        f"fr-{look}.pickle", look, backend, "2.10", (), (), tuple(operation_of(record, by) for record, by in operations)
    )
