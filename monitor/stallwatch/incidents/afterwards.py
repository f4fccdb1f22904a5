"""What an incident says when its job is over: no process can be looked into or ended, and no time-out is to come."""

import re
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from stallwatch.model.incident import Incident
from stallwatch.model.verdict import Report, Verdict

REQUESTED: Final = "captured on request"  # how an incident ends whose job goes on as it did
_MOST_KEPT = 2  # of the steps that were told while it stood
_EVIDENCE: Final = "Read what is kept of it"
_RESTART: Final = re.compile(r"(?:Stop\b.*?\b(?:and )?start|Start) (?:the job|it) (?:again )?from its last checkpoint")
# Words of steps that look into a process of the job, let it go on, wait for it or end it, or reach its store; and of
# what stands after such a step and goes by what it has shown.
_OF_THE_LIVING: Final = re.compile(
    r"py-spy|cuda-gdb|/proc/|--p?pid\b|\bpid=|`ps |`kill |`ls -l`|\btop -H|\bss -t|\bfuser\b|\blslocks\b|\bpgrep\b"
    r"|`nvidia-smi` \(|\$MASTER_ADDR|\A(?:Wait|Missing)\b|, wait\b|\blet it (?:go on|continue|read)|stallwatch capture"
    r"|\bthe locals\b|\AIf they do not|\bremove that one file|\bthat debugger|\bfroze it|\bthaw|\AStop the job now"
    r"|\bbefore that if you"
)
_RESTARTS: Final = re.compile(r"last checkpoint|[Ss]tart it again|[Rr]estart the job|start the job")


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
    said = [step for step in verdict.next_steps if not step.startswith(_EVIDENCE)]
    if not said and not verdict.traits.accuses:
        return  # nothing was to be done
    if incident_id:
        yield (
            f"{_EVIDENCE}: `stallwatch incidents {incident_id}`, whose last line names the folder that "
            "`stallwatch analyze` reads, here or elsewhere."
        )
    node = (
        f"Before {_hosts(verdict)} takes another job, ask `stallwatch node-check` there, and run `stallwatch selftest`."
    )
    kept = [left for step in said if step != node and (left := _left(step))]
    yield from kept[:_MOST_KEPT]
    if not ended:
        return
    if verdict.traits.doubts_node:
        yield node
    if verdict.traits.stands and not any(_RESTARTS.search(step) for step in kept):
        yield _start_again(verdict)


def _start_again(verdict: Verdict) -> str:
    if verdict.cause == "init_missing":
        return "Start the job again: it had not begun to train."
    if verdict.traits.lies_in == "program":
        return "Start the job from its last checkpoint once that is mended: else it comes back at the same call."
    return "Start the job from its last checkpoint."


def _left(step: str) -> str:
    """What of a step can still be done; "" for nothing, or where starting again is all of it."""
    step = re.sub(r"\AStop the job and run\b", "Run", step)
    step = re.sub(r"\AStop what still runs of the job, mend\b", "Mend", step)
    step = re.sub(r"\b(?:is now|stands) at\b", "stood at", step)
    return "" if _OF_THE_LIVING.search(step) or _RESTART.match(step) else step


def _hosts(verdict: Verdict) -> str:
    hosts = sorted({process.host for process in verdict.culprit_processes if process.host})
    return hosts[0] if len(hosts) == 1 else "any of its nodes"
