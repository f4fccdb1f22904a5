"""Which incidents are archived, when, and what people see where they cannot be."""

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stallwatch.config import Config
from stallwatch.config_sections import IncidentSection
from stallwatch.model.incident import Incident, NodeReport
from stallwatch.outputs.archive import Archive, archive
from stallwatch.outputs.archive_child import ArchiveOrder
from tests.unit.outputs.reports import incident, node_report

SECONDS = 30.0


class Bench:
    def __init__(self) -> None:
        self.orders: list[ArchiveOrder] = []
        self.problem = ""
        self.ran = threading.Semaphore(0)
        self.output = Archive("s3://bucket/stallwatch", "", 90, self._run)
        self.output.start()

    def _run(self, order: ArchiveOrder, seconds: float) -> str:
        self.orders.append(order)
        self.ran.release()
        return self.problem

    def publish(self, *incidents: Incident, runs: int) -> None:
        """Tick until it has run so often more; then once more."""
        for _ in range(runs):
            self.output.publish(report(*incidents))
            assert self.ran.acquire(timeout=SECONDS)


def report(*incidents: Incident) -> NodeReport:
    return msgspec.structs.replace(node_report(), incidents=incidents)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.output.close(SECONDS)


TOLD = incident(severity="critical", bundle="/var/lib/stallwatch/incidents/a")


def test_a_told_incident_is_kept_once_complete_and_once_more_at_its_end(bench: Bench) -> None:
    bench.publish(TOLD, runs=1)
    over = msgspec.structs.replace(TOLD, state="resolved")
    bench.publish(over, runs=1)
    bench.output.publish(report(over))
    bench.publish(msgspec.structs.replace(TOLD, incident_id="b", bundle="/b"), runs=1)
    assert [order.folder for order in bench.orders] == [TOLD.bundle, TOLD.bundle, "/b"]
    assert bench.output.problem() is None


def test_what_nobody_was_told_of_stays_on_the_node(bench: Bench) -> None:
    bench.output.publish(report(msgspec.structs.replace(TOLD, severity="none")))
    shadow = msgspec.structs.replace(TOLD, incident_id="b", severity="none", withheld="warning", bundle="/b")
    bench.publish(shadow, runs=1)
    assert [order.folder for order in bench.orders] == ["/b"]


def test_a_storage_that_refuses_is_shown_and_tried_again_for_a_while(bench: Bench) -> None:
    bench.problem = "PermissionError: no such key"
    bench.publish(TOLD, runs=5)
    other = msgspec.structs.replace(TOLD, incident_id="b", bundle="/b")
    bench.publish(other, TOLD, runs=1)
    assert "no such key" in (bench.output.problem() or "")
    assert [order.folder for order in bench.orders] == [TOLD.bundle] * 5 + ["/b"]


def test_without_an_address_there_is_no_archive() -> None:
    assert archive(Config()) is None


def test_the_child_puts_it_where_it_is_told_and_says_what_is_wrong(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "incident.json").write_text("{}")
    made = archive(Config(incidents=IncidentSection(archive=str(tmp_path / "kept"))))
    assert made is not None
    order = ArchiveOrder(str(tmp_path / "kept"), "", 90, "a-1", "n1", str(bundle))
    assert made._in_child(order, SECONDS) == ""
    assert [path.name for path in (tmp_path / "kept").glob("*/a-1/*")] == ["n1.tar.gz"]
    options = msgspec.structs.replace(order, options_file=str(tmp_path / "none.json"))
    assert "none.json" in made._in_child(options, SECONDS)
