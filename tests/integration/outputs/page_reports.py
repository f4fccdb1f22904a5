"""A stalled job of any size as the page sees it, with a bundle on disk whose timeline and GPUs tell the story."""

from pathlib import Path

import msgspec

from stallwatch.model.incident import Incident, IncidentEvent, NodeReport
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import GroupCounter, NodeSnapshot
from stallwatch.model.verdict import GroupRef, StackNode
from tests.builders.clock import WALL_NS
from tests.unit.outputs.reports import (
    GPU,
    beat,
    diagnosis,
    finding,
    incident,
    node_report,
    sample,
    verdict,
    view,
    with_snapshot,
)

CULPRIT = 2
SECOND_NS = 1_000_000_000
STEPPING, STALLED = 40, 25  # looks


def others(ranks: int) -> str:
    return f"0-{CULPRIT - 1},{CULPRIT + 1}-{ranks - 1}" if ranks > CULPRIT + 2 else "0-1,3"


def stalled_incident(ranks: int, bundle: Path) -> Incident:
    group = GroupRef("default_pg", tuple(range(ranks)))
    waiting = others(ranks)
    torch_frames = StackNode("all_reduce", "/opt/torch/distributed/distributed_c10d.py", 2810, waiting, ranks - 1)
    for function in ("wrapper", "backward", "train_step"):
        torch_frames = StackNode(function, f"/home/anna/train/{function}.py", 88, waiting, ranks - 1, (torch_frames,))
    alone = StackNode("take_lock", "/home/anna/locks.py", 41, str(CULPRIT), 1)
    stacks = StackNode("<module>", "/home/anna/train.py", 12, f"0-{ranks - 1}", ranks, (alone, torch_frames))
    return incident(
        bundle=str(bundle),
        findings=(finding(ranks=tuple(range(ranks))),),
        report=diagnosis(verdict(waiting=waiting, process_group=group), stacks=stacks),
        opened_wall_ns=WALL_NS + STEPPING * SECOND_NS,
        events=(
            IncidentEvent(WALL_NS + STEPPING * SECOND_NS, "suspected: rank 2 has made no step for 5.0 s"),
            IncidentEvent(WALL_NS + (STEPPING + 3) * SECOND_NS, "verdict: not_entered, rank 2"),
            IncidentEvent(WALL_NS + (STEPPING + 3) * SECOND_NS, "told as warning"),
            IncidentEvent(WALL_NS + (STEPPING + 20) * SECOND_NS, "escalated to critical"),
        ),
    )


def write_timeline(ranks: int, bundle: Path) -> None:
    bundle.mkdir(parents=True, exist_ok=True)
    first = 0 if ranks <= 64 else STEPPING - 5  # what a thousand ranks do is written in fewer looks
    lines = [msgspec.json.encode(_snapshot(look, ranks)) for look in range(first, STEPPING + STALLED)]
    (bundle / "timeline.jsonl").write_bytes(b"\n".join(lines) + b"\n")


def _snapshot(look: int, ranks: int) -> NodeSnapshot:
    moving = look < STEPPING
    step = min(look, STEPPING) + 400
    samples = []
    for rank in range(ranks):
        groups = (GroupCounter("nccl", 0, step, step if moving or rank == CULPRIT else step - 1),)
        shown = msgspec.structs.replace(beat(rank, groups, pulse=look), step=step)
        samples.append(msgspec.structs.replace(sample(rank), heartbeat=Known(shown, 0)))
    gpus = tuple(
        msgspec.structs.replace(
            GPU,
            index=rank,
            uuid=f"GPU-{rank}",
            utilization_percent=97 if moving else 0 if rank == CULPRIT else 100,
            power_watts=640.0 + (look * 7 + rank * 13) % 40 if moving else 95.0 if rank == CULPRIT else 172.0,
            events=(),
        )
        for rank in range(min(ranks, 8))
    )
    return with_snapshot(
        node_report(), ranks=tuple(samples), wall_ns=WALL_NS + look * SECOND_NS, tick=look, gpus=Known(gpus, 0)
    ).snapshot


def stalled_node(ranks: int, *incidents: Incident) -> NodeReport:
    views = tuple(
        view(
            rank,
            world_size=ranks,
            state="suspect" if rank == CULPRIT else "waiting",
            gpu_uuid=f"GPU-{rank}" if ranks <= 8 else None,
        )
        for rank in range(ranks)
    )
    return node_report(*incidents, ranks=views)
