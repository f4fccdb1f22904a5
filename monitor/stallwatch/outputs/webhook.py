"""CloudEvents 1.0 to any address, for what is not Slack: the incident as the API shows it, and which step it took.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md, in the structured mode of its JSON format.
"""

import socket
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta

from stallwatch import __version__
from stallwatch.clock import Clock, iso
from stallwatch.config import Config
from stallwatch.encoding import json_of
from stallwatch.incidents.delivery_steps import Step
from stallwatch.model.incident import Incident, NodeReport
from stallwatch.outputs.delivery import ChildPoster
from stallwatch.outputs.documents import IncidentDocument, incident_document
from stallwatch.outputs.notifier import Notifier
from stallwatch.outputs.poster import PostRequest
from stallwatch.outputs.secret import secret_text, secret_url
from stallwatch.outputs.spool import FarSpoolFile

_ANY_CAUSE = "One of deploy/docs/verdicts.md; a later version may have more."
CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
DATA_SCHEMA = "urn:stallwatch:webhook:1"


class Data(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a message says of an incident."""

    step: Annotated[
        Step | Literal["digest", "test"],
        Meta(description="What happened to the incident; digest: many steps at once, as lines; test: nothing."),
    ]
    tool_version: str
    incident: IncidentDocument | None = None
    lines: tuple[str, ...] = ()


class CloudEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message as a CloudEvent."""

    id: Annotated[str, Meta(description="incident/revision: the same for a message that is sent again.", min_length=1)]
    source: Annotated[str, Meta(description="/stallwatch/ and the node whose daemon tells.", min_length=1)]
    type: Annotated[str, Meta(description="stallwatch.incident. and the step.", min_length=1)]
    time: str
    data: Data
    subject: Annotated[str, Meta(description="The training job.")] = ""
    specversion: Literal["1.0"] = "1.0"
    datacontenttype: str = "application/json"
    dataschema: str = DATA_SCHEMA

    def builtins(self) -> dict[str, Any]:
        """With what is constant, which other encoders of this struct may leave out."""
        constant = {"specversion": self.specversion, "datacontenttype": self.datacontenttype}
        made: dict[str, Any] = msgspec.to_builtins(self)
        return constant | {"dataschema": self.dataschema} | made


def schema() -> bytes:
    """JSON Schema of a message, the same whatever version of msgspec makes it. Causes are any text in it: who checks
    messages by it must not refuse one whose cause came with a later version."""
    of_message = _unindented(msgspec.json.schema(CloudEvent))
    for name in ("Verdict", "Rejected"):
        of_message["$defs"][name]["properties"]["cause"] = {"type": "string", "description": _ANY_CAUSE}
    return msgspec.json.format(json_of(of_message), indent=1) + b"\n"


def _unindented(part: Any) -> Any:
    """Docstrings without the indentation of the code, which msgspec leaves in before 0.23."""
    if isinstance(part, dict):
        return {
            key: cleandoc(value) if key == "description" and isinstance(value, str) else _unindented(value)
            for key, value in part.items()
        }
    return [_unindented(each) for each in part] if isinstance(part, list) else part


def webhook(config: Config, clock: Clock) -> Notifier | None:
    """The output, or None where no address is configured. Raise UsageError for one that cannot be used."""
    url = secret_url("webhook.url", config.webhook.url, config.webhook.url_file)
    if url is None:
        return None
    key = secret_text("webhook.signing_key", "", config.webhook.signing_key_file) or ""
    return Notifier(
        "webhook",
        WebhookWords(),
        ChildPoster(PostRequest("json", url, msgspec.Raw(b"{}"), 0, content_type=CONTENT_TYPE, signing_key=key)),
        clock,
        FarSpoolFile(Path(config.daemon.state_directory) / "webhook.json"),
        config.webhook.minimum_severity,
        config.webhook.attempt_seconds,
        tells_people=False,
    )


class WebhookWords:
    """Messages of a webhook, each a CloudEvent in JSON."""

    def message(self, incident: Incident, step: Step, report: NodeReport) -> Mapping[str, object]:
        """A CloudEvent of the incident's step, whose id rises with each."""
        event = _event(
            # Each step is an event of the incident, so the number of these rises with it.
            f"{incident.shared_id}/{len(incident.events)}",
            incident.node,
            Data(step, __version__, incident_document(incident)),
            subject=incident.job.training_job,
        )
        return event.builtins()

    def line(self, incident: Incident, step: Step) -> str:
        """Its id and the step, for a digest."""
        return f"{incident.incident_id}: {step}"

    def readers(self, incident: Incident) -> str:
        """It has one address."""
        return ""

    def digest(self, lines: Sequence[str]) -> Mapping[str, object]:
        """A CloudEvent of type digest with the lines of many incidents."""
        now = datetime.now(UTC)
        node = socket.gethostname()
        return _event(f"digest/{now.timestamp():.6f}", node, Data("digest", __version__, lines=tuple(lines))).builtins()

    def test(self) -> Mapping[str, object]:
        """A CloudEvent of type test, without an incident."""
        now = datetime.now(UTC)
        return _event(f"test/{now.timestamp():.6f}", socket.gethostname(), Data("test", __version__)).builtins()


def _event(event_id: str, node: str, data: Data, subject: str = "") -> CloudEvent:
    at = iso(time.time_ns())
    source = f"/stallwatch/{quote(node, safe='')}"
    return CloudEvent(event_id, source, f"stallwatch.incident.{data.step}", at, data, subject)
