import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from stallwatch.model.incident import NodeReport
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import SENSORS, GroupCounter, JobKey
from stallwatch.model.verdict import GroupRef
from stallwatch.outputs.documents import HeldMessages
from stallwatch.outputs.metric_table import FAMILIES, reference
from stallwatch.outputs.metrics import OLDEST, negotiated, render
from stallwatch.outputs.output_health import OutputHealth
from tests.builders.node import with_beat
from tests.unit.outputs.reports import (
    GPU,
    JOB,
    complete,
    diagnosis,
    incident,
    node_report,
    sample,
    verdict,
    view,
    with_snapshot,
)

HELD = HeldMessages("slack", "ben", 7, "his budget is used up", "2026-08-01T03:21:10Z")
SLACK = OutputHealth("slack", "not delivered yet: 500", {"delivered": 3, "retried": 1}, 1, True, (HELD,))

Parser = Callable[[str], Iterable[Metric]]
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def exported(report: NodeReport, url: str = "") -> Series:
    text = render(report, (SLACK,), url).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def names(series: Series) -> set[str]:
    return {name for name, _ in series}


def value(series: Series, name: str, **labels: str) -> float:
    (found,) = [v for (n, given), v in series.items() if n == name and labels.items() <= dict(given).items()]
    return found


def labels_of(series: Series, name: str) -> list[dict[str, str]]:
    return [dict(labels) for given, labels in series if given == name]


def test_every_family_of_the_table_is_exported_when_everything_is_known_and_nothing_else() -> None:
    report = complete()
    unread = [sensor for sensor in SENSORS if not isinstance(getattr(report.snapshot, sensor.name), Known)]
    others = {family.name for sensor in unread for family in sensor.metrics}  # their sensors' tests have them
    assert names(exported(report)) == {family.name for family in FAMILIES} - others


def families(text: str, parse: Parser = text_string_to_metric_families) -> dict[str, Any]:
    return {
        family.name: (
            family.type,
            family.documentation,
            sorted((sample.name, sorted(sample.labels.items()), sample.value) for sample in family.samples),
        )
        for family in parse(re.sub(r'python="[^"]*"', 'python="3"', text))
    }


def test_it_says_what_it_always_said() -> None:
    """The text was written when it was made by hand: dashboards and rules of others rest on every word of it."""
    shares = {"communication_share": 1.0, "slow_share": 0.0}
    ranks = (*(view(rank, **shares) for rank in range(3)), view(3, phase="checkpoint", state="phase", **shares))
    report = msgspec.structs.replace(complete(), ranks=ranks, strangers=None)
    golden = (Path(__file__).parent / "metrics.golden.txt").read_text()
    assert families(render(report, (SLACK,), "https://n1:9477/").decode()) == families(golden)


def test_who_asks_for_openmetrics_gets_the_same_families() -> None:
    prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3"
    content_type = negotiated(prometheus)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    text = render(complete(), (SLACK,), "", content_type).decode()
    assert text.endswith("# EOF\n")
    assert families(text, openmetrics_families) == families(render(complete(), (SLACK,)).decode())


@pytest.mark.parametrize(
    "accept",
    ["", "*/*", "text/html", "application/openmetrics-text;version=x", "application/openmetrics-text;version=77.0"],
)
def test_who_asks_for_what_there_is_not_gets_what_everything_reads(accept: str) -> None:
    assert negotiated(accept) in (OLDEST, "application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert len({negotiated(f"application/openmetrics-text;version={number}.0.0") for number in range(50)}) <= 2


@pytest.mark.parametrize("bad", ["a\udcff", 3])
def test_a_text_that_nothing_can_hold_costs_its_sample_alone(bad: Any) -> None:
    series = exported(node_report(ranks=(view(0, phase=bad), view(1, phase="eval"))))
    assert [labels["rank"] for labels in labels_of(series, "stallwatch_rank_phase")] == ["1"]
    assert value(series, "stallwatch_rank_step", rank="0") == 412


@pytest.mark.parametrize("bad", ["many", 10**400])
def test_a_number_that_is_none_costs_its_sample_alone(bad: Any) -> None:
    series = exported(node_report(ranks=(view(0, step=bad), view(1))))
    assert [labels["rank"] for labels in labels_of(series, "stallwatch_rank_step")] == ["1"]


def test_what_cannot_be_worked_out_of_one_incident_costs_that_incident() -> None:
    odd = incident(incident_id="odd", report=diagnosis(deadline="soon"))
    series = exported(node_report(odd, incident()))
    shown = {labels["incident_id"] for labels in labels_of(series, "stallwatch_incident_info")}
    assert "llama-7b-1" in shown
    assert value(series, "stallwatch_incidents_open") == 2
    assert value(series, "stallwatch_ticks_total") == 7


def test_of_two_samples_with_the_same_labels_one_is_exported() -> None:
    twice = node_report(incident(), incident(severity="warning"))
    text = render(twice, (SLACK, SLACK)).decode()
    lines = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))


