"""What messages of every kind say of an incident, in plain words: nothing is marked up or escaped here."""

import re
from urllib.parse import quote

from stallwatch.clock import iso
from stallwatch.diagnosis.report.steps import deadline, safety
from stallwatch.incidents.delivery_steps import LAST_STEPS, Step
from stallwatch.model.incident import Incident
from stallwatch.model.verdict import NO_PLACE, Verdict, cost_of

_MOST_CULPRITS = 8
_PREFIXES = {"updated": "now ", "escalated": "still ", "resolved": "resolved, ", "ended": "the job is over, it was "}


def headline(incident: Incident, step: Step) -> str:
    """The one line that a list of messages shows: job, rank, cause, and where it stands; of an end, too, which start of
    the job it is of: the next one may run already."""
    verdict = incident.verdict
    standing = any(finding.family in ("hang", "slow") for finding in incident.findings)
    what = "stalled, no verdict yet" if standing else "a warning, nothing hangs"
    if verdict is not None:
        what = f"{who(verdict)}: {verdict.cause}"
        what += f"{cost_share(verdict)}{_slow_when(incident)}" if verdict.traits.holds_back else ""
        what += place(verdict) if step not in LAST_STEPS else ""
    began = _moment(incident.job_began_wall_ns, incident) if step in LAST_STEPS else ""
    began = f" (run of {began})" if began else ""
    return f"{incident.job.training_job}{began}: {_PREFIXES.get(step, '')}{what}"


def _slow_when(incident: Incident) -> str:
    """ " since 14:02 UTC"; once it is over, " from 14:02 to 14:05 UTC"."""
    began, over_ns = _moment(incident.opened_wall_ns, incident), incident.resolved_wall_ns
    return f" since {began}" if over_ns is None else f" from {began.removesuffix(' UTC')} to {clock_of(over_ns)}"


def clock_of(wall_ns: int) -> str:
    """A moment as "14:02 UTC"."""
    return f"{iso(wall_ns)[11:16]} UTC"


def lasted(incident: Incident) -> str:
    """Of an incident that is over since when its job ran and stood, and when it was over: messages of an end come as
    late as the job's nodes need to agree who tells; "" while it is not over."""
    over_ns = incident.resolved_wall_ns
    if over_ns is None:
        return ""
    moved = incident.state == "resolved"
    began = f"run started {_moment(incident.job_began_wall_ns, incident)}, " if incident.job_began_wall_ns else ""
    # Of little slowness it takes minutes to be found: an incident of it begins when that did.
    was_slow = incident.verdict is not None and incident.verdict.traits.holds_back
    stood = f"{'slow since' if was_slow else 'found'} {_moment(incident.opened_wall_ns, incident)}"
    return f"{began}{stood}, {'well again' if moved else 'over'} {iso(over_ns)[11:19]} UTC"


def ending(incident: Incident, otherwise: str = "") -> str:
    """How an incident is over, and which life of its job it was in; `otherwise`: where nothing tells how."""
    said, times = incident.resolution or otherwise, lasted(incident)
    return f"{said} ({times})" if times else said


def _moment(wall_ns: int | None, incident: Incident) -> str:
    """As `clock_of`, with the day where that is another than the end's."""
    if wall_ns is None:
        return ""
    day, last = (iso(one)[5:10] for one in (wall_ns, incident.resolved_wall_ns or wall_ns))
    return clock_of(wall_ns) if day == last else f"{day} {clock_of(wall_ns)}"


def slow_parts(incident: Incident) -> tuple[str, str, str] | None:
    """The sentence on ranks that hold a job back as who they are, what they cost, and why; None where it is none of
    that kind."""
    verdict = incident.verdict
    if verdict is None or not verdict.traits.holds_back or verdict.slowness is None:
        return None
    lead, cost, why = verdict.summary.partition(cost_of(verdict.slowness))
    return (lead.rstrip(": "), cost, why.lstrip("; ").rstrip(".")) if cost else None


def who(verdict: Verdict) -> str:
    """The culprits in a few words."""
    culprits = verdict.culprits
    if not culprits:
        return "no rank to blame"
    if len(culprits) == 1:
        return f"rank {culprits[0]}"
    shown = ", ".join(map(str, culprits[:_MOST_CULPRITS]))
    return f"ranks {shown}{' …' if len(culprits) > _MOST_CULPRITS else ''}"


def cost_share(verdict: Verdict) -> str:
    """By how much a slow rank makes each step longer: " +31%", " up to +31%"; where that is not known, for how much of
    it the others wait."""
    slowness = verdict.slowness
    if slowness is None or not slowness.step_seconds:
        return ""
    if slowness.says_little:
        return f", waited for {slowness.waiting_share:.0%} of each step"
    return f"{' up to' if slowness.at_most else ''} +{slowness.share:.0%}"


def place(verdict: Verdict) -> str:
    """Where its culprits stand, as short as a phone's lock screen needs it: ", lock at loader.py:23"."""
    frames = {(process.frame.file, process.frame.line) for process in verdict.culprit_processes if process.frame}
    said = verdict.where in NO_PLACE or (verdict.where or "") in verdict.cause  # "collective_mismatch, collective"
    words: list[str] = [verdict.where if verdict.where and not said else ""]
    if len(frames) == 1:
        ((file, line),) = frames
        words.append(f"at {file.rpartition('/')[2]}:{line}")
    return ", " + " ".join(filter(None, words)) if any(words) else ""


def link(incident_id: str, external_url: str) -> str:
    """The address of an incident on the page. As a query, for a login on the way there carries no fragment; "" where it
    is not known under which address people reach the page."""
    return f"{external_url.rstrip('/')}/?incident={quote(incident_id)}" if external_url else ""


def sentence(incident: Incident) -> str:
    """What is known of an incident in a sentence: the verdict's, else why it is suspected."""
    if incident.verdict is not None:
        return incident.verdict.summary
    return "; ".join(finding.reason for finding in incident.findings)


def safety_words(incident: Incident) -> str:
    """Whether the job may be ended, and when torch does; "" where nothing was looked at yet."""
    report = incident.report
    if incident.is_over or incident.job_over:
        return (
            "It moves again" if incident.state == "resolved" else "The job is over: nothing of it is left to be ended"
        )
    if report is None:
        return ""
    said = safety(report)
    words = f"{'✅' if report.evidence_complete else '⏳'} {said[0].upper()}{said[1:]}"
    if ends := deadline(report):
        words += f"; torch's own timeout ends the job at {_clock(ends)}"
    return words


def _clock(moment: str) -> str:
    """ "2026-08-01T03:21:10.123Z" as "03:21:10 UTC"; anything else as it is."""
    match = re.match(r"\d{4}-\d\d-\d\dT(\d\d:\d\d:\d\d)\S*?(?:Z|\+00:00)\Z", moment)
    return f"{match[1]} UTC" if match else moment
