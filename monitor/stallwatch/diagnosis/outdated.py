"""Dumps older than the wait that others stand in: what such a rank has not recorded it may have entered since."""

from collections.abc import Iterable

from stallwatch.model.summary import RankSummary


def outdated_ranks(summaries: Iterable[RankSummary]) -> frozenset[int]:
    """Return the ranks whose dump was taken before another rank's pending call was even made.

    Only a dump taken earlier than that other rank's can be: by its look, or by the wall clock, which the hosts of a job
    keep alike to far less than a hang lasts.
    """
    dumped = [summary for summary in summaries if summary.look]
    last_look = max((summary.look for summary in dumped), default=0)
    fresh = any(s.look == last_look and s.pending and s.pending[0].seen_before is False for s in dumped)
    return frozenset(s.rank for s in dumped if (fresh and s.look < last_look) or _precedes_a_wait(s, dumped))


def _precedes_a_wait(summary: RankSummary, others: Iterable[RankSummary]) -> bool:
    at_ns = summary.captured_at_ns
    if at_ns is None:
        return False
    return any(
        other.captured_at_ns is not None
        and other.captured_at_ns > at_ns
        and any(pending.created_ns is not None and pending.created_ns > at_ns for pending in other.pending)
        for other in others
    )
