"""What the metrics say about one report: pure, and nothing for what is unknown or gone."""

import hashlib
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from stallwatch import __version__
from stallwatch.model.incident import Incident, NodeReport, RankView
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import JobKey
from stallwatch.model.verdict import CulpritProcess, GroupRef, Verdict
from stallwatch.outputs.documents import HeldBack
from stallwatch.outputs.metric_gpus import gpu_samples
from stallwatch.outputs.metric_memory import Memory, RankKey, slow_scores
from stallwatch.outputs.metric_sample import Labels, Sample
from stallwatch.outputs.safety import deadline

_MOST_PENDING_GROUPS = 8  # of one rank: a job with hundreds of groups waits in a few of them at a time


class OutputHealth(NamedTuple):
    """How an output does; `deliveries` and `queued` are None for one that delivers no messages."""

    name: str
    problem: str | None
    deliveries: Mapping[str, int] | None = None
    queued: int | None = None
    tells_people: bool = False
    held: tuple[HeldBack, ...] = ()


def samples(
    report: NodeReport, outputs: Sequence[OutputHealth], memory: Memory, external_url: str = ""
) -> Iterator[Sample]:
    """Given a report, how the outputs do, and what was counted so far, return every sample to export."""
    yield Sample("stallwatch_build_info", (__version__, platform.python_version(), report.snapshot.node), 1)
    yield from _ranks(report, memory)
    told_by = ",".join(output.name for output in outputs if output.tells_people)
    yield from _incidents(report, memory.incidents.totals, told_by, external_url.rstrip("/"))
    yield from gpu_samples(report.snapshot, memory.xids)
    yield from _itself(report, outputs)


def current_ranks(views: Sequence[RankView]) -> Iterator[RankView]:
    """One view for each job and rank: the life of a restarted job that is not over hides the ones that are.

    Two series with the same labels would make Prometheus drop one of them by chance.
    """
    over = ("gone", "ending")
    chosen: dict[tuple[tuple[str, str], int], RankView] = {}
    for view in views:
        key = (view.job.name, view.rank)
        other = chosen.get(key)
        if other is None or (view.state not in over, view.job.epoch, view.pid) > (
            other.state not in over,
            other.job.epoch,
            other.pid,
        ):
            chosen[key] = view
    yield from chosen.values()


def _job(job: JobKey) -> tuple[str, str]:
    """The values of metric_table's labels of a job."""
    return job.training_job, job.owner


def _ranks(report: NodeReport, memory: Memory) -> Iterator[Sample]:
    views = list(current_ranks(report.ranks))
    for view in views:
        labels = (*_job(view.job), str(view.rank))
        yield Sample(
            "stallwatch_rank_info",
            (*labels, view.job.epoch, str(view.local_rank), report.snapshot.node, str(view.pid), view.gpu_uuid or ""),
            1,
        )
        yield Sample("stallwatch_rank_state", (*labels, view.state), 1)
        if view.phase:
            yield Sample("stallwatch_rank_phase", (*labels, view.phase), 1)
        for name, value in (
            ("stallwatch_rank_step", view.step),
            ("stallwatch_rank_step_seconds", view.step_seconds),
            ("stallwatch_rank_beat_age_seconds", view.beat_age_seconds),
            ("stallwatch_rank_pulse_age_seconds", view.pulse_age_seconds),
            ("stallwatch_rank_limit_seconds", view.limit_seconds),
        ):
            if value is not None:
                yield Sample(name, labels, value)
    shown = {(view.job, view.rank, view.pid) for view in views}
    yield from _operations(report, shown)
    yield from _communication(memory, shown)
    for job in {_job(view.job): None for view in views}:
        members = [view for view in views if _job(view.job) == job]
        yield Sample("stallwatch_job_ranks", job, len(members))
        yield Sample("stallwatch_job_world_size", job, max(view.world_size for view in members))


def _communication(memory: Memory, shown: set[RankKey]) -> Iterator[Sample]:
    shares = {key: share for key, share in memory.communication.shares().items() if key in shown}
    for (job, rank, _), share in shares.items():
        yield Sample("stallwatch_rank_communication_ratio", (*_job(job), str(rank)), share)
    for (job, rank, _), score in slow_scores(shares):
        yield Sample("stallwatch_rank_slow_score_ratio", (*_job(job), str(rank)), score)


