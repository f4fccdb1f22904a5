"""Whom a launcher ended, by its own word or by what it lists: such an end follows from the first one that it saw."""

from collections.abc import Iterable, Sequence
from signal import SIGTERM

from stallwatch.diagnosis.logs.consequence import SENT, LoggedFailure
from stallwatch.model.evidence import PROCESS_ENDS, LogEvent


def announced(told: list[LoggedFailure]) -> list[LoggedFailure]:
    """Whom a launcher said that it would end did not end by itself."""
    ended = {(one.event.source, one.event.pid) for one in told if one.kind == "terminated"}
    killing: dict[str, int] = {}  # the line from which on a launcher ends all
    failed: dict[str, int] = {}
    for one in told:
        event = one.event
        if one.kind in ("killing", "cancelled"):
            killing[event.source] = min(event.line, killing.get(event.source, event.line))
        elif one.kind == "process_failed" and event.exit_signal not in SENT:
            failed[event.source] = min(event.line, failed.get(event.source, event.line))
    listed = [one.event for one in told if "RUNNING AT" in one.event.text]
    out = []
    for one in told:
        event = one.event
        if one.kind in PROCESS_ENDS and not one.consequence and event.exit_signal in SENT:
            before = min(killing.get(event.source, event.line), failed.get(event.source, event.line))
            if (event.source, event.pid) in ended or before < event.line:
                one = one._replace(consequence="the launcher ended it")
        if event in listed and not one.consequence and _is_cleared_away(event, listed):
            one = one._replace(consequence="mpirun ends all that are left when one has ended")
        out.append(one)
    return out


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
