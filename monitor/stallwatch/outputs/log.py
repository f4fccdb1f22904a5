"""One log line for each step in the life of an incident."""

import logging

from stallwatch.model.incident import Incident, NodeReport

logger = logging.getLogger("stallwatch.incidents")


class LogOutput:
    name = "log"

    def __init__(self) -> None:
        self._said: dict[str, tuple[object, ...]] = {}

    def start(self) -> None:
        pass

    def publish(self, report: NodeReport) -> None:
        said = {}
        for incident in report.incidents:
            now = _position(incident)
            if self._said.get(incident.incident_id) != now and not self._is_old(incident):
                logger.log(_level(incident), "%s", line(incident))
            said[incident.incident_id] = now
        self._said = said

    def _is_old(self, incident: Incident) -> bool:
        """Resolved before this daemon could have said a word about it."""
        return incident.state == "resolved" and incident.incident_id not in self._said

    def problem(self) -> str | None:
        return None

    def close(self, seconds: float) -> None:
        pass


def line(incident: Incident) -> str:
    """The incident in one line: keys that a machine can cut out, then the sentence."""
    verdict = incident.verdict
    words = [f"incident={incident.incident_id}", f"job={incident.job.training_job}", f"state={incident.state}"]
    words.append(f"severity={incident.severity}")
    if incident.muted:
        words.append("muted=true")
    if verdict is not None:
        words.append(f"cause={verdict.cause}")
        words.append(f"culprits={','.join(map(str, verdict.culprits)) or 'none'}")
    if incident.state == "resolved":
        sentence = incident.resolution or "resolved"
    elif verdict is not None:
        sentence = verdict.summary
    else:
        sentence = "; ".join(finding.reason for finding in incident.findings) or "no verdict yet"
    return _one_line(f"{' '.join(words)} | {sentence}")


def _position(incident: Incident) -> tuple[object, ...]:
    verdict = incident.verdict
    culprits = (verdict.cause, verdict.culprits) if verdict else None
    return incident.state, incident.severity, incident.muted, culprits


def _level(incident: Incident) -> int:
    if incident.state == "resolved":
        return logging.INFO
    return {"none": logging.INFO, "warning": logging.WARNING, "critical": logging.ERROR}[incident.severity]


def _one_line(text: str) -> str:
    """Control characters in a job's name or code must not forge lines of the log."""
    return "".join(character if character.isprintable() else " " for character in text)