def test_names_follow_prometheus_conventions() -> None:
    for family in FAMILIES:
        assert family.name.startswith("stallwatch_")
        assert (family.kind == "counter") == family.name.endswith("_total"), family.name
        assert "job" not in family.labels  # belongs to the scrape
        assert not family.name.endswith(("_ms", "_mb", "_percent", "_mhz")), family.name
        assert family.help.endswith("."), family.name


def test_the_reference_has_a_row_for_each_family() -> None:
    rows = list(reference())
    assert len(rows) == len(FAMILIES) + 2
    assert "| `stallwatch_rank_step` | gauge | `training_job`, `owner`, `rank` |" in "\n".join(rows)


def test_the_culprit_is_a_series_with_its_code_line() -> None:
    (labels,) = labels_of(exported(node_report(incident())), "stallwatch_culprit")
    assert labels == {
        "training_job": "llama-7b",
        "owner": "",
        "rank": "2",
        "incident_id": "llama-7b-1",
        "cause": "not_entered",
        "where": "lock",
        "node": "gpu-node-17",
        "pid": "48213",
        "gpu_uuid": "GPU-2",
        "code": "/home/anna/locks.py:41 take_lock",
    }


def test_each_culprit_has_a_series_even_when_nothing_is_known_of_its_process() -> None:
    both = incident(report=diagnosis(verdict(culprits=(2, 5), culprit_processes=())))
    labels = labels_of(exported(node_report(both)), "stallwatch_culprit")
    assert sorted(label["rank"] for label in labels) == ["2", "5"]


def test_what_is_held_back_and_whose_is_a_series() -> None:
    assert value(exported(node_report()), "stallwatch_output_held_messages", output="slack", owner="ben") == 7


def test_a_resolved_incident_and_a_rank_that_left_have_no_series() -> None:
    over = node_report(incident(state="resolved"), ranks=(view(0),))
    series = exported(over)
    assert not names(series) & {"stallwatch_culprit", "stallwatch_incident_info", "stallwatch_incidents_open"}
    assert [label["rank"] for label in labels_of(series, "stallwatch_rank_state")] == ["0"]


def test_unknown_is_absent_not_zero_and_not_nan() -> None:
    blank = view(
        0,
        step=None,
        step_seconds=None,
        beat_age_seconds=None,
        pulse_age_seconds=None,
        limit_seconds=None,
        state="unknown",
    )
    report = with_snapshot(node_report(ranks=(blank,)), gpus=Unavailable("NVML has not answered for 40 s", 0), ranks=())
    series = exported(report)
    gone = {f"stallwatch_rank_{name}" for name in ("step", "step_seconds", "beat_age_seconds", "limit_seconds")}
    assert not names(series) & gone
    assert not [name for name in names(series) if name.startswith("stallwatch_gpu_")]
    assert value(series, "stallwatch_rank_state", rank="0", state="unknown") == 1
    assert not any(math.isnan(number) for number in series.values())


def test_values_are_in_base_units() -> None:
    series = exported(node_report())
    assert value(series, "stallwatch_gpu_utilization_ratio") == 1.0
    assert value(series, "stallwatch_gpu_sm_clock_hertz") == 1_980_000_000
    assert value(series, "stallwatch_gpu_power_watts") == GPU.power_watts
    assert value(series, "stallwatch_rank_operations_enqueued", rank="1", recorder="gloo") == 419


def test_a_rank_that_is_gone_ages_no_more_and_is_none_of_the_job_s_ranks() -> None:
    """A job that has ended well must not look, for as long as it is shown, as one that stands."""
    series = exported(node_report(ranks=(view(0, state="gone"), view(1))))
    ages = {"beat_age_seconds", "pulse_age_seconds", "limit_seconds", "step_seconds"}
    for name in (f"stallwatch_rank_{age}" for age in ages):
        assert {labels["rank"] for labels in labels_of(series, name)} == {"1"}, name
    assert value(series, "stallwatch_rank_state", rank="0", state="gone") == 1
    assert value(series, "stallwatch_rank_step", rank="0") > 0
    assert value(series, "stallwatch_job_ranks") == 1
    over = exported(node_report(ranks=(view(0, state="gone"), view(1, state="gone"))))
    assert "stallwatch_job_ranks" not in names(over)
    assert value(over, "stallwatch_job_world_size") > 0


def test_the_life_that_goes_on_hides_the_one_that_ended() -> None:
    old = view(0, state="gone", pid=9, step=900)
    new = view(0, state="stepping", pid=4, step=3)
    for order in ((old, new), (new, old)):
        series = exported(node_report(ranks=order))
        assert value(series, "stallwatch_rank_step", rank="0") == 3
        assert value(series, "stallwatch_job_ranks") == 1


TWIN = JobKey(JOB.training_job, "127.0.0.1:29500:4:0:none, the 2nd of this name")


