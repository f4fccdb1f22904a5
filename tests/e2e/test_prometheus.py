"""Debian's Prometheus scrapes the daemon's own HTTP output, and PromQL returns the culprit."""

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.outputs.serving import Served, served
from tests.unit.outputs.reports import incident, node_report

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 60.0

pytestmark = pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed")


class Prometheus:
    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}/api/v1"
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def get(self, path: str) -> Any:
        with self._open(f"{self._base}/{path}", timeout=5) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found = self.get(f"query?query={urllib.parse.quote(expression)}")["result"]
        assert isinstance(found, list)
        return found

    def alerts(self, name: str) -> list[dict[str, Any]]:
        return [alert for alert in self.get("alerts")["alerts"] if alert["labels"]["alertname"] == name]


def until(look: Callable[[], Any], what: str) -> Any:
    """Ask again and again until the answer is true."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = look()
        except OSError as error:
            last = error
        else:
            if last:
                return last
        time.sleep(0.1)
    raise AssertionError(f"{what}: {last}")


@pytest.fixture
def node() -> Iterator[Served]:
    with served(node_report(incident())) as made:
        yield made


@pytest.fixture
def prometheus(node: Served, tmp_path: Path) -> Iterator[Prometheus]:
    """Prometheus with the shipped configuration, only faster and with this test's target."""
    shipped = (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text()
    config = shipped.replace("127.0.0.1:9477", f"127.0.0.1:{node.port}").replace("interval: 5s", "interval: 1s")
    assert config != shipped
    (tmp_path / "prometheus.yml").write_text(config)
    shutil.copy(ROOT / "deploy" / "prometheus" / "stallwatch.rules.yml", tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        "prometheus",
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    log = (tmp_path / "prometheus.log").open("w")
    with log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield Prometheus(port)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def test_promql_returns_the_culprit_the_rules_fire_and_both_end_with_the_incident(
    node: Served, prometheus: Prometheus
) -> None:
    (culprit,) = until(lambda: prometheus.query("stallwatch_culprit"), "no culprit in Prometheus")
    labels = culprit["metric"]
    assert (labels["training_job"], labels["rank"], labels["cause"]) == ("llama-7b", "2", "not_entered")
    assert labels["code"] == "/home/anna/locks.py:41 take_lock"
    assert labels["job"] == "stallwatch"  # the scrape's, not overwritten by ours

    states = prometheus.query("sum by (state) (stallwatch_rank_state)")
    assert {one["metric"]["state"]: one["value"][1] for one in states} == {"waiting": "3", "phase": "1"}

    (alert,) = until(lambda: prometheus.alerts("StallwatchCollectiveStall"), "no alert fires")
    assert alert["labels"]["severity"] == "critical"
    assert alert["annotations"]["summary"] == "llama-7b: not_entered, rank 2"
    assert "/home/anna/locks.py:41 take_lock" in alert["annotations"]["description"]

    node.output.publish(node_report(incident(state="resolved")))
    until(lambda: not prometheus.query("stallwatch_culprit"), "the culprit outlives its incident")
    until(lambda: not prometheus.alerts("StallwatchCollectiveStall"), "the alert outlives its incident")
    assert prometheus.query("stallwatch_incidents_total")[0]["value"][1] == "1"
    (target,) = prometheus.get("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
