"""When the next look at the node would change a finding: the loop comes then, not up to a whole tick later."""

from collections.abc import Sequence

from stallwatch.config_sections import StallSection
from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.detectors.limits import SECOND_NS
from stallwatch.detectors.rank_limit import job_limits
from stallwatch.model.finding import Finding


def next_due(findings: Sequence[Finding], seen: NodeHistory, stall: StallSection) -> int | None:
    """Return the earliest moment (CLOCK_MONOTONIC) at which a suspicion is confirmed or a limit passed."""
    moments = [finding.due_ns for finding in findings if finding.stage == "suspect"]
    standing = {finding.job for finding in findings if finding.detector in ("stall", "init")}
    for job, ranks in seen.jobs():
        if job not in standing and (passes_ns := _limit_passes(ranks, seen.at_ns, stall)) is not None:
            moments.append(passes_ns)
    return min((moment for moment in moments if moment > seen.at_ns), default=None)


def _limit_passes(ranks: tuple[RankHistory, ...], at_ns: int, stall: StallSection) -> int | None:
    watched = [rank for rank in ranks if rank.alive and rank.readable and rank.has_words]
    if not watched or any(at_ns - rank.progress_since_ns < SECOND_NS for rank in watched):
        return None  # it moves: nothing is near
    limits = job_limits(watched, stall)
    return max(r.progress_since_ns + int(limit.seconds * SECOND_NS) for r, limit in zip(watched, limits, strict=True))
