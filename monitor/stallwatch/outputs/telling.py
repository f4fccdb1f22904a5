"""Which step of an incident's life is worth a message, and which was told already: pure."""

from collections.abc import Collection
from typing import Literal

from stallwatch.model.incident import Incident, Severity

Step = Literal["told", "escalated", "resolved"]
_ORDER: dict[Severity, int] = {"none": 0, "warning": 1, "critical": 2}


def due(incident: Incident, done: Collection[Step], minimum: Severity) -> Step | None:
    """Given what was told of an incident, return the next step to tell, or None.

    Nobody hears of a muted one; when it still stands at the end of the silence, it is told then.
    """
    if incident.muted:
        return None
    if incident.state == "resolved":
        return "resolved" if "told" in done and "resolved" not in done else None
    if incident.severity == "none" or _ORDER[incident.severity] < _ORDER[minimum]:
        return None
    if "told" not in done:
        return "told"
    if incident.severity == "critical" and "escalated" not in done:
        return "escalated"
    return None


def covered(incident: Incident, step: Step) -> tuple[Step, ...]:
    """The steps that one message settles: an incident told as critical has nothing left to escalate to."""
    if step == "told" and incident.severity == "critical":
        return ("told", "escalated")
    return (step,)
