"""Alertmanager: each incident that people are to hear of is one alert, renewed while it stands, with all that is known.

Its labels stay the same over verdicts, severities and nodes, or each of them would be another alert; what changes is
annotations. While it stands it is sent without times: Alertmanager takes its own clock's, and ends what nobody renews
within its `resolve_timeout` (5 minutes): https://prometheus.io/docs/alerting/latest/alerts_api/. The moment since which
a job stands would be a beginning after which no `group_wait` is left (seen with 0.25: the first of three came alone),
and what a node says whose clock is an hour behind would be over when it comes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from stallwatch.clock import Clock, iso
from stallwatch.config import Config
from stallwatch.model.incident import Incident, NodeReport, Severity, is_told
from stallwatch.model.verdict import Verdict
from stallwatch.outputs.delivery import ChildPoster, Delivered, Poster
from stallwatch.outputs.documents import HeldMessages, encoded
from stallwatch.outputs.headline import ending, headline, link, safety_words, sentence
from stallwatch.outputs.latest_only_worker import LatestOnlyWorker
from stallwatch.outputs.poster import PostRequest
from stallwatch.outputs.secret import secret_url

_ATTEMPT_SECONDS = 10.0
_RENEW_SECONDS = 60.0
_RETRY_SECONDS = 5.0
# Alertmanager tells nobody of an alert that is over before its group_wait is (seen with 0.25: one that was over within
# three seconds), and a death and its job's end are no more apart. What ended, and is not well again, stands so long.
_ENDED_SECONDS = 300.0
_MOST_CULPRITS = 4


class Alert(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One alert as Alertmanager's API takes it (POST /api/v2/alerts); times are RFC 3339, "" of its own clock."""

    labels: dict[str, str]
    annotations: dict[str, str]
    ends_at: str = ""
    generator_url: str = msgspec.field(default="", name="generatorURL")


class AlertmanagerOutput:
    """Hands every standing incident to all Alertmanagers of a cluster, again and again, as they expect of their
    clients."""

    name = "alertmanager"
    tells_people = True

    def __init__(
        self, posters: Sequence[Poster], clock: Clock, minimum: Severity, cluster: str, external_url: str
    ) -> None:
        self._posters = tuple(posters)
        self._clock = clock
        self._minimum = minimum
        self._cluster = cluster
        self._external_url = external_url.rstrip("/")
        self._standing: dict[str, Incident] = {}  # told and not known to be over, as they were seen last
        self._shown: bytes = b""  # what was handed over last, without its times
        self._due_ns = 0
        self._problem: str | None = None
        self._counts: Counter[str] = Counter({"delivered": 0, "retried": 0})
        self._alerts = LatestOnlyWorker(self.name, self._send)

    def start(self) -> None:
        self._alerts.start()

    def publish(self, report: NodeReport) -> None:
        """Hand over all that stands, and what has ended since, when that is news or must be renewed."""
        now_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
        known = {incident.incident_id: incident for incident in report.incidents}
        for incident_id, incident in known.items():
            if _is_told(incident, self._minimum) or incident_id in self._standing:
                self._standing[incident_id] = incident
            if incident.told_elsewhere and _over_ns(incident, self._minimum, wall_ns) is not None:
                self._standing.pop(incident_id, None)  # another renews it, whom an end of ours would silence
        alerts = tuple(self._alert(incident, wall_ns) for incident in self._standing.values())
        what = encoded([(one.labels, one.annotations) for one in alerts])
        if alerts and (what != self._shown or now_ns >= self._due_ns):
            self._shown, self._due_ns = what, now_ns + int(_RENEW_SECONDS * 1e9)
            self._alerts.hand(encoded(alerts))
        # One that is over is said until nobody remembers it: an attempt may have failed.
        self._standing = {one: incident for one, incident in self._standing.items() if one in known}

    def _alert(self, incident: Incident, wall_ns: int) -> Alert:
        over_ns = _over_ns(incident, self._minimum, wall_ns)
        address = link(incident.incident_id, self._external_url)
        return Alert(
            {key: text for key, text in self._labels(incident) if text},
            {key: text for key, text in _annotations(incident, address, is_over=over_ns is not None) if text},
            "" if over_ns is None else iso(over_ns),
            address,
        )

    def _labels(self, incident: Incident) -> Iterator[tuple[str, str]]:
        yield "alertname", "StallwatchIncident"
        yield "cluster", self._cluster
        yield "training_job", incident.job.training_job
        yield "owner", incident.job.owner
        yield "incident_id", incident.shared_id
        yield "waits_on", incident.waits_on  # by which Alertmanager puts jobs together

    def _send(self, alerts: bytes) -> None:
        outcomes = [poster.post(alerts, _ATTEMPT_SECONDS) for poster in self._posters]
        failures = [outcome.reason for outcome in outcomes if not isinstance(outcome, Delivered)]
        self._problem = f"not delivered: {failures[0]}" if failures else None
        self._counts["retried" if failures else "delivered"] += 1
        if failures:
            self._due_ns = min(self._due_ns, self._clock.monotonic_ns() + int(_RETRY_SECONDS * 1e9))

    def notify_test(self, seconds: float) -> str:
        """Send each Alertmanager an alert that ends by itself; return "delivered", or why the first that did not take
        it did not."""
        labels = {"alertname": "StallwatchTest", **({"cluster": self._cluster} if self._cluster else {})}
        words = {"summary": "Test from stallwatch: alerts of stalled training jobs will arrive here"}
        alert = Alert(labels, words)
        for poster in self._posters:
            outcome = poster.post(encoded([alert]), seconds / len(self._posters))
            if not isinstance(outcome, Delivered):
                return f"not delivered: {outcome.reason}"
        return "delivered"

    def problem(self) -> str | None:
        """Why an Alertmanager did not take the last alerts; None where all did."""
        return self._problem

    def deliveries(self) -> Mapping[str, int]:
        return dict(self._counts)

    def queued(self) -> int:
        return 0

    def held(self) -> tuple[HeldMessages, ...]:
        """Nothing is held back: Alertmanager groups by itself."""
        return ()

    def close(self, seconds: float) -> None:
        """Wait at most so many seconds for alerts under way, then cancel them."""

        def cancel() -> None:
            for poster in self._posters:
                poster.cancel()

        self._alerts.close(seconds, cancel)


