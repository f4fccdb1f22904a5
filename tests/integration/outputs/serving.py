"""A real HTTP output on a private port and socket, fed with a literal report."""

import contextlib
import http.client
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stallwatch import config
from stallwatch.clock import Clock
from stallwatch.model.incident import NodeReport
from stallwatch.outputs.client import Client
from stallwatch.outputs.http import HttpOutput
from tests.builders.clock import FakeClock
from tests.unit.outputs.reports import FakeControl, incident, node_report


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Served(NamedTuple):
    output: HttpOutput
    control: FakeControl
    directory: Path
    client: Client

    @property
    def port(self) -> int:
        assert self.output.port is not None
        return self.output.port

    @property
    def token(self) -> str:
        return (self.directory / "token").read_text().strip()

    def get(self, path: str, method: str = "GET", **headers: str) -> Response:
        """Ask over TCP; a header's underscores are dashes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            return Response(answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read())

    def ask(self, path: str, **headers: str) -> Response:
        """Ask over TCP with the token."""
        return self.get(path, Authorization=f"Bearer {self.token}", **headers)


@contextlib.contextmanager
def served(
    report: NodeReport | None = None,
    control: FakeControl | None = None,
    clock: Clock | None = None,
    overrides: dict[tuple[str, str], Any] | None = None,
) -> Iterator[Served]:
    # Short: a socket's path has 107 bytes, and pytest's own folders are long.
    with tempfile.TemporaryDirectory(prefix="sw-") as made:
        settings = {("daemon", "run_directory"): made, ("http", "listen"): "127.0.0.1:0"}
        configured, _ = config.load(overrides=settings | (overrides or {}))
        given = control or FakeControl(incidents=(incident(),))
        # Time stands still unless a test says otherwise: on a busy machine what was published is soon seconds old.
        output = HttpOutput(configured, given, clock or FakeClock())
        output.start()
        try:
            if report is not None:
                output.publish(report)
            yield Served(output, given, Path(made), Client(output.socket_path))
        finally:
            output.close(5)


def stalled() -> NodeReport:
    return node_report(incident())
