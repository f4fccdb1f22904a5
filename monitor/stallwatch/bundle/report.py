"""The report of an incident: the verdicts, and what a person needs beside them. Pure."""

from collections.abc import Iterable

from stallwatch import __version__, diagnosis
from stallwatch.bundle.stack_tree import merge
from stallwatch.clock import iso
from stallwatch.model.evidence import Evidence
from stallwatch.model.summary import RankSummary
from stallwatch.model.verdict import SCHEMA_VERSION, Report, Verdict

_ASKED = {"flight_recorder", "stacks"}  # of a rank, in a whole look


def make_report(evidence: Evidence) -> Report:
    """Judge the evidence of one incident."""
    return report_of(evidence, diagnosis.judge(evidence))


def report_of(evidence: Evidence, judgement: diagnosis.Judgement) -> Report:
    """Given the evidence of one incident and the judgement of it, return the report."""
    captured = [rank.captured_at_ns for rank in evidence.ranks if rank.captured_at_ns is not None]
    return judged(
        judgement,
        judgement.verdicts,
        captured_at=_iso(max(captured)) if captured else None,
        evidence_complete=_is_complete(evidence, judgement),
        incident_id=evidence.incident_id,
        training_job=evidence.training_job,
        epoch=evidence.epoch,
        caveats=evidence.caveats,
    )


def judged(
    judgement: diagnosis.Judgement,
    verdicts: tuple[Verdict, ...],
    *,
    captured_at: str | None,
    evidence_complete: bool,
    incident_id: str | None = None,
    training_job: str | None = None,
    epoch: str | None = None,
    caveats: tuple[str, ...] = (),
) -> Report:
    """Given a judgement, of a node or of all of a job's, and the verdicts that are told of it, return the report."""
    stacks = {rank: activity.place.stack for rank, activity in judgement.activities.items() if activity.place.stack}
    return Report(
        schema_version=SCHEMA_VERSION,
        tool_version=__version__,
        incident_id=incident_id,
        training_job=training_job,
        epoch=epoch,
        captured_at=captured_at,
        deadline=deadline(judgement.summaries.values()),
        evidence_complete=evidence_complete,
        verdicts=verdicts,
        stacks=merge(stacks),
        caveats=caveats,
    )


def _is_complete(evidence: Evidence, judgement: diagnosis.Judgement) -> bool:
    """No further look could add anything: the job may be ended without loss of evidence. Not that nothing is missing:
    who is gone, or was asked and did not answer, has said all that it will; ranks of other nodes are theirs to ask."""
    observed = {rank.rank for rank in evidence.ranks if rank.recorders or rank.stacks or rank.processes}
    gone = {rank for rank, activity in judgement.activities.items() if activity.end.gone}
    asked = {
        rank.rank for rank in evidence.ranks if {"flight_recorder", "stacks"} <= {one.what for one in rank.attempts}
    }
    here = {rank for node in evidence.nodes for rank in node.ranks}
    ours = here or (set(range(evidence.world_size)) if evidence.world_size else observed)
    verdicts = judgement.verdicts
    if bool(observed) and ours <= observed and not (verdicts and verdicts[0].missing):
        return True
    return bool(here) and here <= gone | (asked & observed)


def deadline(summaries: Iterable[RankSummary]) -> str | None:
    """When torch's own time-out ends the job: the first of the pending operations to run out."""
    ends = [
        pending.created_ns + pending.timeout_ms * 1_000_000
        for summary in summaries
        for pending in summary.pending
        if pending.created_ns is not None and pending.timeout_ms and not pending.timed_out
    ]
    return _iso(min(ends)) if ends else None


def _iso(wall_ns: int) -> str | None:
    try:
        return iso(wall_ns, "seconds")
    except (OverflowError, ValueError, OSError):
        return None  # a clock that a dump made up
