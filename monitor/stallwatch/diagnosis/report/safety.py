"""What to do with the job is asked first: may it be ended, and when does torch end it by itself?"""

from typing import Protocol

from stallwatch.model.verdict import Cause, Verdict

_MOVING: frozenset[Cause] = frozenset({"slow_rank", "healthy"})  # no operation of it is stuck


class Judged(Protocol):
    """A report, or a document that holds one."""

    @property
    def evidence_complete(self) -> bool: ...

    @property
    def deadline(self) -> str | None: ...

    @property
    def verdicts(self) -> tuple[Verdict, ...]: ...


def deadline(report: Judged) -> str | None:
    """When torch's own timeout ends the job; None where nothing says so, or where the job moves: what was pending at
    the look has long been completed."""
    verdict = _first(report)
    return None if verdict is not None and verdict.cause in _MOVING else report.deadline


def safety(report: Judged) -> str:
    """Whether the job may be ended without losing evidence, and whether it has to be."""
    if not report.evidence_complete:
        return "evidence is not complete: ending the job now loses some of it"
    verdict = _first(report)
    if verdict is not None and verdict.cause in _MOVING:
        return "evidence complete; the job moves, nothing has to be ended"
    if verdict is not None and verdict.cause == "waiting":
        return "evidence complete; the wait may end by itself"
    return "evidence complete, safe to kill"


def _first(report: Judged) -> Verdict | None:
    return report.verdicts[0] if report.verdicts else None
