"""What an incident says when its job is over: no process can be looked into or ended, and no time-out is to come."""

from typing import Final

from msgspec.structs import replace

from stallwatch.diagnosis.report.steps_when_over import steps_when_over
from stallwatch.model.incident import Incident
from stallwatch.model.verdict import Report

REQUESTED: Final = "captured on request"  # how an incident ends whose job goes on as it did


def afterwards(incident: Incident, *, ended: bool) -> Incident:
    """Return the incident with the steps that are left, and without a deadline. `ended`: its job has; else it moves
    again."""
    report = incident.report
    if report is None or incident.resolution == REQUESTED:
        return incident
    over = report_afterwards(report, incident.incident_id, ended=ended)
    return incident if over == report else replace(incident, report=over)


def report_afterwards(report: Report, incident_id: str, *, ended: bool) -> Report:
    """The same of a report; `incident_id` names where its evidence is, "" where that is at hand."""
    verdicts = tuple(
        replace(verdict, next_steps=steps_when_over(verdict, incident_id, ended=ended)) for verdict in report.verdicts
    )
    return replace(report, verdicts=verdicts, deadline=None)
