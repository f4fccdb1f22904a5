"""A daemon's page on a real socket, which the commands ask."""

from collections.abc import Iterator

import pytest

from tests.integration.outputs.serving import Served, served, stalled
from tests.unit.outputs.reports import FakeControl, incident


@pytest.fixture(scope="module")
def node() -> Iterator[Served]:
    past = incident(incident_id="llama-7b-0", state="resolved", report=None)
    with served(stalled(), FakeControl(incidents=(incident(),), past=(past,))) as made:
        yield made


@pytest.fixture
def address(node: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setenv("STALLWATCH_DAEMON_RUN_DIRECTORY", str(node.directory))
    monkeypatch.setenv("STALLWATCH_DAEMON_STATE_DIRECTORY", str(node.directory))
    return node