def test_a_job_that_is_called_otherwise_has_series_of_its_own() -> None:
    views = (view(0, step=900), view(0, job=TWIN, pid=9, step=3))
    ranks = (sample(0), msgspec.structs.replace(sample(0), job=TWIN, pid=9))
    labelled = node_report(incident(job=TWIN), ranks=views, job_labels=((TWIN, "llama-7b#12ab34cd"),))
    series = exported(with_snapshot(labelled, ranks=ranks))
    other = "llama-7b#12ab34cd"
    assert value(series, "stallwatch_rank_step", training_job="llama-7b") == 900
    assert value(series, "stallwatch_rank_step", training_job=other) == 3
    assert value(series, "stallwatch_rank_operations_enqueued", training_job=other, recorder="gloo") == 419
    for name in ("stallwatch_culprit", "stallwatch_incident_info", "stallwatch_findings"):
        assert {labels["training_job"] for labels in labels_of(series, name)} <= {other, "llama-7b"}
    assert {labels["training_job"] for labels in labels_of(series, "stallwatch_culprit")} == {other}


def test_a_job_of_the_same_name_by_another_user_takes_nobodys_series() -> None:
    theirs = msgspec.structs.replace(JOB, owner="ben")
    series = exported(node_report(incident(job=theirs), ranks=(view(0, step=900), view(0, job=theirs, step=3))))
    assert value(series, "stallwatch_rank_step", training_job="llama-7b", owner="") == 900
    assert value(series, "stallwatch_rank_step", training_job="llama-7b", owner="ben") == 3
    assert value(series, "stallwatch_job_ranks", owner="ben") == 1
    assert {labels["owner"] for labels in labels_of(series, "stallwatch_incident_info")} == {"ben"}


def test_what_a_job_writes_cannot_break_the_text_format() -> None:
    hostile = verdict(operation='all"reduce\n\\', culprit_processes=())
    series = exported(node_report(incident(report=diagnosis(hostile))))
    (labels,) = labels_of(series, "stallwatch_incident_info")
    assert labels["operation"] == 'all"reduce\n\\'


def test_an_output_that_does_not_deliver_is_seen() -> None:
    series = exported(node_report())
    assert value(series, "stallwatch_output_up", output="slack") == 0
    assert value(series, "stallwatch_output_deliveries_total", output="slack", result="delivered") == 3
    assert value(series, "stallwatch_output_queue_messages", output="slack") == 1


def test_an_incident_says_who_tells_it_and_where_it_is_shown() -> None:
    (labels,) = labels_of(exported(node_report(incident()), url="https://n1:9477/"), "stallwatch_incident_info")
    assert labels["told_by"] == "slack"
    assert labels["url"] == "https://n1:9477/?incident=llama-7b-1"


def test_the_group_of_an_incident_has_the_same_name_on_every_node_and_another_for_other_members() -> None:
    def group(reference: GroupRef | None) -> str:
        report = node_report(incident(report=diagnosis(verdict(process_group=reference))))
        return labels_of(exported(report), "stallwatch_incident_info")[0]["group"]

    first = group(GroupRef("mesh_tp", (0, 1)))
    assert first.startswith("mesh_tp ")
    assert group(GroupRef("mesh_tp", (1, 0))) == first
    assert group(GroupRef("mesh_tp", (2, 3))) not in (first, "")
    assert group(None) == ""


def test_a_group_has_a_series_only_while_something_is_pending_and_a_rank_at_most_eight() -> None:
    (first, *_) = labels_of(exported(node_report()), "stallwatch_rank_group_pending_operations")
    # Not group 1, which waits for nothing; torch's name for it, or where that is not known the rank's own number.
    assert {"group": "local 0", "recorder": "gloo"}.items() <= first.items()
    named = with_beat(sample(0), pending_groups=(("gloo", 0, "default_pg 84deff01"),))
    (only,) = labels_of(
        exported(with_snapshot(node_report(), ranks=(named,))), "stallwatch_rank_group_pending_operations"
    )
    assert only["group"] == "default_pg 84deff01"
    many = tuple(GroupCounter("nccl", number, 5, 4) for number in range(100))
    report = with_snapshot(node_report(), ranks=(sample(0, groups=many),))
    assert len(labels_of(exported(report), "stallwatch_rank_group_pending_operations")) == 8


def test_a_rank_has_at_most_forty_series() -> None:
    series = exported(complete())
    of_rank = [name for name, labels in series if ("rank", "3") in labels and "group" not in dict(labels)]
    assert 10 < len(of_rank) <= 40


def test_a_gpu_that_is_slowed_says_why() -> None:
    slowed = msgspec.structs.replace(GPU, clock_event_reasons=0x40 | 0x1)
    series = exported(with_snapshot(node_report(), gpus=Known((slowed,), 0)))
    assert value(series, "stallwatch_gpu_slowed", reason="hw_thermal") == 1
    assert value(series, "stallwatch_gpu_slowed", reason="sw_power_cap") == 0


def test_a_version_that_nobody_has_tried_is_a_series_of_its_rank() -> None:
    series = exported(node_report())
    assert value(series, "stallwatch_rank_untested_version", rank="0", library="torch", version="9.1.0") == 1
    known = sample(0)
    assert isinstance(known.heartbeat, Known)
    tried = msgspec.structs.replace(known.heartbeat.value, untested=())
    ranks = (msgspec.structs.replace(known, heartbeat=Known(tried, 0)),)
    assert "stallwatch_rank_untested_version" not in names(exported(with_snapshot(node_report(), ranks=ranks)))
