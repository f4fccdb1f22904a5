"""A failure that logs tell, in one line: who and what."""

import re
from typing import Final

from stallwatch.diagnosis.logs.logged_failure import LoggedFailure, shown_message
from stallwatch.model.launchers import MPI_PROGRAMS
from stallwatch.model.log_event import LogEvent

_TORCHS: Final = re.compile(r"^\[[EWIF](?:\d{3,4} [\d:.]+)? ?[\w.]+\.\w+:\d+\] (?:\[(?:PG .*?)?Rank \d+\]\s+)*")
_EXPLAINED: Final = re.compile(r"\. ?This typically indicates .*")  # what torch says of its watchdog's standstill
_KERNELS: Final = ("oom-kill:", "Killed process")
_NCCLS: Final = re.compile(r"^[\w.-]+:\d+:\d+ \[\d+\] (?:[\w/]+\.\w+:\d+ )?NCCL WARN ")


def headline(told: LoggedFailure, *, who: bool = True) -> str:
    """Who and what, in one line; without `who` only what."""
    said = _headline(told)
    return said if who else said.removeprefix(_who(told))


def _who(told: LoggedFailure) -> str:
    if told.rank is not None:
        return f"rank {told.rank}: "
    return f"local rank {told.event.local_rank}: " if told.event.local_rank is not None else ""


def _pid(event: LogEvent) -> str:
    return f" (pid {event.pid})" if event.pid is not None else ""


def _host(event: LogEvent) -> str:
    return f" on {event.host}" if event.host and event.host != "unknown" else ""


def _ended(event: LogEvent) -> str:
    how = f"signal {event.exit_signal}" if event.exit_signal else f"exit code {event.exit_code}"
    return f"ended with {how}"


def _headline(told: LoggedFailure) -> str:
    event, who = told.event, _who(told)
    frame = f" at {event.frame.filename}:{event.frame.line}" if event.frame else ""
    if event.frame and event.frame.name:
        frame += f" in {event.frame.name}"
    if event.exception:
        message = shown_message(event)
        return f"{who}{event.exception}{': ' + message[:200] if message else ''}{frame}"
    if told.kind == "launcher_failure":
        launcher = "mpirun" if event.text.startswith(MPI_PROGRAMS) else "torchrun"
        first = f", the first that {launcher} saw" if event.first else ""
        return f"{who}{_ended(event)}{_pid(event)}{_host(event)}{first}"
    told_next = "RUNNING AT" in event.text or event.text.endswith("exited on")  # the line after it tells how
    if told.kind == "process_failed" and who and (event.local_rank is not None or told_next):
        return f"{who}{_ended(event)}{_pid(event)}{_host(event)}"
    if told.kind == "process_failed" and not who and "exits with return code" in event.text:
        return f"a process of this node {_ended(event)} (DeepSpeed prints the command of the last one that it started)"
    if told.kind == "memory_killed" and event.pid is not None and any(words in event.text for words in _KERNELS):
        name = f", {event.message}" if event.message else ""
        return f"{who}the kernel killed it for lack of memory (pid {event.pid}{name}{_host(event)})"
    if told.kind == "actor_died" and event.message:
        return f"{who}a worker of Ray died: {event.message[:200]}"
    if told.kind == "address_in_use" and "in use" not in event.text:
        return f"{who}Address already in use: {_told(event, known=False)[:200]}"
    return who + _told(event, known=bool(who))[:240] + frame


def _told(event: LogEvent, *, known: bool) -> str:
    """The line without what its writer puts before what it says: torch's header, with the group that its rank stands
    in, and NCCL's, where the rank is `known`."""
    text = _EXPLAINED.sub("", _TORCHS.sub("", event.text.strip()))
    return _NCCLS.sub("NCCL: ", text) if known else text
