"""Whether a node is ready and well by HTTP, and how its server begins and ends."""

import tempfile
import threading
from pathlib import Path

import msgspec
import pytest

from stallwatch.errors import UsageError
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import SensorStatus
from stallwatch.outputs.client import DaemonUnreachable
from tests.builders.clock import FakeClock
from tests.integration.outputs.serving import Served, served, stalled
from tests.unit.outputs.reports import FakeControl, incident, node_report, view, with_snapshot


def test_a_dead_required_sensor_makes_the_node_unready_with_its_reason() -> None:
    dead = SensorStatus("processes", False, "no answer for 40 s", 0.0, 3)
    with served(with_snapshot(node_report(), sensors=(dead,))) as made:
        answer = made.get("/readyz")
        assert answer.status == 503
        assert answer.json["problems"][0]["reason"] == "no answer for 40 s"
        assert made.get("/healthz").status == 200


def test_a_loop_that_stands_still_is_not_healthy() -> None:
    clock = FakeClock()
    with served(stalled(), clock=clock) as made:
        clock.advance(60)
        assert made.get("/healthz").status == 503
        assert not made.client.healthy()


def test_before_the_first_tick_it_says_so_and_shows_no_zeros() -> None:
    with served() as made:
        assert made.get("/metrics").status == 503
        assert made.ask("/api/v1/ranks").status == 503
        with pytest.raises(DaemonUnreachable, match="has not looked"):
            made.client.ranks()


class StuckControl(FakeControl):
    """A daemon whose store lies on a disk that does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()

    def incident(self, incident_id: str) -> Incident | None:
        self.release.wait(30)
        return None


def test_metrics_answer_while_the_store_hangs() -> None:
    stuck = StuckControl()
    with served(stalled(), stuck) as made:
        asking = threading.Thread(target=made.ask, args=("/api/v1/incidents/llama-7b-1",), daemon=True)
        asking.start()
        assert made.get("/metrics").status == 200
        assert made.get("/healthz").status == 200
        stuck.release.set()
        asking.join(10)


def test_many_ranks_travel_compressed() -> None:
    many = node_report(ranks=tuple(view(rank, world_size=1024) for rank in range(1024)))
    with served(many) as made:
        plain = made.ask("/api/v1/ranks")
        small = made.ask("/api/v1/ranks", Accept_Encoding="gzip")
    assert len(msgspec.json.decode(plain.body)["ranks"]) == 1024
    assert small.headers["content-encoding"] == "gzip"
    assert len(small.body) < 200_000


def test_a_port_in_use_ends_the_start_and_leaves_no_socket_behind(node: Served) -> None:
    with tempfile.TemporaryDirectory(prefix="sw-") as folder:
        taken = {("http", "listen"): f"127.0.0.1:{node.port}", ("daemon", "run_directory"): folder}
        with pytest.raises(UsageError, match="in use"), served(overrides=taken):
            raise AssertionError("it started")
        assert not (Path(folder) / "control.sock").exists()


def test_a_second_daemon_ends_its_start_and_leaves_the_first_ones_socket(node: Served) -> None:
    same = {("daemon", "run_directory"): str(node.directory)}
    with pytest.raises(UsageError, match="another stallwatch daemon answers"), served(overrides=same):
        raise AssertionError("it started")
    assert node.client.healthy()


def test_without_tcp_only_the_socket_answers() -> None:
    with served(stalled(), overrides={("http", "listen"): ""}) as made:
        assert made.output.port is None
        assert made.client.page_url() is None
        assert made.client.ranks().node == "gpu-node-17"
        assert not (made.directory / "token").exists()


def test_closing_removes_the_socket_and_ends_the_thread() -> None:
    before = threading.enumerate()
    with served(stalled()) as made:
        path = made.output.socket_path
        assert path.exists()
        assert made.output.problem() is None
    assert not path.exists()
    assert [thread.name for thread in threading.enumerate() if thread not in before and thread.name == "http"] == []


def test_prometheus_gets_openmetrics_when_it_asks_for_it(node: Served) -> None:
    accept = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3"
    asked = node.get("/metrics", Accept=accept)
    assert asked.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert asked.body.endswith(b"# EOF\n")
    assert node.get("/metrics", Accept="application/openmetrics-text;version=x").status == 200


def test_a_text_that_no_utf_8_can_hold_costs_nothing_else() -> None:
    odd = node_report(incident(resolution="a\udcff"), ranks=(view(0, phase="b\udcff"), view(1)))
    with served(odd) as made:
        assert [one["phase"] for one in made.ask("/api/v1/ranks").json["ranks"]] == ["b?", ""]
        assert made.ask("/api/v1/incidents").json["incidents"][0]["resolution"] == "a?"
        assert b'stallwatch_rank_step{owner="",rank="0"' in made.get("/metrics").body
