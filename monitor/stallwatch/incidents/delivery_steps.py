"""Which step of an incident's life is worth a message, and which was told already: pure."""

from collections.abc import Sequence
from typing import Literal

from stallwatch.model.incident import Incident, Severity

Step = Literal["told", "updated", "escalated", "acknowledged", "resolved", "ended"]
LAST: tuple[Step, ...] = ("resolved", "ended")
_MOST_UPDATES = 3  # of one incident: a verdict that cannot decide must not fill a channel
_ORDER: dict[Severity, int] = {"none": 0, "warning": 1, "critical": 2}


def due(incident: Incident, done: Sequence[Step], minimum: Severity, told_of: str = "") -> Step | None:
    """Given what was told of an incident, and which verdict, return the next step to tell, or None.

    Nobody hears of a muted one; when it still stands at the end of the silence, it is told then. One that somebody
    has acknowledged is not escalated: who is on it knows.
    """
    if incident.muted:
        return None
    if incident.state == "resolved" or incident.state == "ended":
        return incident.state if "told" in done and not set(LAST) & set(done) else None
    if incident.severity == "none" or _ORDER[incident.severity] < _ORDER[minimum]:
        return None
    if "told" not in done:
        return "told"
    if incident.acknowledged_by:
        if "acknowledged" not in done:
            return "acknowledged"
    elif incident.severity == "critical" and "escalated" not in done:
        return "escalated"
    if told_of and verdict_key(incident) not in ("", told_of) and done.count("updated") < _MOST_UPDATES:
        return "updated"
    return None


def verdict_key(incident: Incident) -> str:
    """What people act on: another cause or another rank is news, another wording is not."""
    verdict = incident.verdict
    return f"{verdict.cause} {','.join(map(str, verdict.culprits))}" if verdict else ""


def covered(incident: Incident, step: Step) -> tuple[Step, ...]:
    """The steps that one message settles: an incident told as critical has nothing left to escalate to."""
    if step == "told" and incident.severity == "critical":
        return ("told", "escalated")
    return (step,)
