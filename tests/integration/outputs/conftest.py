"""Served nodes, and a browser that shows them, once for the tests of a file."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.outputs.browser import chromium
from tests.integration.outputs.page_reports import stalled_incident, stalled_node, write_timeline
from tests.integration.outputs.serving import Served, served
from tests.integration.outputs.serving import stalled as stalled_report
from tests.unit.outputs.reports import FakeControl


@pytest.fixture(scope="module")
def node() -> Iterator[Served]:
    with served(stalled_report()) as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


@pytest.fixture(scope="module", params=[8, 1024])
def stalled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A node whose rank 2 of so many stands in a lock."""
    ranks, bundle = request.param, tmp_path_factory.mktemp("page") / "llama-7b-1"
    write_timeline(ranks, bundle)
    known = stalled_incident(ranks, bundle)
    with served(stalled_node(ranks, known), FakeControl(incidents=(known,))) as made:
        yield made
