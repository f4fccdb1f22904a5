"""Literal reports and fakes of the daemon's side for the tests of outputs and commands."""

from typing import Any

import msgspec

from stallwatch.errors import UsageError
from stallwatch.model.finding import Finding
from stallwatch.model.gpu import Gpu, GpuEvent
from stallwatch.model.incident import (
    Incident,
    IncidentCount,
    IncidentEvent,
    JudgedCount,
    Judgement,
    Mode,
    NodeReport,
    RankView,
    StageErrors,
    StalledGpuSeconds,
    XidCount,
)
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import GroupCounter, Heartbeat, JobKey, NodeSnapshot, RankSample, SensorStatus
from stallwatch.model.verdict import CulpritProcess, Fact, Frame, GroupRef, Rejected, Report, StackNode, Verdict
from tests.builders.clock import WALL_NS
from tests.builders.heartbeat import heartbeat

JOB = JobKey("llama-7b", "127.0.0.1:29500:4:0:none")
NODE = "gpu-node-17"


class FakeControl:
    """A daemon of one job that remembers what it was asked."""

    def __init__(self, incidents: tuple[Incident, ...] = (), past: tuple[Incident, ...] = ()) -> None:
        self.incidents = incidents
        self.past = past
        self.asked: list[tuple[Any, ...]] = []
        self.lines: tuple[str, ...] = ("slack: delivered (200 ok)",)

    def incident(self, incident_id: str) -> Incident | None:
        self.asked.append(("incident", incident_id))
        return next((one for one in (*self.incidents, *self.past) if one.incident_id == incident_id), None)

    def past_incidents(self, limit: int) -> tuple[Incident, ...]:
        return self.past[:limit]

    def capture(self, training_job: str | None, owner: str | None = None) -> str:
        if training_job not in (None, JOB.training_job):
            raise UsageError(f"no job {training_job!r} on this node", f"Running: {JOB.training_job}")
        self.asked.append(("capture", training_job))
        return "llama-7b-2"

    def mute(self, training_job: str, seconds: float, owner: str | None = None, by: str = "") -> str:
        self.asked.append(("mute", training_job, seconds))
        return owner or JOB.owner

    def mode(self, mode: Mode, seconds: float, by: str) -> str:
        self.asked.append(("mode", mode, seconds))
        return "on this node alone"

    def maintenance(self, node: str, seconds: float, by: str, why: str) -> str:
        self.asked.append(("maintenance", node, seconds, why))
        return "on this node alone"

    def acknowledge(self, incident_id: str, by: str) -> None:
        if all(one.incident_id != incident_id for one in self.incidents):
            raise UsageError(f"no open incident {incident_id!r} on this node", "Open: none.")
        self.asked.append(("acknowledge", incident_id, by))

    def judge(self, incident_id: str, judgement: Judgement, by: str) -> None:
        self.asked.append(("judge", incident_id, judgement, by))

    def notify_test(self) -> tuple[str, ...]:
        return self.lines


def verdict(**changes: Any) -> Verdict:
    whole = Verdict(
        cause="not_entered",
        culprits=(2,),
        confidence="certain",
        summary="Rank 2 never entered all_reduce #412: it waits for a lock in take_lock (locks.py:41).",
        culprit_processes=(
            CulpritProcess(
                2, NODE, 48213, "GPU-2", "lock", Frame("/home/anna/locks.py", 41, "take_lock", "  with self._lock:")
            ),
        ),
        waiting="0-1,3",
        where="lock",
        process_group=GroupRef("default_pg", (0, 1, 2, 3)),
        operation="all_reduce",
        seq=412,
        because=(Fact("rank 2's recorder ends at #411", "flight recorder"),),
        rejected=(Rejected("process_stopped", "state is S"),),
        next_steps=("Look at who holds the lock.",),
    )
    return msgspec.structs.replace(whole, **changes)


def stacks() -> StackNode:
    alone = StackNode("take_lock", "locks.py", 41, "2", 1)
    others = StackNode("all_reduce", "distributed_c10d.py", 2810, "0-1,3", 3)
    return StackNode("<module>", "train.py", 12, "0-3", 4, (alone, others))


def diagnosis(*verdicts: Verdict, **changes: Any) -> Report:
    whole = Report(
        schema_version=1,
        tool_version="0.1.0",
        incident_id="llama-7b-1",
        training_job=JOB.training_job,
        epoch=JOB.epoch,
        captured_at="2026-01-01T00:00:05.000Z",
        deadline="2026-01-01T00:10:00Z",
        evidence_complete=True,
        verdicts=verdicts or (verdict(),),
        stacks=stacks(),
    )
    return msgspec.structs.replace(whole, **changes)


def finding(**changes: Any) -> Finding:
    whole = Finding("stall", "confirmed", JOB, (0, 1, 2, 3), 0, 5.0, "rank 2 has made no step for 8.2 s")
    return msgspec.structs.replace(whole, **changes)


