"""Whether a whole job was ended from outside: by one signal within a second, or asked to end (SIGTERM) and left in
order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stallwatch.formats.xid import FOLLOW_ON
from stallwatch.model.evidence import NodeEvidence, ProcessLook
from stallwatch.model.process import SHELL_SIGNAL

if TYPE_CHECKING:
    from stallwatch.diagnosis.job.case import Case

SIGABRT, SIGKILL, SIGTERM, SIGINT, SIGHUP = 6, 9, 15, 2, 1
SIGNALS = {
    1: "SIGHUP", 2: "SIGINT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV",
    13: "SIGPIPE", 15: "SIGTERM",
}  # fmt: skip
AT_ONCE_NS = 20_000_000  # ends are seen by pidfd, in milliseconds
CLEARLY_LATER_NS = 300_000_000  # a peer's end is felt by the others within less
_TOGETHER_NS = 1_000_000_000
_SHORTLY_BEFORE_SECONDS = 60.0
_OWN_FAULTS = {4, 5, 6, 7, 8, 11, 13, 31}  # SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGPIPE, SIGSYS


def signal_of(end: ProcessLook) -> int | None:
    """Return the signal that ended a process, also where a shell in between tells it by an exit code."""
    if end.exit_signal is not None:
        return end.exit_signal
    shell = end.exit_code is not None and end.exit_code > SHELL_SIGNAL
    return end.exit_code - SHELL_SIGNAL if shell and end.exit_code is not None else None


def ended_alike(case: Case, ends: dict[int, ProcessLook | None]) -> str | None:
    """Given the ranks that are gone and how each ended, return in words how the whole job was ended from outside, None
    where it was not.

    Nothing that a job dies of by itself may be seen: a kill for memory, a fault of a GPU, an exception, another first
    death. What the ranks did before is another question: where they stood, that is what counts.
    """
    known = [end for end in ends.values() if end is not None]
    if not len(case.observed) == len(ends) == len(known) > 1 or any(_has_fault(node, known) for node in case.nodes):
        return None
    if any(end.out_of_memory for end in known):
        return None
    told = {rank: end for rank, end in ends.items() if end is not None and _is_told(end)}
    signals = {signal_of(end) for end in told.values()}
    if signals & _OWN_FAULTS or _raised(case, ends, signals):
        return None
    together = _are_together(case, ends)
    by_one_signal = together and len(signals) == 1 and None not in signals
    if len(told) < len(ends) and not (by_one_signal and _one_was_not_seen(told, ends)):
        return None
    asked = all(signal_of(end) == SIGTERM or (signal_of(end) is None and end.exit_code == 0) for end in told.values())
    if not (asked and SIGTERM in signals) and not by_one_signal:
        return None
    names = " or ".join(SIGNALS.get(signal, f"signal {signal}") if signal else "exit code 0" for signal in signals)
    return f"all {len(ends)} ranks ended by {names}{' within a second' if together else ''}"


def _is_told(end: ProcessLook) -> bool:
    return end.exit_signal is not None or end.exit_code is not None


def _raised(case: Case, ends: dict[int, ProcessLook | None], signals: set[int | None]) -> bool:
    """Whether somebody failed by itself. Whoever was killed a moment after its peers may still have written that they
    are gone (seen where everything was killed by hand at a load of 13), unless all of these were killed at once, and
    later: so a launcher clears away after a first death."""
    wrote = [rank for rank in ends if case.activity(rank).exceptions.text is not None]
    if not wrote:
        return False
    if signals != {SIGKILL} or not all(case.activity(rank).exceptions.tell_of_a_peer for rank in wrote):
        return True
    times = sorted(end.ended_ns for end in ends.values() if end is not None and end.ended_ns is not None)
    return len(times) < 2 or (times[1] - times[0] >= CLEARLY_LATER_NS and times[-1] - times[1] <= AT_ONCE_NS)


def _one_was_not_seen(told: dict[int, ProcessLook], ends: dict[int, ProcessLook | None]) -> bool:
    """Most are known to have been killed, and who is gone unseen did not go first: nobody died of it."""
    times = {rank: end.ended_ns for rank, end in ends.items() if end is not None and end.ended_ns is not None}
    unseen = [times[rank] for rank in ends if rank not in told]
    first = min(times[rank] for rank in told)
    return len(unseen) < len(told) and min(unseen) >= first - AT_ONCE_NS


def _are_together(case: Case, ends: dict[int, ProcessLook | None]) -> bool:
    """On each host, by its own clock; one rank of a host shows nothing."""
    times: dict[str | None, list[int]] = {}
    for rank, end in ends.items():
        if end is None or end.ended_ns is None:
            return False
        times.setdefault(case.activity(rank).host, []).append(end.ended_ns)
    return all(len(of_host) > 1 and max(of_host) - min(of_host) <= _TOGETHER_NS for of_host in times.values())


def _has_fault(node: NodeEvidence, ends: list[ProcessLook]) -> bool:
    """Whether the kernel told of something, shortly before, that may have ended them. Its log goes back for months, and
    a GPU's channels are cleared away because a process was ended (XID 43, 45)."""
    pids = {end.pid for end in ends} - {None}
    first_ns = min((end.ended_ns for end in ends if end.ended_ns is not None), default=None)
    return any(
        event.kind in ("xid", "sxid", "off_bus", "oom_kill")
        and event.xid not in FOLLOW_ON
        and (
            event.pid in pids
            or event.seconds is None
            or first_ns is None
            or first_ns / 1e9 - event.seconds <= _SHORTLY_BEFORE_SECONDS
        )
        for event in node.kernel_events
    )
