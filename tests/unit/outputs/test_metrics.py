import math

from prometheus_client.parser import text_string_to_metric_families

from stallwatch.model.incident import NodeReport
from stallwatch.model.reading import Unavailable
from stallwatch.outputs.metric_samples import OutputHealth
from stallwatch.outputs.metric_table import FAMILIES, reference
from stallwatch.outputs.metrics import IncidentCounter, render
from tests.unit.outputs.reports import GPU, diagnosis, incident, node_report, verdict, view, with_snapshot

SLACK = OutputHealth("slack", "not delivered yet: 500", {"delivered": 3, "retried": 1}, 1)

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def exported(report: NodeReport, counter: IncidentCounter | None = None) -> Series:
    text = render(report, (SLACK,), counter or IncidentCounter()).decode()
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
    assert names(exported(node_report(incident()))) == {family.name for family in FAMILIES}


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
    assert "| `stallwatch_rank_step` | gauge | `training_job`, `rank` |" in "\n".join(rows)


def test_the_culprit_is_a_series_with_its_code_line() -> None:
    (labels,) = labels_of(exported(node_report(incident())), "stallwatch_culprit")
    assert labels == {
        "training_job": "llama-7b",
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


def test_the_life_that_goes_on_hides_the_one_that_ended() -> None:
    old = view(0, state="gone", pid=9, step=900)
    new = view(0, state="stepping", pid=4, step=3)
    for order in ((old, new), (new, old)):
        series = exported(node_report(ranks=order))
        assert value(series, "stallwatch_rank_step", rank="0") == 3
        assert value(series, "stallwatch_job_ranks") == 1


def test_incidents_are_counted_once_and_only_those_of_this_daemon() -> None:
    counter = IncidentCounter()
    before = incident(incident_id="llama-7b-0", state="resolved")
    exported(node_report(before), counter)
    exported(node_report(incident(report=None, severity="none", state="suspect"), before), counter)
    exported(node_report(incident(), before), counter)
    series = exported(node_report(incident(state="resolved"), before), counter)
    assert value(series, "stallwatch_incidents_total", cause="not_entered") == 1


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