def alertmanager(config: Config, clock: Clock) -> AlertmanagerOutput | None:
    """The output, or None where no address is configured. Raise UsageError for one that cannot be used."""
    section = config.alertmanager
    urls = [secret_url("alertmanager.urls", one, "") or "" for one in section.urls.replace(",", " ").split()]
    if not urls:
        return None
    posters = [
        ChildPoster(PostRequest("json", f"{url.rstrip('/')}/api/v2/alerts", msgspec.Raw(b"{}"), 0)) for url in urls
    ]
    return AlertmanagerOutput(posters, clock, section.minimum_severity, section.cluster, config.http.external_url)


def _is_told(incident: Incident, minimum: Severity) -> bool:
    """Whether people are to know of it now."""
    return is_told(incident.severity, minimum) and not (incident.is_over or incident.muted or incident.told_elsewhere)


def _over_ns(incident: Incident, minimum: Severity, wall_ns: int) -> int | None:
    """When its alert was over, by this node's clock; None while it stands."""
    over_ns = incident.resolved_wall_ns if incident.resolved_wall_ns is not None else wall_ns
    if incident.state == "ended" and not incident.muted:
        over_ns += int(_ENDED_SECONDS * 1e9)
        return over_ns if over_ns <= wall_ns else None
    return None if _is_told(incident, minimum) else over_ns


def _annotations(incident: Incident, link: str, *, is_over: bool) -> Iterator[tuple[str, str]]:
    """What people read, each by its own name, for templates of one's own."""
    verdict = incident.verdict
    is_over = is_over and incident.is_over
    yield "summary", headline(incident, "told")
    yield "description", ending(incident) if is_over else sentence(incident)
    yield "severity", incident.severity
    yield "state", "muted" if incident.muted else incident.state
    yield "node", incident.node
    yield "since", f"{iso(incident.opened_wall_ns, 'minutes')[11:16]} UTC"
    yield "runbook", f"stallwatch incidents {incident.incident_id}"
    yield "runbook_url", link
    if verdict is None or is_over:
        return
    yield "cause", verdict.cause
    yield "confidence", verdict.confidence
    yield "source", _source(verdict)
    yield "steps", "\n".join(f"{number}. {text}" for number, text in enumerate(verdict.next_steps, 1))
    yield "deadline", safety_words(incident)
    yield "acknowledged_by", incident.acknowledged_by


def _source(verdict: Verdict) -> str:
    """The line of each culprit that has one of its own, with its text."""
    lines: dict[str, list[int]] = {}
    for process in verdict.culprit_processes:
        frame = process.frame
        if frame is not None:
            text = f": {frame.source.strip()}" if frame.source else ""
            lines.setdefault(f"{frame.file}:{frame.line} in {frame.function}{text}", []).append(process.rank)
    shown = list(lines.items())[:_MOST_CULPRITS]
    if len(shown) == 1:
        return shown[0][0]
    return "\n".join(f"rank {', '.join(map(str, ranks[:8]))}: {line}" for line, ranks in shown)
