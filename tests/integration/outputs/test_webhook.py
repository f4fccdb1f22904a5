"""What a webhook gets, read by others: the SDK of CloudEvents, JSON Schema, and the receiver of the documents."""

import http.server
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from stallwatch import config
from stallwatch.clock import SystemClock
from stallwatch.model.incident import IncidentEvent
from stallwatch.outputs.webhook import WebhookWords, webhook
from tests.readme import DOCS, SCHEMA
from tests.unit.outputs.reports import incident, node_report

KEY = "a key that both know"
WAIT = 60.0


class Got(NamedTuple):
    headers: dict[str, str]
    body: bytes


@pytest.fixture
def got() -> Iterator[tuple[str, "queue.Queue[Got]"]]:
    """The address of a receiver, and what it gets."""
    messages: queue.Queue[Got] = queue.Queue()

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            messages.put(Got({name.lower(): text for name, text in self.headers.items()}, body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", messages
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def told(got: tuple[str, "queue.Queue[Got]"], tmp_path: Path) -> Got:
    """A message that the daemon's output has sent, signed."""
    (tmp_path / "key").write_text(KEY)
    settings, _ = config.load(
        overrides={
            ("daemon", "state_directory"): str(tmp_path),
            ("webhook", "url"): got[0],
            ("webhook", "signing_key_file"): str(tmp_path / "key"),
        }
    )
    notifier = webhook(settings, SystemClock())
    assert notifier is not None
    notifier.start()
    try:
        notifier.publish(node_report(incident(events=(IncidentEvent(0, "suspected"), IncidentEvent(1, "told")))))
        return got[1].get(timeout=WAIT)
    finally:
        notifier.close(5)


def test_the_reference_sdk_reads_it(told: Got) -> None:
    http_binding = pytest.importorskip("cloudevents.core.bindings.http", reason="cloudevents is not installed")
    event = http_binding.from_http_event(http_binding.HTTPMessage(headers=told.headers, body=told.body))
    assert event.get_id() == "llama-7b-1/2"
    assert event.get_type() == "stallwatch.incident.told"
    assert event.get_source() == "/stallwatch/gpu-node-17"
    assert event.get_subject() == "llama-7b"
    assert event.get_specversion() == "1.0"
    data = event.get_data()
    assert isinstance(data, dict)
    assert data["incident"]["verdicts"][0]["culprits"] == [2]


def test_it_is_what_the_published_schema_says(told: Got) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    schema = msgspec.json.decode(SCHEMA.read_bytes())
    for message in (msgspec.json.decode(told.body), WebhookWords().test(), WebhookWords().digest(["a", "b"])):
        jsonschema.validate(msgspec.json.decode(msgspec.json.encode(message)), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"id": "a"}, schema)


def test_the_documents_receiver_knows_a_genuine_message_from_another(told: Got) -> None:
    page = (DOCS / "alerts.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)  # the page's own lines
    is_genuine: Callable[[str, bytes, str], bool] = names["is_genuine"]
    header = told.headers["stallwatch-signature"]
    assert is_genuine(header, told.body, KEY)
    assert not is_genuine(header, told.body + b" ", KEY)
    assert not is_genuine(header, told.body, "another")
    old = f"t={int(time.time()) - 3600},{header.partition(',')[2]}"
    assert not is_genuine(old, told.body, KEY)


def test_without_a_key_nothing_is_signed(got: tuple[str, "queue.Queue[Got]"], tmp_path: Path) -> None:
    keys = {("daemon", "state_directory"): str(tmp_path), ("webhook", "url"): got[0]}
    notifier = webhook(config.load(overrides=keys)[0], SystemClock())
    assert notifier is not None
    try:
        said = notifier.notify_test(WAIT)
    finally:
        notifier.close(5)
    assert said.startswith("delivered"), said
    message = got[1].get(timeout=WAIT)
    assert "stallwatch-signature" not in message.headers
    assert message.headers["content-type"].startswith("application/cloudevents+json")
    assert msgspec.json.decode(message.body)["data"]["step"] == "test"