def incident(**changes: Any) -> Incident:
    whole = Incident(
        incident_id="llama-7b-1",
        job=JOB,
        node=NODE,
        state="open",
        severity="critical",
        opened_wall_ns=WALL_NS,
        since_ns=0,
        findings=(finding(),),
        report=diagnosis(),
        bundle="/var/lib/stallwatch/incidents/llama-7b-1",
        events=(IncidentEvent(WALL_NS, "suspected"),),
    )
    return msgspec.structs.replace(whole, **changes)


def view(rank: int, **changes: Any) -> RankView:
    whole = RankView(
        job=JOB,
        rank=rank,
        local_rank=rank,
        world_size=4,
        pid=48211 + rank,
        state="waiting",
        step=412,
        step_seconds=0.052,
        beat_age_seconds=14.2,
        pulse_age_seconds=0.4,
        phase="",
        limit_seconds=5.0,
        limit_reason="the floor",
        gpu_uuid=f"GPU-{rank}",
    )
    return msgspec.structs.replace(whole, **changes)


def beat(rank: int, groups: tuple[GroupCounter, ...], pulse: int = 0) -> Heartbeat:
    return heartbeat(
        rank,
        pid=48211 + rank,
        node=NODE,
        training_job=JOB.training_job,
        epoch=JOB.epoch,
        step=412,
        last_step_ns=0,
        pulse_count=pulse + 1,
        pulse_ns=pulse * 1_000_000_000,
        groups=groups,
        looks=(),
        untested=(("torch", "9.1.0"),),
    )


GROUPS = (GroupCounter("gloo", 0, 412, 411), GroupCounter("gloo", 1, 7, 7))


def sample(rank: int, groups: tuple[GroupCounter, ...] = GROUPS, pulse: int = 0) -> RankSample:
    known = Known(beat(rank, groups, pulse), 0)
    return RankSample(JOB, rank, rank, 4, 48211 + rank, 1, known, Unavailable("not looked", 0))


GPU = Gpu(
    index=0,
    uuid="GPU-0",
    name="H100",
    serial="165",
    pci_bus_id="0000:18:00.0",
    utilization_percent=100,
    memory_used_bytes=60 << 30,
    memory_total_bytes=80 << 30,
    power_watts=118.5,
    power_limit_watts=700.0,
    temperature_celsius=34,
    sm_clock_mhz=1980,
    clock_event_reasons=4,
    ecc_uncorrected_total=0,
    events=(GpuEvent("xid", 5, "GPU-0", 31),),
    throttle_ns=(("hw_thermal", 3_000_000_000),),
    pcie_replays=0,
    nvlink_errors=(("replay", 0),),
    recovery_action=0,
)


def node_report(*incidents: Incident, pulse: int = 0, **changes: Any) -> NodeReport:
    """Everything known: four ranks, one GPU, one phase, one error."""
    snapshot = NodeSnapshot(
        tick=7,
        at_ns=0,
        wall_ns=WALL_NS,
        node=NODE,
        late_seconds=0.01,
        ranks=tuple(sample(rank, pulse=pulse) for rank in range(4)),
        gpus=Known((GPU,), 0),
        sensors=(
            SensorStatus("heartbeats", True, "", 0.001, 0),
            SensorStatus("gpus", False, "no GPU on this node", 0.0, 0, required=False),
        ),
    )
    whole = NodeReport(
        snapshot=snapshot,
        ranks=(*(view(rank) for rank in range(3)), view(3, phase="checkpoint", state="phase")),
        findings=tuple(finding for one in incidents for finding in one.findings),
        incidents=incidents,
        stage_errors=(StageErrors("detectors", "stall", 2),),
        daemon_cpu_seconds=1.5,
        daemon_resident_bytes=40 << 20,
        started_wall_ns=WALL_NS,
    )
    return msgspec.structs.replace(whole, **changes)


def with_snapshot(report: NodeReport, **changes: Any) -> NodeReport:
    return msgspec.structs.replace(report, snapshot=msgspec.structs.replace(report.snapshot, **changes))


def complete() -> NodeReport:
    """Everything that may be known is."""
    ranks = tuple(view(rank, phase="checkpoint", communication_share=0.75, slow_share=0.1) for rank in range(4))
    return node_report(incident(), ranks=ranks, strangers=1, **COUNTED)


COUNTED: dict[str, Any] = {
    "incident_counts": (IncidentCount(JOB.training_job, "", "not_entered", 1),),
    "xid_counts": (XidCount("0", "GPU-0", 31, 1),),
    "judged": (JudgedCount("not_entered", "right", 3), JudgedCount("not_entered", "wrong", 1)),
    "stalled": (StalledGpuSeconds(JOB.training_job, "", "not_entered", 40.0),),
}
