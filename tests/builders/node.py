"""What a node shows of its ranks at one tick, from literals."""

from collections.abc import Sequence
from typing import TypedDict, Unpack

import msgspec

from stallwatch.model.gpu import Gpu, GpuEvent
from stallwatch.model.process import ChildProcess
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import (
    Heartbeat,
    JobKey,
    NodeSnapshot,
    ProcessEnd,
    ProcessSample,
    RankSample,
    ThreadSample,
)
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import JOB, START_NS, HeartbeatFields


class ProcessFields(TypedDict, total=False):
    """Fields of a `ProcessSample` that a test may choose."""

    pid: int
    state: str
    wchan: str | None
    tracer_pid: int
    command: str
    main_thread_state: str
    main_thread_cpu_ticks: int
    main_thread_wakes: int | None
    main_thread_moved_bytes: int | None
    busiest_threads: tuple[ThreadSample, ...]
    cpu_ticks: int
    reaped_ticks: int
    read_bytes: int | None
    write_bytes: int | None
    resident_bytes: int
    has_terminal: bool
    children: tuple[ChildProcess, ...]
    open_files: tuple[int, int] | None


def process(rank: int, **fields: Unpack[ProcessFields]) -> ProcessSample:
    """Return a rank's process (pid 1000 + rank), asleep, that has used no CPU and started no child."""
    asleep = ProcessSample(
        pid=1000 + rank,
        state="S",
        tracer_pid=0,
        command="python train.py",
        main_thread_state="S",
        main_thread_cpu_ticks=0,
        cpu_ticks=0,
        resident_bytes=1 << 30,
        has_terminal=False,
    )
    return msgspec.structs.replace(asleep, **fields)


def sample(
    rank: int,
    beat: Heartbeat | None,
    *,
    end: ProcessEnd | None = None,
    job: JobKey = JOB,
    world_size: int = 4,
    at_ns: int = START_NS,
    **process_fields: Unpack[ProcessFields],
) -> RankSample:
    """Return a rank whose process and record were read at `at_ns`; without a record it has no hook, with an end no
    process."""
    shown = process(rank, **process_fields)
    return RankSample(
        job=job,
        rank=rank,
        local_rank=rank,
        world_size=world_size,
        pid=shown.pid,
        start_ticks=5,
        heartbeat=Known(beat, at_ns) if beat else Unavailable("no hook", at_ns),
        process=Known(shown, at_ns) if end is None else Unavailable("gone", at_ns),
        end=end,
    )


def unread_rank(
    rank: int,
    pid: int,
    *,
    start_ticks: int = 5,
    job: JobKey = JOB,
    world_size: int = 4,
    end: ProcessEnd | None = None,
) -> RankSample:
    """Return a rank of which nothing was read beyond its identity."""
    nothing = Unavailable("not asked", 0)
    return RankSample(job, rank, rank, world_size, pid, start_ticks, nothing, nothing, end)


def with_beat(rank: RankSample, **fields: Unpack[HeartbeatFields]) -> RankSample:
    """The rank with other words in its record."""
    assert isinstance(rank.heartbeat, Known)
    beat = msgspec.structs.replace(rank.heartbeat.value, **fields)
    return msgspec.structs.replace(rank, heartbeat=Known(beat, rank.heartbeat.at_ns))


class GpuFields(TypedDict, total=False):
    """Fields of a `Gpu` that tests choose: not what only doctor and selftest read."""

    uuid: str
    name: str | None
    serial: str | None
    pci_bus_id: str | None
    utilization_percent: int | float | None
    memory_utilization_percent: int | None
    multiprocessors_percent: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_watts: float | None
    power_limit_watts: float | None
    temperature_celsius: int | float | None
    sm_clock_mhz: int | float | None
    clock_event_reasons: int | None
    compute_pids: tuple[int, ...] | None
    unavailable: str | None
    unavailable_kind: str | None
    events: tuple[GpuEvent, ...]
    slow_at_ns: int | None
    ecc_uncorrected_total: int | None
    throttle_ns: tuple[tuple[str, int], ...] | None
    pcie_replays: int | None
    pcie_link: tuple[int, int] | None
    pcie_link_maximum: tuple[int, int] | None
    nvlink_errors: tuple[tuple[str, int], ...] | None
    remap_pending: bool | None
    remap_failed: bool | None
    recovery_action: int | None


def gpu_of(rank: int, **fields: Unpack[GpuFields]) -> Gpu:
    """Return the GPU that a rank's process (pid 1000 + rank) has alone; None of a field is "the driver did not say"."""
    alone = Gpu(rank, f"GPU-{rank}", compute_pids=(1000 + rank,))
    return msgspec.structs.replace(alone, **fields)


def snapshot(second: float, ranks: Sequence[RankSample], *, late_seconds: float = 0.0, tick: int = 0) -> NodeSnapshot:
    """Return what a node without GPUs showed so many seconds after `START_NS`."""
    at_ns = START_NS + int(second * SECOND_NS)
    return NodeSnapshot(
        tick=tick,
        at_ns=at_ns,
        wall_ns=1_700_000_000 * SECOND_NS + int(second * SECOND_NS),
        node="node0",
        late_seconds=late_seconds,
        ranks=tuple(ranks),
        gpus=Unavailable("no GPU on this node", at_ns),
        sensors=(),
    )
