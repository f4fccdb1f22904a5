"""Debian's Prometheus scrapes the daemon's own HTTP output, and PromQL returns the culprit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stallwatch.model.snapshot import JobKey
from tests.e2e.panels import every_expression_has_data, panel_expressions, rule_expressions
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
    r"rule Stallwatch(DaemonAbsent|SensorDead|MeetingPlaceAway|FleetKeysDiffer|DeliveryFailing|Silenced)",
    r"stallwatch_output_(deliveries|queue|held)",
    r"uncorrected ECC|ecc_uncorrected_total\{[^}]*\} > 0",
    r"runs slower|Is one slowed down, and why\? \(B\)",
    r"blind or dumb",
)


def test_every_expression_of_dashboards_and_rules_has_data(prometheus: Prometheus) -> None:
    every_expression_has_data(prometheus, QUIET)


def test_with_two_jobs_every_expression_is_answered_before_during_and_after_and_a_first_event_is_no_zero(
    tmp_path: Path,
) -> None:
    other = JobKey("resnet", "1", "ben")
    ranks = (*(view(rank) for rank in range(2)), *(view(rank, job=other, state="stepping") for rank in range(2)))
    calm = node_report(ranks=ranks)
    hang = node_report(incident(), ranks=ranks, **COUNTED)
    died = incident(state="ended", resolution="the job died", resolved_wall_ns=calm.snapshot.wall_ns)
    after = node_report(died, ranks=tuple(view(rank, state="gone") for rank in range(2)), **COUNTED)
    asked = panel_expressions()

    def answers(database: Prometheus, title: str) -> list[dict[str, Any]]:
        (expression,) = [one for name, one in asked.items() if title in name]
        return database.query(expression)

    with served(calm) as node, prometheus_server(f"127.0.0.1:{node.port}", tmp_path) as database:
        until(lambda: len(database.query("stallwatch_job_ranks")) == 2, "two jobs are not in Prometheus")
        for name, expression in (asked | rule_expressions()).items():
            database.query(expression)  # raises for one that two jobs make ambiguous
            assert not ("hangs cost" in name and database.query(expression)), "nothing has happened"
        node.output.publish(hang)
        until(lambda: answers(database, "What do hangs cost"), "the cost is not in Prometheus")
        scraped = "count_over_time(stallwatch_incidents_total[1m]) >= 3"
        until(lambda: database.query(scraped), "it is not scraped again")  # and it is still what happened
        assert [float(one["value"][1]) for one in answers(database, "gone wrong lately")] == [1.0]
        assert [float(one["value"][1]) for one in answers(database, "What do hangs cost")] == [40.0 / 3600]
        behind = {
            one["metric"]["training_job"] for one in answers(database, "Which rank has not stepped for how long? (A)")
        }
        assert behind == {"llama-7b", "resnet"}
        for expression in (asked | rule_expressions()).values():
            database.query(expression)
        node.output.publish(after)
        until(
            lambda: [one["metric"]["state"] for one in answers(database, "stand or have died")] == ["ended"],
            "no end is shown",
        )
        until(
            lambda: [one["value"][1] for one in answers(database, "ranks do not move")] == ["0"],
            "who is gone is no stall",
        )
        for expression in (asked | rule_expressions()).values():
            database.query(expression)


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
