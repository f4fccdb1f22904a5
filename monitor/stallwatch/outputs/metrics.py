"""Prometheus' view of the node: one report as samples, nothing for what is unknown or gone; those as
prometheus-client's families, rendered for who asks."""

import hashlib
import logging
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from stallwatch import __version__
from stallwatch.diagnosis.report.steps import deadline
from stallwatch.model.incident import Incident, NodeReport, RankView
from stallwatch.model.metric import Family, Labels
from stallwatch.model.reading import Known
from stallwatch.model.sensor_spec import SensorSpec
from stallwatch.model.snapshot import SENSORS, JobKey
from stallwatch.model.verdict import CulpritProcess, GroupRef, Verdict
from stallwatch.outputs.headline import link
from stallwatch.outputs.metric_table import FAMILIES
from stallwatch.outputs.output_health import OutputHealth

log = logging.getLogger(__name__)

Metric = GaugeMetricFamily | CounterMetricFamily
Encoder = Callable[[Collector], bytes]

# What Prometheus asks for; whoever asks for something else gets the oldest, which everything reads.
_ASKED = (
    "",
    *(f"text/plain;version=1.0.0;escaping={how}" for how in ("allow-utf-8", "underscores")),
    "application/openmetrics-text",
    "application/openmetrics-text;version=1.0.0",
    *(f"application/openmetrics-text;version=1.0.0;escaping={how}" for how in ("allow-utf-8", "underscores")),
)
_FORMATS = {content_type: encoder for encoder, content_type in map(choose_encoder, _ASKED)}
_dropped: set[str] = set()  # families of which it is in the log
OLDEST: str = choose_encoder("")[1]

_FRESH_NS = 300_000_000_000  # what is over stays for so long: longer than scrapes are apart
_MOST_SAID = 100
_said: set[str] = set()  # errors that are in the log


class MetricSample(NamedTuple):
    """One value of one series."""

    name: str
    labels: Labels  # values, in the order of the family's labels
    value: float


def negotiated(accept: str) -> str:
    """Given an Accept header, return the content type of the answer: one of a few, whatever it says."""
    try:
        content_type: str = choose_encoder(accept)[1]
    except (TypeError, ValueError):  # a version that is none
        return OLDEST
    return content_type if content_type in _FORMATS else OLDEST


class NodeCollector(Collector):
    """A report for prometheus-client. A sample whose text or number nothing can hold costs itself; of two with one set
    of labels the last counts, or Prometheus would drop one by chance."""

    def __init__(self, report: NodeReport, outputs: Sequence[OutputHealth], external_url: str = "") -> None:
        self._report = report
        self._outputs = outputs
        self._external_url = external_url
        self.dropped: set[str] = set()  # families that lost a sample

    def collect(self) -> Iterator[Metric]:
        """Families in the table's order, those with samples."""
        by_family: dict[str, dict[Labels, float]] = {family.name: {} for family in FAMILIES}
        for name, labels, value in samples(self._report, self._outputs, self._external_url):
            try:
                "".join(labels).encode()
                by_family[name][labels] = float(value)
            except (UnicodeError, TypeError, ValueError, OverflowError):
                self.dropped.add(name)
        for family in FAMILIES:
            if values := by_family[family.name]:
                metric = _metric(family)
                for labels, value in values.items():
                    metric.add_metric(labels, value)
                yield metric


def render(
    report: NodeReport, outputs: Sequence[OutputHealth], external_url: str = "", content_type: str = OLDEST
) -> bytes:
    """Everything that is known about the node and the daemon, in one of the formats that `negotiated` returns."""
    collector = NodeCollector(report, outputs, external_url)
    encode: Encoder = _FORMATS[content_type]
    text = encode(collector)
    for name in collector.dropped - _dropped:
        _dropped.add(name)
        log.warning("%s: a sample is left out: its text or number cannot be written", name)
    return text


def _metric(family: Family) -> Metric:
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    return kind(family.name, family.help, labels=family.labels)


