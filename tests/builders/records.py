"""Records as a hook writes them, for processes that have none."""

import os
import time
from pathlib import Path

from stallwatch.hook import layout
from stallwatch.hook.image import encode
from stallwatch.model.snapshot import Heartbeat
from stallwatch.node.heartbeat_file import decode
from stallwatch.node.procfs import ProcessDirectory

OWN_NAMESPACE = os.stat("/proc/self/ns/pid").st_ino


def record_bytes(rank: int, pid: int, start_ticks: int, *, epoch: str = "epoch", **changes: int) -> bytes:
    words = {
        "pid": pid,
        "start_ticks": start_ticks,
        "pid_namespace": OWN_NAMESPACE,
        "rank": rank,
        "local_rank": rank,
        "world_size": 2,
        "restart_count": 0,
        "is_child": 0,
        "notify": 1,
        "step": 5,
        "phase_since_ns": 0,
        "pulse_count": 1,
        "pulse_ns": time.monotonic_ns(),
        "dump_started_ns": 0,
        "answered_request": 0,
        "ended": 0,
        "errors": 0,
        "attached_ns": 1,
    }
    ring = tuple(time.monotonic_ns() if slot <= 5 else 0 for slot in range(layout.RING_SLOTS))
    strings = {"node": "n", "training_job": "job", "epoch": epoch}
    return encode({**words, **changes}, ring, (("gloo", 0, 5, 4),), strings)


def decoded(data: bytes) -> Heartbeat:
    """A record's bytes as the daemon reads them."""
    return decode(data, "path", os.getuid())


def write_record(
    directory: Path, rank: int, pid: int, start_ticks: int, *, epoch: str = "epoch", **changes: int
) -> Path:
    path = directory / layout.record_name(rank, pid)
    part = path.with_suffix(".part")
    part.write_bytes(record_bytes(rank, pid, start_ticks, epoch=epoch, **changes))
    part.replace(path)
    return path


def start_ticks_of(pid: int) -> int:
    with ProcessDirectory(pid) as directory:
        return directory.stat().start_ticks