def _operations(report: NodeReport, shown: set[RankKey]) -> Iterator[Sample]:
    for rank in report.snapshot.ranks:
        if (rank.job, rank.rank, rank.pid) not in shown or not isinstance(rank.heartbeat, Known):
            continue
        labels = (*_job(rank.job), str(rank.rank))
        groups = rank.heartbeat.value.groups
        for recorder in sorted({group.recorder for group in groups}):
            own = [group for group in groups if group.recorder == recorder]
            enqueued, completed = sum(group.enqueued for group in own), sum(group.completed for group in own)
            yield Sample("stallwatch_rank_operations_enqueued", (*labels, recorder), enqueued)
            yield Sample("stallwatch_rank_operations_completed", (*labels, recorder), completed)
        pending = [group for group in groups if group.enqueued > group.completed]
        named = {(recorder, pg_id): name for recorder, pg_id, name in rank.heartbeat.value.pending_groups}
        for group in pending[:_MOST_PENDING_GROUPS]:
            yield Sample(
                "stallwatch_rank_group_pending_operations",
                (*labels, group.recorder, named.get((group.recorder, group.pg_id), f"local {group.pg_id}")),
                group.enqueued - max(group.completed, 0),
            )


def _incidents(report: NodeReport, seen: Mapping[Labels, int], told_by: str, url: str) -> Iterator[Sample]:
    symptoms: Counter[Labels] = Counter(
        (*_job(finding.job), finding.detector, finding.stage) for finding in report.findings
    )
    open_now: Counter[Labels] = Counter()
    for incident in report.incidents:
        if incident.state == "open":
            cause = incident.verdict.cause if incident.verdict else ""
            open_now[(*_job(incident.job), cause, incident.severity)] += 1
            yield from _incident(incident, told_by, f"{url}/#{incident.incident_id}" if url else "")
    for name, counts in (
        ("stallwatch_findings", symptoms),
        ("stallwatch_incidents_open", open_now),
        ("stallwatch_incidents_total", seen),
    ):
        for labels, count in sorted(counts.items()):
            yield Sample(name, labels, count)


def _incident(incident: Incident, told_by: str, url: str) -> Iterator[Sample]:
    labels = (*_job(incident.job), incident.incident_id)
    yield Sample("stallwatch_incident_start_timestamp_seconds", labels, incident.opened_wall_ns / 1e9)
    if incident.report is None or incident.verdict is None:
        return
    yield Sample("stallwatch_incident_evidence_complete", labels, float(incident.report.evidence_complete))
    if ends := deadline(incident.report):
        yield Sample("stallwatch_incident_deadline_timestamp_seconds", labels, _unix(ends))
    verdict = incident.verdict
    yield Sample(
        "stallwatch_incident_info",
        (
            *labels,
            verdict.cause,
            incident.severity,
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
    yield from _culprits(incident, verdict)


def group_name(group: GroupRef) -> str:
    """The same on every node: names and numbers of process groups are local to a rank, what they are for and their
    members are not. Hundreds of groups of a mesh share a description."""
    members = ",".join(map(str, sorted(group.ranks)))
    return f"{group.description} {hashlib.sha256(members.encode()).hexdigest()[:8]}"


def _culprits(incident: Incident, verdict: Verdict) -> Iterator[Sample]:
    processes = {process.rank: process for process in verdict.culprit_processes}
    for rank in verdict.culprits:
        process = processes.get(rank) or CulpritProcess(rank)
        frame = process.frame
        yield Sample(
            "stallwatch_culprit",
            (
                *_job(incident.job),
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


def _itself(report: NodeReport, outputs: Sequence[OutputHealth]) -> Iterator[Sample]:
    for sensor in report.snapshot.sensors:
        required = "true" if sensor.required else "false"
        yield Sample("stallwatch_sensor_up", (sensor.sensor, required), float(sensor.up))
        yield Sample("stallwatch_sensor_duration_seconds", (sensor.sensor,), sensor.duration_seconds)
        yield Sample("stallwatch_sensor_errors_total", (sensor.sensor,), sensor.errors_total)
    for output in outputs:
        yield Sample("stallwatch_output_up", (output.name,), float(output.problem is None))
        for result, count in (output.deliveries or {}).items():
            yield Sample("stallwatch_output_deliveries_total", (output.name, result), count)
        if output.queued is not None:
            yield Sample("stallwatch_output_queue_messages", (output.name,), output.queued)
        for held in output.held:
            yield Sample("stallwatch_output_held_messages", (output.name, held.owner), held.messages)
    for stage in report.stage_errors:
        yield Sample("stallwatch_stage_errors_total", (stage.stage, stage.name), stage.errors_total)
    yield Sample("stallwatch_ticks_total", (), report.snapshot.tick)
    yield Sample("stallwatch_tick_late_seconds", (), report.snapshot.late_seconds)
    yield Sample("stallwatch_tick_timestamp_seconds", (), report.snapshot.wall_ns / 1e9)
    if report.daemon_cpu_seconds is not None:
        yield Sample("stallwatch_process_cpu_seconds_total", (), report.daemon_cpu_seconds)
    if report.daemon_resident_bytes is not None:
        yield Sample("stallwatch_process_resident_memory_bytes", (), report.daemon_resident_bytes)
    yield Sample("stallwatch_process_start_time_seconds", (), report.started_wall_ns / 1e9)


def _unix(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()
