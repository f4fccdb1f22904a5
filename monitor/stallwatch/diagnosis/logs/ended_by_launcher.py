"""Whom a launcher ended, by its own word or by what it lists: such an end follows from the first one that it saw."""

from collections.abc import Iterable, Sequence
from signal import SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV, SIGTERM
from typing import Final

from stallwatch.diagnosis.logs.consequence import SENT
from stallwatch.diagnosis.logs.logged_failure import LoggedFailure
from stallwatch.formats.log_time import moment
from stallwatch.model.log_event import PROCESS_ENDS, LogEvent

# torchrun waits 30 s for whom it has sent SIGTERM. A time from an error file is up to a look (5 s) too early.
_GRACE_SECONDS: Final = 20.0
_CRASHES: Final = (SIGILL, SIGBUS, SIGFPE, SIGSEGV)


def announced(told: list[LoggedFailure]) -> list[LoggedFailure]:
    """Whom a launcher said that it would end did not end by itself."""
    ended = {(one.event.source, one.event.pid) for one in told if one.kind == "terminated"}
    killing: dict[str, int] = {}  # the line from which on a launcher ends all
    failed: dict[str, int] = {}
    for one in told:
        event = one.event
        if one.kind in ("killing", "cancelled"):
            killing[event.source] = min(event.line, killing.get(event.source, event.line))
        elif one.kind in ("process_failed", "worker_died") and event.exit_signal not in SENT:
            failed[event.source] = min(event.line, failed.get(event.source, event.line))
    listed = [one.event for one in told if "RUNNING AT" in one.event.text]
    at_last = _killed_at_last(told)
    out = []
    for one in told:
        event = one.event
        if one.kind in (*PROCESS_ENDS, "program_died") and not one.consequence and event.exit_signal in SENT:
            before = min(killing.get(event.source, event.line), failed.get(event.source, event.line))
            if (event.source, event.pid) in ended or before < event.line or event in at_last:
                one = one._replace(consequence="the launcher ended it")
        if event in listed and not one.consequence and _is_cleared_away(event, listed):
            one = one._replace(consequence="mpirun ends all that are left when one has ended")
        out.append(one)
    return out


def _killed_at_last(told: Iterable[LoggedFailure]) -> list[LogEvent]:
    """Whom SIGKILL ended because SIGTERM had not: in a table with times, long after another had ended by itself; in a
    list without them, beside others that SIGTERM ended, where one crashed."""
    ends = [one.event for one in told if one.kind in PROCESS_ENDS and one.event.pid is not None]
    found = []
    for event in (end for end in ends if end.exit_signal == SIGKILL and not end.first):
        beside = [other for other in ends if (other.source, other.host) == (event.source, event.host)]
        own = [other for other in beside if other.exit_signal not in SENT]
        when = moment(event.at or "")
        earlier = [
            at for other in own if other.kind == event.kind == "launcher_failure" and (at := moment(other.at or ""))
        ]
        late = when is not None and any(when.seconds > at.seconds + _GRACE_SECONDS for at in earlier)
        swept = any(other.exit_signal == SIGTERM for other in beside)
        if late or (swept and any(other.exit_signal in _CRASHES for other in own)):
            found.append(event)
    return found


def _is_cleared_away(event: LogEvent, listed: Sequence[LogEvent]) -> bool:
    """Hydra kills whoever is left, and lists them all by rank: the one that ended otherwise had ended by itself; of
    several killed ones, or where a line is lost, nothing tells which."""
    if event.exit_code is not None or event.exit_signal not in (None, *SENT):
        return False
    others = [other for other in listed if other.source == event.source and other.line != event.line]
    return any(other.exit_code is not None or other.exit_signal != SIGTERM for other in others)


def left_after(event: LogEvent, first: LogEvent) -> bool:
    """Whether a process left by itself as the first did that its launcher saw on that host; both by exit codes."""
    same = (event.exit_code, event.exit_signal, event.host) == (first.exit_code, None, first.host)
    return same and not event.first


def was_ended_after_a_root(end: LoggedFailure, ends: Iterable[LoggedFailure], raised: Iterable[LoggedFailure]) -> bool:
    """Whether torchrun's table, in which a killed rank is not the first, lists whom it ended: it kills by SIGKILL who
    does not heed SIGTERM. Not where the first that it saw had only lost a peer."""
    listed = [other for other in ends if (other.event.source, other.kind) == (end.event.source, "launcher_failure")]
    roots = {other.rank for other in listed if other.event.first}
    of_roots = [one.consequence for one in raised if one.rank in roots]
    return any(other.event.exit_signal == SIGTERM for other in listed) and (not of_roots or not all(of_roots))


def is_one_of_several(end: LoggedFailure, ends: Iterable[LoggedFailure]) -> bool:
    """Whether this launcher saw another rank end by the same signal."""
    event = end.event
    return any(
        other.rank != end.rank
        and (other.event.source, other.event.exit_signal) == (event.source, event.exit_signal)
        and other.kind == end.kind
        for other in ends
    )
