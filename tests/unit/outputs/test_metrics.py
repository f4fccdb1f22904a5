import math
import re
from statistics import median

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stallwatch.model.incident import NodeReport
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import GpuEvent, GroupCounter, HostSample, JobKey, KernelNotice
from stallwatch.model.verdict import GroupRef
from stallwatch.outputs.documents import HeldBack
from stallwatch.outputs.metric_memory import Memory, slow_scores
from stallwatch.outputs.metric_samples import OutputHealth
from stallwatch.outputs.metric_table import FAMILIES, reference
from stallwatch.outputs.metrics import render
from tests.unit.detectors.nodes import with_beat
from tests.unit.outputs.reports import GPU, JOB, diagnosis, incident, node_report, sample, verdict, view, with_snapshot

HELD = HeldBack("slack", "ben", 7, "his budget is used up", "2026-08-01T03:21:10Z")
SLACK = OutputHealth("slack", "not delivered yet: 500", {"delivered": 3, "retried": 1}, 1, True, (HELD,))

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def exported(report: NodeReport, memory: Memory | None = None, url: str = "") -> Series:
    text = render(report, (SLACK,), memory or Memory(), url).decode()
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
    memory = Memory()
    for pulse in range(8):
        memory.see(node_report(pulse=pulse))
    assert names(exported(node_report(incident(), pulse=8), memory)) == {family.name for family in FAMILIES}


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


def test_the_life_that_goes_on_hides_the_one_that_ended() -> None:
    old = view(0, state="gone", pid=9, step=900)
    new = view(0, state="stepping", pid=4, step=3)
    for order in ((old, new), (new, old)):
        series = exported(node_report(ranks=order))
        assert value(series, "stallwatch_rank_step", rank="0") == 3
        assert value(series, "stallwatch_job_ranks") == 1


TWIN = JobKey(JOB.training_job, "127.0.0.1:29500:4:0:none, the 2nd of this name")


def together(*, looks: int, memory: Memory) -> Series:
    """A job, and beside it a younger one of the same name, seen so often."""
    views = (view(0, step=900), view(0, job=TWIN, pid=9, step=3))
    ranks = (sample(0), msgspec.structs.replace(sample(0), job=TWIN, pid=9, start_ticks=sample(0).start_ticks + 1))
    report = with_snapshot(node_report(incident(job=TWIN), ranks=views), ranks=ranks)
    return [exported(report, memory) for _ in range(looks)][-1]


def test_two_live_jobs_of_one_name_have_series_of_their_own() -> None:
    series = together(looks=6, memory=Memory())
    steps = {labels["training_job"] for labels in labels_of(series, "stallwatch_rank_step")}
    (other,) = steps - {"llama-7b"}
    assert re.fullmatch(r"llama-7b#[0-9a-f]{8}", other)
    assert value(series, "stallwatch_rank_step", training_job="llama-7b") == 900
    assert value(series, "stallwatch_rank_step", training_job=other) == 3
    assert value(series, "stallwatch_rank_operations_enqueued", training_job=other, recorder="gloo") == 419
    assert {labels["training_job"] for labels in labels_of(series, "stallwatch_culprit")} == {other}


def test_a_job_of_the_same_name_by_another_user_takes_nobodys_series() -> None:
    theirs = msgspec.structs.replace(JOB, owner="ben")
    series = exported(node_report(incident(job=theirs), ranks=(view(0, step=900), view(0, job=theirs, step=3))))
    assert value(series, "stallwatch_rank_step", training_job="llama-7b", owner="") == 900
    assert value(series, "stallwatch_rank_step", training_job="llama-7b", owner="ben") == 3
    assert value(series, "stallwatch_job_ranks", owner="ben") == 1
    assert {labels["owner"] for labels in labels_of(series, "stallwatch_incident_info")} == {"ben"}


def test_the_second_keeps_its_label_when_the_first_has_ended() -> None:
    memory = Memory()
    together(looks=6, memory=memory)
    alone = node_report(ranks=(view(0, state="gone"), view(0, job=TWIN, pid=9, step=4)))
    series = exported(alone, memory)
    (label,) = {labels["training_job"] for labels in labels_of(series, "stallwatch_rank_step")} - {"llama-7b"}
    assert value(series, "stallwatch_rank_step", training_job=label) == 4


def test_a_restart_seen_for_a_moment_beside_the_old_life_keeps_the_name() -> None:
    memory = Memory()
    together(looks=3, memory=memory)
    new = node_report(ranks=(view(0, state="gone"), view(0, job=TWIN, pid=9, step=4)))
    assert value(exported(new, memory), "stallwatch_rank_step", training_job="llama-7b") == 4


def test_incidents_are_counted_once_and_only_those_of_this_daemon() -> None:
    counter = Memory()
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


