"""Snapshots from literals, and from a job on a simulated clock."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from stallwatch.config import Config
from stallwatch.detectors.detection import Detected
from stallwatch.model.finding import Finding
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import (
    CounterLook,
    GroupCounter,
    Heartbeat,
    JobKey,
    NodeSnapshot,
    ProcessEnd,
    ProcessSample,
    RankSample,
)
from stallwatch.replay.playing import detect

SECOND = 1_000_000_000
START = 1_000 * SECOND  # a node that has been up for a while
JOB = JobKey("train", "127.0.0.1:29500/4/0")


def heartbeat(rank: int, **fields: Any) -> Heartbeat:
    values: dict[str, Any] = {
        "path": f"/run/stallwatch/ranks/rank-{rank}-{1000 + rank}.beat",
        "uid": 1000,
        "pid": 1000 + rank,
        "start_ticks": 5,
        "pid_namespace": 1,
        "rank": rank,
        "local_rank": rank,
        "world_size": 4,
        "node": "node0",
        "training_job": JOB.training_job,
        "epoch": JOB.epoch,
        "restart_count": 0,
        "is_child": False,
        "notify": True,
        "step": None,
        "last_step_ns": None,
        "step_durations_ns": (),
        "phase": "",
        "phase_since_ns": 0,
        "pulse_count": 0,
        "pulse_ns": 0,
        "dump_started_ns": None,
        "answered_request": 0,
        "ended": False,
        "exit_code": None,
        "ended_ns": None,
        "groups": (),
    }
    values |= fields
    values.setdefault("looks", one_look(values))
    return Heartbeat(**values)


def one_look(words: dict[str, Any]) -> tuple[CounterLook, ...]:
    """What the hook would have seen at its pulse."""
    counts = {"nccl": [0, 0], "gloo": [0, 0]}
    for group in words["groups"]:
        counts[group.recorder][0] += group.enqueued
        counts[group.recorder][1] += group.completed
    if not words["groups"] or words["phase"]:
        return ()
    step = -1 if words["step"] is None else words["step"]
    number = words["pulse_count"]
    return (CounterLook(number, words["pulse_ns"] or START + number * SECOND, step, *counts["nccl"], *counts["gloo"]),)


def process(rank: int, **fields: Any) -> ProcessSample:
    values: dict[str, Any] = {
        "pid": 1000 + rank,
        "state": "S",
        "tracer_pid": 0,
        "command": "python train.py",
        "wchan": None,
        "main_thread_state": "S",
        "main_thread_cpu_ticks": 0,
        "cpu_ticks": 0,
        "read_bytes": None,
        "write_bytes": None,
        "resident_bytes": 1 << 30,
        "has_terminal": False,
        "children": (),
    }
    return ProcessSample(**(values | fields))


def sample(
    rank: int,
    beat: Heartbeat | None,
    *,
    end: ProcessEnd | None = None,
    job: JobKey = JOB,
    world_size: int = 4,
    at_ns: int = START,
    **process_fields: Any,
) -> RankSample:
    return RankSample(
        job=job,
        rank=rank,
        local_rank=rank,
        world_size=world_size,
        pid=1000 + rank,
        start_ticks=5,
        heartbeat=Known(beat, at_ns) if beat else Unavailable("no hook", at_ns),
        process=Known(process(rank, **process_fields), at_ns) if end is None else Unavailable("gone", at_ns),
        end=end,
    )


def snapshot(second: float, ranks: Sequence[RankSample], *, late_seconds: float = 0.0, tick: int = 0) -> NodeSnapshot:
    at_ns = START + int(second * SECOND)
    return NodeSnapshot(
        tick=tick,
        at_ns=at_ns,
        wall_ns=1_700_000_000 * SECOND + int(second * SECOND),
        node="node0",
        late_seconds=late_seconds,
        ranks=tuple(ranks),
        gpus=Unavailable("no GPU on this node", at_ns),
        sensors=(),
    )


class SimulatedRank(msgspec.Struct, frozen=True):
    """A rank with steps of one length until `stuck_at` (seconds); `waits` is its share of time in a collective."""

    rank: int
    step_seconds: float = 0.05
    begins_at: float = 0.0
    stuck_at: float = float("inf")
    waits: float = 0.2
    counts_steps: bool = True
    pulse_stops: bool = False

    def at(self, second: float, fields: dict[str, Any] | None = None) -> Heartbeat:
        moving = min(max(second - self.begins_at, 0.0), max(self.stuck_at - self.begins_at, 0.0))
        step = int(moving / self.step_seconds + 1e-9)
        pulses = int(min(second, self.stuck_at) if self.pulse_stops else second)
        pending = second > self.stuck_at or (pulses * 7919 % 100) / 100 < self.waits
        values: dict[str, Any] = {
            "step": step if self.counts_steps else None,
            "last_step_ns": START + int((self.begins_at + step * self.step_seconds) * SECOND) if step else None,
            "step_durations_ns": (int(self.step_seconds * SECOND),) * min(max(step - 1, 0), 16),
            "pulse_count": pulses,
            "groups": (GroupCounter("gloo", 0, step + pending, step),),
        }
        return heartbeat(self.rank, **(values | (fields or {})))


def job_run(
    ranks: Iterable[SimulatedRank],
    seconds: float,
    *,
    tick_seconds: float = 1.0,
    edit: Callable[[float, RankSample], RankSample] = lambda second, rank: rank,
    first_second: float = 0.0,
) -> list[NodeSnapshot]:
    """Return a snapshot per tick of a job whose ranks behave as given."""
    ranks = tuple(ranks)
    snapshots, second = [], first_second
    while second <= seconds:
        samples = [edit(second, sample(r.rank, r.at(second), world_size=len(ranks))) for r in ranks]
        snapshots.append(snapshot(second, samples, tick=int(second / tick_seconds)))
        second += tick_seconds
    return snapshots


def four(**fields: Any) -> list[SimulatedRank]:
    return [SimulatedRank(rank, **fields) for rank in range(4)]


def with_beat(rank: RankSample, **fields: Any) -> RankSample:
    """The rank with other words in its record."""
    assert isinstance(rank.heartbeat, Known)
    beat = msgspec.structs.replace(rank.heartbeat.value, **fields)
    return msgspec.structs.replace(rank, heartbeat=Known(beat, rank.heartbeat.at_ns))


def second_of(shot: NodeSnapshot) -> float:
    return (shot.at_ns - START) / SECOND


def run(snapshots: Iterable[NodeSnapshot], config: Config | None = None) -> list[tuple[float, Detected]]:
    return [(second_of(shot), detected) for shot, detected in detect(config or Config(), snapshots)]


def found(
    detected: Iterable[tuple[float, Detected]], detector: str, stage: str | None = None
) -> list[tuple[float, Finding]]:
    """(second, finding) of one detector."""
    return [
        (second, finding)
        for second, one in detected
        for finding in one.findings
        if finding.detector == detector and stage in (None, finding.stage)
    ]
