"""Which step of an incident's life is worth a message, and which was told already: pure."""

from collections.abc import Sequence

from stallwatch.model.incident import LAST_STEPS as LAST_STEPS
from stallwatch.model.incident import Incident, Severity, is_told
from stallwatch.model.incident import Step as Step

_MOST_UPDATES = 3  # of one incident: a verdict that cannot decide must not fill a channel
_OTHER_COST = 1.5  # times what a slow rank was told to cost


def due(incident: Incident, done: Sequence[Step], minimum: Severity, told_of: str = "") -> Step | None:
    """Given what was told of an incident, and which verdict, return the next step to tell, or None.

    Nobody hears of a muted one; when it still stands at the end of the silence, it is told then. One that somebody
    has acknowledged is not escalated: who is on it knows. Of several nodes that see it, one tells.
    """
    if incident.muted or incident.told_elsewhere:
        return None
    if incident.state == "resolved" or incident.state == "ended":
        return incident.state if "told" in done and not set(LAST_STEPS) & set(done) else None
    if not is_told(incident.severity, minimum) or set(LAST_STEPS) & set(done):
        return None  # its end was told, by a node that had no ranks of the job any more
    if "told" not in done:
        return "told"
    if incident.acknowledged_by:
        if "acknowledged" not in done:
            return "acknowledged"
    elif incident.severity == "critical" and "escalated" not in done:
        return "escalated"
    if told_of and _is_news(told_of, verdict_key(incident)) and done.count("updated") < _MOST_UPDATES:
        return "updated"
    return None


def verdict_key(incident: Incident) -> str:
    """What people act on: another cause or another rank is news, another wording is not. Of a slow rank it is what it
    costs the job, too, in seconds a step, and the function that takes the time."""
    verdict = incident.verdict
    if verdict is None:
        return ""
    key = f"{verdict.cause} {','.join(map(str, verdict.culprits))}"
    if not verdict.traits.holds_back or verdict.slowness is None:
        return key
    frame = next((process.frame for process in verdict.culprit_processes if process.frame), None)
    return f"{key} {verdict.slowness.cost_seconds:.4g} {f'{frame.file} {frame.function}' if frame else ''}"


def _is_news(told: str, now: str) -> bool:
    """Whether `now` says something else than what was told, both as `verdict_key` gives them."""
    before, after = told.split(" ", 3), now.split(" ", 3)
    if not now or before[:2] != after[:2]:
        return bool(now)
    if len(before) < 4 or len(after) < 4:
        return False
    low, high = sorted((float(before[2]), float(after[2])))
    return high > _OTHER_COST * low or after[3] not in ("", before[3])


def covered(incident: Incident, step: Step) -> tuple[Step, ...]:
    """The steps that one message settles: an incident told as critical has nothing left to escalate to."""
    if step == "told" and incident.severity == "critical":
        return ("told", "escalated")
    return (step,)
