"""The report of an incident: the verdicts, and what a person needs beside them. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime

from stallwatch import __version__, diagnosis
from stallwatch.diagnosis.activity import read_activity
from stallwatch.diagnosis.reduce import reduce_rank
from stallwatch.diagnosis.stacktree import merge
from stallwatch.model.evidence import Evidence, RankEvidence
from stallwatch.model.verdict import SCHEMA_VERSION, Report, Verdict


def make_report(evidence: Evidence) -> Report:
    """Judge the evidence of one incident."""
    verdicts = diagnosis.judge(evidence)
    stacks = {rank.rank: read_activity(rank).stack for rank in evidence.ranks if rank.stacks}
    captured = [rank.captured_at_ns for rank in evidence.ranks if rank.captured_at_ns is not None]
    return Report(
        schema_version=SCHEMA_VERSION,
        tool_version=__version__,
        incident_id=evidence.incident_id,
        training_job=evidence.training_job,
        epoch=evidence.epoch,
        captured_at=_iso(max(captured)) if captured else None,
        deadline=_deadline(evidence.ranks),
        evidence_complete=_is_complete(evidence, verdicts),
        verdicts=verdicts,
        stacks=merge({rank: stack for rank, stack in stacks.items() if stack}),
        caveats=evidence.caveats,
    )


def _is_complete(evidence: Evidence, verdicts: Sequence[Verdict]) -> bool:
    """Nothing that would say more is still missing: the job may be killed without loss of evidence."""
    observed = {rank.rank for rank in evidence.ranks if rank.recorders or rank.stacks or rank.processes}
    world = set(range(evidence.world_size)) if evidence.world_size else observed
    return bool(observed) and world <= observed and not (verdicts and verdicts[0].missing)


def _deadline(ranks: Sequence[RankEvidence]) -> str | None:
    """When torch's own time-out ends the job: the first of the pending operations to run out."""
    ends = [
        pending.created_ns + pending.timeout_ms * 1_000_000
        for rank in ranks
        for pending in reduce_rank(rank).pending
        if pending.created_ns is not None and pending.timeout_ms and not pending.timed_out
    ]
    return _iso(min(ends)) if ends else None


def _iso(wall_ns: int) -> str | None:
    try:
        return datetime.fromtimestamp(wall_ns // 1_000_000_000, UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return None  # a clock that a dump made up
