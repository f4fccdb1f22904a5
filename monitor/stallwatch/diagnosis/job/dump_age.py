"""How old a dump is: what it does not hold may have been called after it was taken, and says nothing."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate

from stallwatch.diagnosis.job.groups import GroupStream
from stallwatch.diagnosis.recorder import signature
from stallwatch.model.summary import RankSummary


def outdated_ranks(summaries: Iterable[RankSummary]) -> frozenset[int]:
    """Return the ranks whose dump was taken before another rank's pending call was even made.

    Only a dump taken earlier than that other rank's can be: by its look, or by the wall clock, which the hosts of a job
    keep alike to far less than a hang lasts.
    """
    dumped = [summary for summary in summaries if summary.look]
    last_look = max((summary.look for summary in dumped), default=0)
    fresh = any(s.look == last_look and s.pending and s.pending[0].seen_before is False for s in dumped)
    # By time of capture: the newest pending call that was seen from there on.
    dated = sorted((s.captured_at_ns, _newest_ns(s)) for s in dumped if s.captured_at_ns is not None)
    times = [at_ns for at_ns, _ in dated]
    newest = list(accumulate((began_ns for _, began_ns in reversed(dated)), max))[::-1]

    def precedes_a_wait(at_ns: int | None) -> bool:
        later = len(times) if at_ns is None else bisect_right(times, at_ns)
        return at_ns is not None and later < len(times) and newest[later] > at_ns

    return frozenset(s.rank for s in dumped if (fresh and s.look < last_look) or precedes_a_wait(s.captured_at_ns))


def _newest_ns(summary: RankSummary) -> int:
    return max((p.created_ns for p in summary.pending if p.created_ns is not None), default=0)


def proven_seq(members: Mapping[int, GroupStream], parted: int | None) -> int:
    """Given a group's members and the lowest number under which two of them called different things, return the number
    up to which every member has entered: a synchronising collective of it has completed somewhere. 0: none is known."""
    proven = 0
    for member in members.values():
        seq = member.stream.completed
        if parted is not None:
            seq = min(seq, parted - 1)  # wrongly paired calls may end on one side alone
        call = member.call_at(seq) if seq > proven else None
        if call is not None and signature.is_synchronising(call.operation):
            proven = seq
    return proven
