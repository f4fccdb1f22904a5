"""Debian's Prometheus scrapes the daemon's own HTTP output, and PromQL returns the culprit."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.panels import every_expression_has_data
from tests.e2e.prometheus import Prometheus, needs_prometheus, prometheus_server, until
from tests.integration.outputs.serving import Served, served
from tests.unit.outputs.reports import COUNTED, incident, node_report, view

pytestmark = needs_prometheus


@pytest.fixture
def node() -> Iterator[Served]:
    shares = {"communication_share": 0.75, "slow_share": 0.0}
    ranks = (*(view(rank, **shares) for rank in range(3)), view(3, phase="checkpoint", state="phase", **shares))
    with served(node_report(incident(), ranks=ranks, **COUNTED)) as made:
        yield made


@pytest.fixture
def prometheus(node: Served, tmp_path: Path) -> Iterator[Prometheus]:
    with prometheus_server(f"127.0.0.1:{node.port}", tmp_path) as made:
        yield made


# Another cause, a verdict that exists, a node that is well: rules that rightly say nothing of the literal report.
QUIET = (
    r"rule Stallwatch(RankLost|HardwareFault|RankBehind|JobStandsStill|GpuSlowedByHeat)",
    r"rule Stallwatch(DaemonAbsent|SensorDead|DeliveryFailing)",
    r"stallwatch_output_(deliveries|queue|held)",
    r"uncorrected ECC|ecc_uncorrected_total\{[^}]*\} > 0",
    r"runs slower|Is one slowed down, and why\? \(B\)",
    r"blind or dumb",
)


def test_every_expression_of_dashboards_and_rules_has_data(prometheus: Prometheus) -> None:
    every_expression_has_data(prometheus, QUIET)


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

    node.output.publish(node_report(incident(state="resolved"), **COUNTED))
    until(lambda: not prometheus.query("stallwatch_culprit"), "the culprit outlives its incident")
    until(lambda: not prometheus.alerts("StallwatchCollectiveStall"), "the alert outlives its incident")
    assert prometheus.query("stallwatch_incidents_total")[0]["value"][1] == "1"
    (target,) = prometheus.get("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
