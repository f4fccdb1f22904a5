"""Ranks that ended because others were waited for at the start of the job: by their time-out, or by their launcher."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stallwatch.diagnosis.job.case import Case

_TIMED_OUT = re.compile(r"tim(?:ed|e)[ -]?out", re.IGNORECASE)
_CLEARED_BY = (9, 15)  # SIGKILL, SIGTERM: a launcher's
_LATER_NS = 30_000_000  # between two ends of which one may be the other's cause


def victims(case: "Case") -> frozenset[int]:
    """Ranks that ended where they were last seen to wait at the start of the job, for one that was elsewhere, and of
    whose own trouble nothing is known: their time-out ended them, by an exception that names no rank."""
    waiting = {rank for rank in case.observed if case.activity(rank).place.in_store_or_init}
    elsewhere = [rank for rank in case.observed if rank not in waiting and _stood_elsewhere(case, rank)]
    if not (elsewhere or case.meeting.apart or case.meeting.never_seen):
        return frozenset()
    return frozenset(rank for rank in waiting if _failed_by_others(case, rank))


def _stood_elsewhere(case: "Case", rank: int) -> bool:
    """Last seen outside of communication; if it is gone, others ended it."""
    activity = case.activity(rank)
    by_itself = activity.end.gone and activity.end.exit_signal not in _CLEARED_BY
    return activity.known and activity.call.in_collective is False and not by_itself


def _failed_by_others(case: "Case", rank: int) -> bool:
    activity = case.activity(rank)
    own = activity.exceptions.text is not None and not activity.exceptions.tell_of_a_peer
    return activity.end.gone and activity.end.exit_signal is None and bool(activity.end.exit_code) and not own


def cleared_away(case: "Case") -> frozenset[int]:
    """Ranks that were ended by a signal after the first of their node had ended because it had waited in vain: they
    lived and did not come, and their launcher cleared them away."""
    ends = {
        rank: end for rank in case.observed if case.activity(rank).end.gone and (end := _end(case, rank)) is not None
    }
    first: dict[str | None, int] = {}
    for rank, (at_ns, signal) in ends.items():
        activity = case.activity(rank)
        timed_out = activity.exceptions.tell_of_a_peer and _TIMED_OUT.search(activity.exceptions.text or "")
        if (timed_out or rank in case.ended_at_the_start) and signal is None:
            first[activity.host] = min(at_ns, first.get(activity.host, at_ns))
    return frozenset(
        rank
        for rank, (at_ns, signal) in ends.items()
        if signal in _CLEARED_BY
        and not case.activity(rank).end.out_of_memory
        and at_ns > first.get(case.activity(rank).host, at_ns) + _LATER_NS
    )


def _end(case: "Case", rank: int) -> tuple[int, int | None] | None:
    """When the rank's process ended, on its node's clock, and by which signal; None where the first is not known."""
    evidence = case.evidence.get(rank)
    looks = [look for look in evidence.processes if look.ended_ns is not None] if evidence else []
    last = max(looks, key=lambda look: look.look, default=None)
    return None if last is None or last.ended_ns is None else (last.ended_ns, last.exit_signal)
