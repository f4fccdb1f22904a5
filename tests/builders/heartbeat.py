"""A hook's record as a node has decoded it; the bytes of one are made by `records.py`."""

from typing import TypedDict, Unpack

import msgspec

from stallwatch.model.snapshot import CounterLook, GroupCounter, Heartbeat, JobKey
from tests.builders.clock import SECOND_NS

START_NS = 1_000 * SECOND_NS  # a node that has been up for a while
JOB = JobKey("train", "127.0.0.1:29500/4/0")


class HeartbeatFields(TypedDict, total=False):
    """Fields of a `Heartbeat` that a test may choose: all but the rank."""

    path: str
    uid: int
    pid: int
    start_ticks: int
    pid_namespace: int
    local_rank: int
    world_size: int
    node: str
    training_job: str
    epoch: str
    restart_count: int
    is_child: bool
    notify: bool
    step: int | None
    last_step_ns: int | None
    step_durations_ns: tuple[int, ...]
    phase: str
    phase_since_ns: int
    pulse_count: int
    pulse_ns: int
    dump_started_ns: int | None
    answered_request: int
    ended: bool
    exit_code: int | None
    ended_ns: int | None
    groups: tuple[GroupCounter, ...]
    groups_dropped: int
    attached_ns: int
    exception: str
    errors: int
    refused_errno: int
    looks: tuple[CounterLook, ...]
    pending_groups: tuple[tuple[str, int, str], ...]
    training_ident: int | None
    training_tid: int | None
    frame_changes: int | None
    differs: tuple[tuple[str, str], ...]
    untested: tuple[tuple[str, str], ...]


def heartbeat(rank: int, **fields: Unpack[HeartbeatFields]) -> Heartbeat:
    """Return the record of a rank of `JOB` (four ranks, pid 1000 + rank) that has done nothing yet. Unless `looks` are
    given, it holds the one that its words tell."""
    blank = Heartbeat(
        path=f"/run/stallwatch/ranks/rank-{rank}-{1000 + rank}.beat",
        uid=1000,
        pid=1000 + rank,
        start_ticks=5,
        pid_namespace=1,
        rank=rank,
        local_rank=rank,
        world_size=4,
        node="node0",
        training_job=JOB.training_job,
        epoch=JOB.epoch,
        restart_count=0,
        is_child=False,
        notify=True,
        step=None,
        last_step_ns=None,
        step_durations_ns=(),
        phase="",
        phase_since_ns=0,
        pulse_count=0,
        pulse_ns=0,
        dump_started_ns=None,
        answered_request=0,
        ended=False,
        exit_code=None,
        ended_ns=None,
        groups=(),
    )
    told = msgspec.structs.replace(blank, **fields)
    return told if "looks" in fields else msgspec.structs.replace(told, looks=one_look(told))


def one_look(told: Heartbeat) -> tuple[CounterLook, ...]:
    """What the hook would have seen at its pulse: nothing in a phase, or without groups."""
    counts = {"nccl": [0, 0], "gloo": [0, 0]}
    for group in told.groups:
        counts[group.recorder][0] += group.enqueued
        counts[group.recorder][1] += group.completed
    if not told.groups or told.phase:
        return ()
    step = -1 if told.step is None else told.step
    number = told.pulse_count
    at_ns = told.pulse_ns or START_NS + number * SECOND_NS
    return (CounterLook(number, at_ns, step, *counts["nccl"], *counts["gloo"]),)
