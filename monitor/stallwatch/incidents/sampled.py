"""An incident that begins with its verdict: the sample that found the symptom held the evidence."""

from msgspec.structs import replace

from stallwatch import __version__
from stallwatch.clock import iso
from stallwatch.model.incident import Incident, IncidentEvent
from stallwatch.model.verdict import SCHEMA_VERSION, Report, Verdict


def with_sampled_verdict(incident: Incident, wall_ns: int) -> Incident:
    """Given a new incident, return it open with the verdicts that its findings carry, if they do."""
    verdicts = tuple(finding.verdict for finding in incident.findings if finding.verdict is not None)
    if not verdicts:
        return incident
    report = report_of_incident(incident, verdicts, iso(wall_ns, "seconds"))
    first = verdicts[0]
    told = IncidentEvent(wall_ns, f"verdict: {first.cause} ({first.confidence}): {first.summary}")
    return replace(incident, state="open", report=report, events=(*incident.events, told))


def report_of_incident(
    incident: Incident, verdicts: tuple[Verdict, ...] = (), captured_at: str | None = None
) -> Report:
    """Given an incident of which no evidence was judged, return the report of the verdicts that it came with, or the
    empty one."""
    return Report(
        schema_version=SCHEMA_VERSION,
        tool_version=__version__,
        incident_id=incident.incident_id,
        training_job=incident.job.training_job,
        epoch=incident.job.epoch,
        captured_at=captured_at,
        deadline=None,
        evidence_complete=bool(verdicts),
        verdicts=verdicts,
    )
