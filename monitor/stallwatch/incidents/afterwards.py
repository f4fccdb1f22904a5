"""What an incident says when its job is over: no process can be looked into or ended, and no time-out is to come."""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from stallwatch.model.incident import Incident
from stallwatch.model.verdict import Report, Verdict

REQUESTED: Final = "captured on request"  # how an incident ends whose job goes on as it did
_EVIDENCE: Final = "Read what is kept of it"


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


def steps_when_over(verdict: Verdict, incident_id: str, *, ended: bool) -> tuple[str, ...]:
    """Given the verdict on a job, and the incident by which its evidence is found ("": it is at hand), return what is
    left to do now that its standstill is over. `ended`: with the job, which may be started again; else it moves again.
    Given a verdict with the steps that this returned, it returns the same."""
    return tuple(dict.fromkeys(_steps(verdict, incident_id, ended=ended)))


def _steps(verdict: Verdict, incident_id: str, *, ended: bool) -> Iterator[str]:
    if not verdict.next_steps and not verdict.traits.accuses:
        return  # nothing was to be done
    if incident_id:
        yield (
            f"{_EVIDENCE}: `stallwatch incidents {incident_id}`, whose last line names the folder that "
            "`stallwatch analyze` reads, here or elsewhere."
        )
    yield from verdict.when_over.steps
    if not ended:
        return
    if verdict.traits.doubts_node:
        yield (
            f"Before {_hosts(verdict)} takes another job, ask `stallwatch node-check` there, and run "
            "`stallwatch selftest`."
        )
    if verdict.traits.stands and not verdict.when_over.starts_job:
        yield _start_again(verdict)


def _start_again(verdict: Verdict) -> str:
    if verdict.cause == "init_missing":
        return "Start the job again: it had not begun to train."
    if verdict.traits.lies_in == "program":
        return "Start the job from its last checkpoint once that is mended: else it comes back at the same call."
    return "Start the job from its last checkpoint."


def _hosts(verdict: Verdict) -> str:
    hosts = sorted({process.host for process in verdict.culprit_processes if process.host})
    return hosts[0] if len(hosts) == 1 else "any of its nodes"