def samples(report: NodeReport, outputs: Sequence[OutputHealth], external_url: str = "") -> Iterator[MetricSample]:
    """Given a report and how the outputs do, return every sample to export."""
    names = JobNames(report)
    told_by = ",".join(output.name for output in outputs if output.tells_people)
    yield MetricSample("stallwatch_build_info", (__version__, platform.python_version(), report.snapshot.node), 1)
    yield from _whole(_ranks(report, names))
    yield from _whole(_counts(report, names))
    for incident in report.incidents:
        if incident.state == "open" or _is_fresh(incident, report.snapshot.wall_ns):
            yield from _whole(_incident(incident, names, told_by, link(incident.incident_id, external_url)))
    for sensor in SENSORS:
        reading = getattr(report.snapshot, sensor.name)
        if isinstance(reading, Known):
            yield from _whole(_read_by(sensor, reading.value))
    yield from _whole(_itself(report, outputs))


def _whole(part: Iterator[MetricSample]) -> Iterator[MetricSample]:
    """All samples of a part, or those before what cannot be worked out: the other parts are exported all the same."""
    try:
        yield from part
    except Exception as error:
        what = f"{type(error).__name__}: {error}"[:200]
        if what not in _said and len(_said) < _MOST_SAID:
            _said.add(what)
            log.exception("part of the metrics cannot be worked out")


class JobNames:
    """The values of metric_table's labels of a job: name and owner, or what the report calls it instead."""

    def __init__(self, report: NodeReport) -> None:
        self._labels = dict(report.job_labels)

    def __call__(self, job: JobKey) -> tuple[str, str]:
        return self._labels.get(job, job.training_job), job.owner


def current_ranks(views: Sequence[RankView], names: Callable[[JobKey], tuple[str, str]]) -> Iterator[RankView]:
    """One view for each job and rank: the life of a restarted job that is not over hides the ones that are.

    Two series with the same labels would make Prometheus drop one of them by chance.
    """
    chosen: dict[tuple[tuple[str, str], int], RankView] = {}
    for view in views:
        key = (names(view.job), view.rank)
        other = chosen.get(key)
        if other is None or (not view.is_leaving, view.job.epoch, view.pid) > (
            not other.is_leaving,
            other.job.epoch,
            other.pid,
        ):
            chosen[key] = view
    yield from chosen.values()


def _ranks(report: NodeReport, names: JobNames) -> Iterator[MetricSample]:
    views = list(current_ranks(report.ranks, names))
    for view in views:
        labels = (*names(view.job), str(view.rank))
        yield MetricSample(
            "stallwatch_rank_info",
            (*labels, view.job.epoch, str(view.local_rank), report.snapshot.node, str(view.pid), view.gpu_uuid or ""),
            1,
        )
        yield MetricSample("stallwatch_rank_state", (*labels, view.state), 1)
        if view.phase:
            yield MetricSample("stallwatch_rank_phase", (*labels, view.phase), 1)
        for name, value in (
            ("stallwatch_rank_step", view.step),
            *(_goes_on(view) if view.state != "gone" else ()),
        ):
            if value is not None:
                yield MetricSample(name, labels, value)
    shown = {(view.job, view.rank, view.pid) for view in views}
    yield from _operations(report, shown, names)
    members_of: dict[tuple[str, str], list[RankView]] = {}
    for view in views:
        members_of.setdefault(names(view.job), []).append(view)
    for job, members in members_of.items():
        if here := sum(view.state != "gone" for view in members):
            yield MetricSample("stallwatch_job_ranks", job, here)
        yield MetricSample("stallwatch_job_world_size", job, max(view.world_size for view in members))


def _goes_on(view: RankView) -> Iterator[tuple[str, float | None]]:
    """What is asked of a rank that lives: the age of one that is gone would look like a stall."""
    yield "stallwatch_rank_step_seconds", view.step_seconds
    yield "stallwatch_rank_beat_age_seconds", view.beat_age_seconds
    yield "stallwatch_rank_pulse_age_seconds", view.pulse_age_seconds
    yield "stallwatch_rank_limit_seconds", view.limit_seconds
    yield "stallwatch_rank_communication_ratio", view.communication_share
    yield "stallwatch_rank_slow_score_ratio", view.slow_share


