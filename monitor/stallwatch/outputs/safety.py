"""What to do with the job is asked first: may it be ended, and when does torch end it by itself?"""

from stallwatch.model.verdict import Cause, Report, Verdict
from stallwatch.outputs.documents import IncidentDocument

_MOVING: frozenset[Cause] = frozenset({"slow_rank", "healthy"})  # no operation of it is stuck


def deadline(report: Report | IncidentDocument) -> str | None:
    """When torch's own timeout ends the job; None where nothing says so, or where the job moves: what was pending at
    the look has long been completed."""
    verdict = _first(report)
    return None if verdict is not None and verdict.cause in _MOVING else report.deadline


def safety(report: Report | IncidentDocument) -> str:
    """Whether the job may be ended without losing evidence, and whether it has to be."""
    if not report.evidence_complete:
        return "evidence is not complete: ending the job now loses some of it"
    verdict = _first(report)
    if verdict is not None and verdict.cause in _MOVING:
        return "evidence complete; the job moves, nothing has to be ended"
    if verdict is not None and verdict.cause == "waiting":
        return "evidence complete; the wait may end by itself"
    return "evidence complete, safe to kill"


def _first(report: Report | IncidentDocument) -> Verdict | None:
    return report.verdicts[0] if report.verdicts else None
