"""What messages of every kind say of an incident, in plain words: nothing is marked up or escaped here."""

import re

from stallwatch.diagnosis.report.steps import deadline, safety
from stallwatch.incidents.delivery_steps import LAST, Step
from stallwatch.model.incident import Incident
from stallwatch.model.verdict import Verdict

_MOST_CULPRITS = 8
_STANDS = re.compile(r"; it (?:stands|waits) at ")
_IS_NOW = re.compile(r" (?:Rank \d+|It) is now (?P<place>at .+)\.\Z")
_PLACE_ENDS = re.compile(r": |\.?\Z")
_PREFIXES = {"updated": "now ", "escalated": "still ", "resolved": "resolved, ", "ended": "the job is over, it was "}


def headline(incident: Incident, step: Step) -> str:
    """The one line that a list of messages shows: job, rank, cause, and where it stands."""
    verdict = incident.verdict
    standing = any(finding.family in ("hang", "slow") for finding in incident.findings)
    what = "stalled, no verdict yet" if standing else "a warning, nothing hangs"
    if verdict is not None:
        what = f"{who(verdict)}: {verdict.cause}"
        what += f"{cost_share(verdict)}{place(verdict)}" if step not in LAST else ""
    return f"{incident.job.training_job}: {_PREFIXES.get(step, '')}{what}"


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
    """By how much a slow rank makes each step longer: " +31%"."""
    slowness = verdict.slowness
    return f" +{slowness.share:.0%}" if slowness is not None and slowness.step_seconds else ""


def place(verdict: Verdict) -> str:
    """Where its culprits stand, as short as a phone's lock screen needs it: ", lock at loader.py:23"."""
    frames = {(process.frame.file, process.frame.line) for process in verdict.culprit_processes if process.frame}
    said = verdict.where in ("unknown", None) or verdict.where in verdict.cause  # "collective_mismatch, collective"
    words: list[str] = [verdict.where if verdict.where and not said else ""]
    if len(frames) == 1:
        ((file, line),) = frames
        words.append(f"at {file.rpartition('/')[2]}:{line}")
    return ", " + " ".join(filter(None, words)) if any(words) else ""


def sentence(incident: Incident) -> str:
    """What is known of an incident in a sentence: the verdict's, else why it is suspected."""
    if incident.verdict is not None:
        return incident.verdict.summary
    return "; ".join(finding.reason for finding in incident.findings)


def advice(verdict: Verdict) -> list[str]:
    """What to do, in steps; without the place of a rank, and what differs, where the sentence above them says it."""
    steps = [_without_place(step, verdict.summary) for step in verdict.next_steps]
    if verdict.mismatch is not None and says_what_differs(verdict):
        found, expected = re.escape(verdict.mismatch.found), re.escape(verdict.mismatch.expected)
        steps = [re.sub(rf": [^:]* has {found}, the others {expected}", "", step) for step in steps]
    return steps


def says_what_differs(verdict: Verdict) -> bool:
    """Whether the sentence names both sides of a mismatch."""
    differs = verdict.mismatch
    return differs is not None and differs.expected in verdict.summary and differs.found in verdict.summary


def _without_place(step: str, said: str) -> str:
    if (now := _IS_NOW.search(step)) and now["place"] in said:
        step = step[: now.start()] + step[now.end() :]
    match = _STANDS.search(step)
    if match is None:
        return step
    rest = step[match.end() :]
    ends = [end for end in range(len(rest), 4, -1) if _PLACE_ENDS.match(rest[end:]) and rest[:end].count("`") % 2 == 0]
    ends = [end for end in ends if rest[:end] in said]
    if not ends:
        return step
    after = rest[ends[0] :]
    return step[: match.start()] + (f"; {after[2:]}" if after.startswith(": ") else after)


def safety_words(incident: Incident) -> str:
    """Whether the job may be ended, and when torch does; "" where nothing was looked at yet."""
    report = incident.report
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