def _operations(report: NodeReport, shown: set[tuple[JobKey, int, int]], names: JobNames) -> Iterator[MetricSample]:
    for rank in report.snapshot.ranks:
        if (rank.job, rank.rank, rank.pid) not in shown or not isinstance(rank.heartbeat, Known):
            continue
        labels = (*names(rank.job), str(rank.rank))
        for library, version in rank.heartbeat.value.untested:
            yield MetricSample("stallwatch_rank_untested_version", (*labels, library, version), 1)
        groups = rank.heartbeat.value.groups
        for recorder in sorted({group.recorder for group in groups}):
            own = [group for group in groups if group.recorder == recorder]
            enqueued, completed = sum(group.enqueued for group in own), sum(group.completed for group in own)
            yield MetricSample("stallwatch_rank_operations_enqueued", (*labels, recorder), enqueued)
            yield MetricSample("stallwatch_rank_operations_completed", (*labels, recorder), completed)
        named = {(recorder, pg_id): name for recorder, pg_id, name in rank.heartbeat.value.pending_groups}
        for group in rank.heartbeat.value.open_groups:
            yield MetricSample(
                "stallwatch_rank_group_pending_operations",
                (*labels, group.recorder, named.get((group.recorder, group.pg_id), f"local {group.pg_id}")),
                group.enqueued - max(group.completed, 0),
            )


def _counts(report: NodeReport, names: JobNames) -> Iterator[MetricSample]:
    symptoms: Counter[Labels] = Counter(
        (*names(finding.job), finding.detector, finding.stage) for finding in report.findings
    )
    so_far: Counter[Labels] = Counter(
        {(count.training_job, count.owner, count.cause): count.total for count in report.incident_counts}
    )
    open_now: Counter[Labels] = Counter()
    for incident in report.incidents:
        if incident.state == "open":
            cause = incident.verdict.cause if incident.verdict else ""
            open_now[(*names(incident.job), cause, incident.severity)] += 1
    for name, counts in (
        ("stallwatch_findings", symptoms),
        ("stallwatch_incidents_open", open_now),
        ("stallwatch_incidents_total", so_far),
    ):
        for labels, count in sorted(counts.items()):
            yield MetricSample(name, labels, count)
    for judged in report.judged:
        yield MetricSample("stallwatch_verdicts_judged_total", (judged.cause, judged.judgement), judged.total)
    for lost in report.stalled:
        yield MetricSample(
            "stallwatch_stalled_gpu_seconds_total", (lost.training_job, lost.owner, lost.cause), lost.seconds
        )
    for xid in report.xid_counts:
        yield MetricSample("stallwatch_gpu_xid_total", (xid.gpu, xid.gpu_uuid, str(xid.xid)), xid.total)


def _is_fresh(incident: Incident, wall_ns: int) -> bool:
    """Over so lately that a crash between two scrapes is still seen."""
    over_ns = incident.resolved_wall_ns
    return over_ns is not None and incident.is_over and wall_ns - over_ns < _FRESH_NS


def _incident(incident: Incident, names: JobNames, told_by: str, url: str) -> Iterator[MetricSample]:
    labels = (*names(incident.job), incident.incident_id)
    yield MetricSample("stallwatch_incident_start_timestamp_seconds", labels, incident.opened_wall_ns / 1e9)
    if incident.report is None or incident.verdict is None:
        return
    if not incident.is_over:  # nobody asks any more whether that job may be ended
        yield MetricSample("stallwatch_incident_evidence_complete", labels, float(incident.report.evidence_complete))
        if ends := deadline(incident.report):
            yield MetricSample("stallwatch_incident_deadline_timestamp_seconds", labels, _unix(ends))
    verdict = incident.verdict
    yield MetricSample(
        "stallwatch_incident_info",
        (
            *labels,
            verdict.cause,
            incident.severity,
            incident.state,
            "true" if incident.muted else "false",
            verdict.confidence,
            ",".join(map(str, verdict.culprits)),
            verdict.where or "",
            verdict.operation or "",
            group_name(verdict.process_group) if verdict.process_group else "",
            verdict.waiting,
            incident.node,
            told_by,
            url,
        ),
        1,
    )
    yield from _culprits(incident, verdict, names)