def test_an_incident_says_who_tells_it_and_where_it_is_shown() -> None:
    (labels,) = labels_of(exported(node_report(incident()), url="https://n1:9477/"), "stallwatch_incident_info")
    assert labels["told_by"] == "slack"
    assert labels["url"] == "https://n1:9477/#llama-7b-1"


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
    memory = Memory()
    for pulse in range(9):
        series = exported(node_report(incident(), pulse=pulse), memory)
    of_rank = [name for name, labels in series if ("rank", "3") in labels and "group" not in dict(labels)]
    assert 10 < len(of_rank) <= 40


def test_who_hardly_waits_in_a_moving_job_has_the_score_of_what_it_costs_the_others() -> None:
    memory = Memory()
    for pulse in range(12):
        waits = GroupCounter("nccl", 0, pulse + 1, pulse if pulse % 4 else pulse + 1)  # 3 of 4 looks
        works = GroupCounter("nccl", 0, pulse, pulse)
        ranks = tuple(sample(rank, groups=(works if rank == 2 else waits,), pulse=pulse) for rank in range(4))
        series = exported(with_snapshot(node_report(), ranks=ranks), memory)
    assert value(series, "stallwatch_rank_communication_ratio", rank="0") == 0.75
    assert value(series, "stallwatch_rank_slow_score_ratio", rank="2") == 0.75
    assert value(series, "stallwatch_rank_slow_score_ratio", rank="0") == 0.0


def test_a_still_pulse_is_one_look_and_few_looks_are_no_share() -> None:
    memory = Memory()
    for _ in range(50):
        series = exported(node_report(pulse=1), memory)
    assert "stallwatch_rank_communication_ratio" not in names(series)


def xid(
    memory: Memory, *events: GpuEvent, notices: tuple[KernelNotice, ...] = ()
) -> list[tuple[dict[str, str], float]]:
    host = Known(HostSample(notices, None, None, None, None, None), 0)
    gpus = Known((msgspec.structs.replace(GPU, events=events),), 0)
    series = exported(with_snapshot(node_report(), gpus=gpus, host=host), memory)
    return [(dict(labels), count) for (name, labels), count in series.items() if name == "stallwatch_gpu_xid_total"]


def test_an_xid_is_counted_once_by_code_whoever_tells_of_it_and_stays_counted() -> None:
    memory = Memory()
    first, again = GpuEvent("xid", 10, "GPU-0", 79), GpuEvent("xid", 20, "GPU-0", 79)
    notice = KernelNotice("xid", 11, "NVRM: Xid 79", xid=79, pci_bus_id="0000:18:00")
    gpu0 = {"gpu": "0", "gpu_uuid": "GPU-0", "xid": "79"}
    assert xid(memory, first, notices=(notice,)) == [(gpu0, 1)]
    assert xid(memory, first, notices=(notice,)) == [(gpu0, 1)]
    assert xid(memory, first, again) == [(gpu0, 2)]
    assert xid(memory) == [(gpu0, 2)]
    gone = KernelNotice("xid", 30, "NVRM: Xid 79", xid=79, pci_bus_id="0000:3b:00")
    assert ({"gpu": "", "gpu_uuid": "pci:0000:3b:00", "xid": "79"}, 1) in xid(memory, notices=(gone,))


def test_a_gpu_that_is_slowed_says_why() -> None:
    slowed = msgspec.structs.replace(GPU, clock_event_reasons=0x40 | 0x1)
    series = exported(with_snapshot(node_report(), gpus=Known((slowed,), 0)))
    assert value(series, "stallwatch_gpu_slowed", reason="hw_thermal") == 1
    assert value(series, "stallwatch_gpu_slowed", reason="sw_power_cap") == 0


def test_the_score_compares_with_the_median_of_the_others_for_any_number_of_ranks() -> None:
    for shares in ([0.5], [0.1, 0.9], [0.2, 0.2, 0.8], [0.9, 0.1, 0.5, 0.5], [0.3, 0.1, 0.7, 0.9, 0.4]):
        known = {(JOB, rank, 100 + rank): share for rank, share in enumerate(shares)}
        others = {rank: shares[:rank] + shares[rank + 1 :] for rank in range(len(shares))}
        expected = {rank: max(median(rest) - shares[rank], 0.0) for rank, rest in others.items() if rest}
        assert {rank: score for (_, rank, _), score in slow_scores(known)} == pytest.approx(expected)


def test_names_of_series_are_written_anew_when_labels_change_and_forgotten_with_their_objects() -> None:
    memory = Memory()
    many = node_report(ranks=tuple(view(rank) for rank in range(64)))
    assert value(exported(many, memory), "stallwatch_rank_step", rank="63") == 412
    few = node_report(ranks=(view(0, step=413, phase='"new\n'),))
    series = exported(few, memory)
    assert value(series, "stallwatch_rank_step", rank="0") == 413
    assert value(series, "stallwatch_rank_phase", rank="0", phase='"new\n') == 1
    assert exported(few, memory) == series
    assert len(memory.series.of("stallwatch_rank_step", (("llama-7b", "0"),))) <= 2
