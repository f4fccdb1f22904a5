"""One log line for each step in the life of an incident, and for what the sensors complain of."""

import logging
import re

from stallwatch.formats.outside_text import name_of
from stallwatch.model.incident import Incident, NodeReport
from stallwatch.model.snapshot import SensorStatus

logger = logging.getLogger("stallwatch.incidents")
sensors_logger = logging.getLogger("stallwatch.sensors")

_SECONDS = re.compile(r"\d+(?:\.\d+)? s\b")  # "has not answered for 41 s" is said once, not every second
_LASTING_LOOKS = 3  # one late answer, or the start of a child, is no complaint
_MOST_LINES = 20  # of one sensor; then at growing distances, for a job could fill the disk with them


class LogOutput:
    """Tells incidents and sensors in the daemon's log, each change once."""

    name = "log"

    def __init__(self) -> None:
        self._said: dict[str, tuple[object, ...]] = {}
        self._sensors: dict[str, tuple[bool, str]] = {}
        self._seen: dict[str, tuple[tuple[bool, str], int]] = {}  # what it is now, and for how many looks
        self._sensor_lines: dict[str, int] = {}

    def start(self) -> None:
        pass

    def publish(self, report: NodeReport) -> None:
        """Write a line for each incident that took a step, and for each sensor whose state changed."""
        for status in report.snapshot.sensors:
            self._publish_sensor(status)
        said = {}
        for incident in report.incidents:
            now = _position(incident)
            if self._said.get(incident.incident_id) != now and not self._is_old(incident):
                logger.log(_level(incident), "%s", line(incident))
            said[incident.incident_id] = now
        self._said = said

    def _publish_sensor(self, status: SensorStatus) -> None:
        now = (status.up, _SECONDS.sub("… s", status.reason))
        last, times = self._seen.get(status.sensor, (now, 0))
        times = times + 1 if last == now else 1
        self._seen[status.sensor] = (now, times)
        if times < _LASTING_LOOKS or self._sensors.get(status.sensor, (True, "")) == now:
            return
        self._sensors[status.sensor] = now
        total = self._sensor_lines[status.sensor] = self._sensor_lines.get(status.sensor, 0) + 1
        if total > _MOST_LINES and total & (total - 1):
            return
        level = logging.WARNING if status.reason and status.required else logging.INFO
        sensors_logger.log(
            level,
            "%s",
            name_of(f"sensor={status.sensor} up={str(status.up).lower()} | {status.reason or 'well again'}"),
        )

    def _is_old(self, incident: Incident) -> bool:
        """Over before this daemon could have said a word about it."""
        return incident.is_over and incident.incident_id not in self._said

    def problem(self) -> str | None:
        return None

    def close(self, seconds: float) -> None:
        pass


def line(incident: Incident) -> str:
    """The incident in one line, which nothing in a job's name or code can make two of: keys that a machine can cut out,
    then the sentence."""
    verdict = incident.verdict
    words = [f"incident={incident.incident_id}", f"job={incident.job.training_job}"]
    words += [f"owner={incident.job.owner.replace(' ', '_')}"] if incident.job.owner else []
    words += [f"state={incident.state}", f"severity={incident.severity}"]
    if incident.muted:
        words.append("muted=true")
    if verdict is not None:
        words.append(f"cause={verdict.cause}")
        words.append(f"culprits={','.join(map(str, verdict.culprits)) or 'none'}")
    if incident.is_over:
        sentence = incident.resolution or incident.state
    elif verdict is not None:
        sentence = verdict.summary
    else:
        sentence = "; ".join(finding.reason for finding in incident.findings) or "no verdict yet"
    return name_of(f"{' '.join(words)} | {sentence}")


def _position(incident: Incident) -> tuple[object, ...]:
    verdict = incident.verdict
    culprits = (verdict.cause, verdict.culprits) if verdict else None
    return incident.state, incident.severity, incident.muted, culprits


def _level(incident: Incident) -> int:
    if incident.is_over:
        return logging.INFO
    return {"none": logging.INFO, "warning": logging.WARNING, "critical": logging.ERROR}[incident.severity]