def group_name(group: GroupRef) -> str:
    """The same on every node: names and numbers of process groups are local to a rank, what they are for and their
    members are not. Hundreds of groups of a mesh share a description."""
    members = ",".join(map(str, sorted(group.ranks)))
    return f"{group.description} {hashlib.sha256(members.encode()).hexdigest()[:8]}"


def _culprits(incident: Incident, verdict: Verdict, names: JobNames) -> Iterator[MetricSample]:
    processes = {process.rank: process for process in verdict.culprit_processes}
    for rank in verdict.culprits:
        process = processes.get(rank) or CulpritProcess(rank)
        frame = process.frame
        yield MetricSample(
            "stallwatch_culprit",
            (
                *names(incident.job),
                str(rank),
                incident.incident_id,
                verdict.cause,
                process.where or verdict.where or "",
                process.host or "",
                str(process.pid) if process.pid is not None else "",
                process.gpu_uuid or "",
                f"{frame.file}:{frame.line} {frame.function}" if frame else "",
            ),
            1,
        )


def _read_by(sensor: SensorSpec, value: Any) -> Iterator[MetricSample]:
    for family in sensor.metrics:
        if family.read is not None:
            for labels, sample in family.read(value):
                yield MetricSample(family.name, labels, sample)


def _itself(report: NodeReport, outputs: Sequence[OutputHealth]) -> Iterator[MetricSample]:
    for sensor in report.snapshot.sensors:
        required = "true" if sensor.required else "false"
        yield MetricSample("stallwatch_sensor_up", (sensor.sensor, required), float(sensor.up))
        yield MetricSample("stallwatch_sensor_duration_seconds", (sensor.sensor,), sensor.duration_seconds)
        yield MetricSample("stallwatch_sensor_errors_total", (sensor.sensor,), sensor.errors_total)
    for output in outputs:
        yield MetricSample("stallwatch_output_up", (output.name,), float(output.problem is None))
        for result, count in (output.deliveries or {}).items():
            yield MetricSample("stallwatch_output_deliveries_total", (output.name, result), count)
        if output.queued is not None:
            yield MetricSample("stallwatch_output_queue_messages", (output.name,), output.queued)
        for held in output.held:
            yield MetricSample("stallwatch_output_held_messages", (output.name, held.owner), held.messages)
    for stage in report.stage_errors:
        yield MetricSample("stallwatch_stage_errors_total", (stage.stage, stage.name), stage.errors_total)
    if report.strangers is not None:
        yield MetricSample("stallwatch_fleet_other_key_nodes", (), report.strangers)
    yield MetricSample("stallwatch_mode", (report.telling.mode,), 1)
    yield MetricSample("stallwatch_ticks_total", (), report.snapshot.tick)
    yield MetricSample("stallwatch_tick_late_seconds", (), report.snapshot.late_seconds)
    yield MetricSample("stallwatch_tick_timestamp_seconds", (), report.snapshot.wall_ns / 1e9)
    if report.daemon_cpu_seconds is not None:
        yield MetricSample("stallwatch_process_cpu_seconds_total", (), report.daemon_cpu_seconds)
    if report.daemon_resident_bytes is not None:
        yield MetricSample("stallwatch_process_resident_memory_bytes", (), report.daemon_resident_bytes)
    yield MetricSample("stallwatch_process_start_time_seconds", (), report.started_wall_ns / 1e9)


def _unix(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()
