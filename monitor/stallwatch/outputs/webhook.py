"""A JSON document to any address, for what is not Slack: the incident as the API shows it, and which step it took."""

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from stallwatch import __version__
from stallwatch.clock import Clock
from stallwatch.config import Config
from stallwatch.incidents.delivery_steps import Step
from stallwatch.model.incident import Incident, NodeReport
from stallwatch.outputs.courier import Courier
from stallwatch.outputs.delivery import ChildPoster
from stallwatch.outputs.documents import incident_document
from stallwatch.outputs.poster import Request
from stallwatch.outputs.secret import secret_url
from stallwatch.outputs.spool import FarSpoolFile


def webhook(config: Config, clock: Clock) -> Courier | None:
    """The output, or None where no address is configured. Raise UsageError for one that cannot be used."""
    url = secret_url("webhook.url", config.webhook.url, config.webhook.url_file)
    if url is None:
        return None
    return Courier(
        "webhook",
        WebhookWords(),
        ChildPoster(Request("json", url, msgspec.Raw(b"{}"), 0)),
        clock,
        FarSpoolFile(Path(config.daemon.state_directory) / "webhook.json"),
        config.webhook.minimum_severity,
        config.webhook.attempt_seconds,
        tells_people=False,
    )


class WebhookWords:
    def message(self, incident: Incident, step: Step, report: NodeReport) -> Mapping[str, object]:
        return {"step": step, "incident": incident_document(incident)}

    def line(self, incident: Incident, step: Step) -> str:
        return f"{incident.incident_id}: {step}"

    def digest(self, lines: Sequence[str]) -> Mapping[str, object]:
        return {"step": "digest", "lines": list(lines)}

    def test(self) -> Mapping[str, object]:
        return {"step": "test", "tool_version": __version__, "node": socket.gethostname()}
