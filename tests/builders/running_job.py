"""A job on a simulated clock, tick by tick as a node shows it, and what the detectors find in it."""

from collections.abc import Callable, Iterable
from typing import TypedDict, Unpack

import msgspec

from stallwatch.config import Config
from stallwatch.detectors.detection import Detected
from stallwatch.model.finding import Finding
from stallwatch.model.snapshot import GroupCounter, Heartbeat, NodeSnapshot, RankSample
from stallwatch.replay.playing import detect
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import START_NS, HeartbeatFields, heartbeat
from tests.builders.node import sample, snapshot


class SimulatedFields(TypedDict, total=False):
    """Fields of a `SimulatedRank` but for its number."""

    step_seconds: float
    begins_at: float
    stuck_at: float
    waits: float
    counts_steps: bool
    pulse_stops: bool


class SimulatedRank(msgspec.Struct, frozen=True):
    """A rank with steps of one length until `stuck_at` (seconds); `waits` is its share of time in a collective."""

    rank: int
    step_seconds: float = 0.05
    begins_at: float = 0.0
    stuck_at: float = float("inf")
    waits: float = 0.2
    counts_steps: bool = True
    pulse_stops: bool = False

    def at(self, second: float, fields: HeartbeatFields | None = None) -> Heartbeat:
        moving = min(max(second - self.begins_at, 0.0), max(self.stuck_at - self.begins_at, 0.0))
        step = int(moving / self.step_seconds + 1e-9)
        pulses = int(min(second, self.stuck_at) if self.pulse_stops else second)
        pending = second > self.stuck_at or (pulses * 7919 % 100) / 100 < self.waits
        values: HeartbeatFields = {
            "step": step if self.counts_steps else None,
            "last_step_ns": START_NS + int((self.begins_at + step * self.step_seconds) * SECOND_NS) if step else None,
            "step_durations_ns": (int(self.step_seconds * SECOND_NS),) * min(max(step - 1, 0), 16),
            "pulse_count": pulses,
            "groups": (GroupCounter("gloo", 0, step + pending, step),),
        }
        if fields:
            values.update(fields)
        return heartbeat(self.rank, **values)


def slower_since(second: float, ranks: Iterable[SimulatedRank], times: float) -> list[SimulatedRank]:
    """The same ranks, whose steps take so many times as long from a second on, when they have counted as many as they
    would have. (What is asked of them before that second is wrong.)"""
    return [
        msgspec.structs.replace(
            rank, step_seconds=times * rank.step_seconds, begins_at=second - times * (second - rank.begins_at)
        )
        for rank in ranks
    ]


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


def four(**fields: Unpack[SimulatedFields]) -> list[SimulatedRank]:
    """Return ranks 0 to 3, all alike."""
    return [SimulatedRank(rank, **fields) for rank in range(4)]


def second_of(shot: NodeSnapshot) -> float:
    return (shot.at_ns - START_NS) / SECOND_NS


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
