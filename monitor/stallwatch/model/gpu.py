"""A GPU, from the driver's answer to the sentence of a verdict: one value for sensor, evidence, doctor and selftest."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

_BUSY_PERCENT = 95.0
_STILL_PERCENT = 1


class ClockEventReason(NamedTuple):
    """Why the driver lowers a GPU's clocks."""

    bit: int
    name: str  # of the metric
    words: str
    harms: bool  # a fault or heat; what is left is load, or somebody's setting


# nvmlClocksEventReasons of nvml.h; without idleness and the application's own setting, which slow nothing down.
CLOCK_EVENT_REASONS = (
    ClockEventReason(0x4, "sw_power_cap", "power cap", False),
    ClockEventReason(0x8, "hw_slowdown", "hardware slowdown", True),
    ClockEventReason(0x10, "sync_boost", "sync boost", False),
    ClockEventReason(0x20, "sw_thermal", "software thermal", True),
    ClockEventReason(0x40, "hw_thermal", "hardware thermal", True),
    ClockEventReason(0x80, "hw_power_brake", "power brake", True),
)


class GpuEvent(msgspec.Struct, frozen=True):
    """Something that the driver reported by itself (NVML's event set), at the moment when we heard of it."""

    kind: str  # "xid", "double_bit_ecc", "fatal_poison", "gpu_unavailable", "recovery_action", …
    at_ns: int  # CLOCK_MONOTONIC
    uuid: str  # "" when the driver did not say which GPU
    xid: int | None = None


class Gpu(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU by NVML; None is "the driver did not say", or nobody asked: never zero. Counters are since the driver was
    loaded."""

    index: int
    uuid: str = ""
    name: str | None = None
    serial: str | None = None
    pci_bus_id: str | None = None  # as NVML prints it; of evidence as formats.xid.bus_address does
    utilization_percent: int | float | None = None
    memory_utilization_percent: int | None = None  # of the memory controller: what a spinning kernel leaves at rest
    # Of its multiprocessors, how many ran something between the last two looks; read while it spins (Hopper, newer).
    multiprocessors_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: int | float | None = None
    sm_clock_mhz: int | float | None = None
    clock_event_reasons: int | None = None  # bit mask, NVML D5
    compute_pids: tuple[int, ...] | None = None
    unavailable: str | None = None  # reason, when the device itself did not answer
    unavailable_kind: str | None = None  # "lost", "reset_required", "timeout", "unknown_error", … (node.nvml)
    events: tuple[GpuEvent, ...] = ()  # of the last minutes, oldest first
    # The daemon reads these every ten seconds or slower, for they cost up to milliseconds; `slow_at_ns` says when.
    slow_at_ns: int | None = None
    ecc_uncorrected_total: int | None = None
    throttle_ns: tuple[tuple[str, int], ...] | None = None  # (reason, time so far): what happens between two looks too
    pcie_replays: int | None = None
    pcie_link: tuple[int, int] | None = None  # generation, width now
    pcie_link_maximum: tuple[int, int] | None = None
    nvlink_errors: tuple[tuple[str, int], ...] | None = None  # (kind, count) over all links
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery_action: int | None = None  # NVML_GPU_RECOVERY_ACTION_*: 0 none, 1 reset the GPU, 2 reboot the node, …
    mig: bool | None = None  # its instances are the devices then; utilisation of the whole is unknown
    # Only what is asked once reads these: doctor and selftest.
    nvlinks: tuple[int, int] | None = None  # active, not active
    nvlinks_to_switches: bool | None = None  # all active ones
    nvlink_bytes_per_second: int | None = None  # of all active NVLinks together, one direction
    fabric: tuple[int, int] | None = (
        None  # nvml.h: state (0 not supported, 1 not started, 2 in progress, 3 done), status
    )
    compute_capability: tuple[int, int] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether NVML reads it as busy all the time (95 % and more); False where it does not tell."""
        return self.utilization_percent is not None and self.utilization_percent >= _BUSY_PERCENT

    @property
    def slowdowns(self) -> list[str]:
        """What slows its clocks down now, by fault or by heat, in words."""
        return [reason.words for reason in self.lowered_by if reason.harms]

    @property
    def lowered_by(self) -> tuple[ClockEventReason, ...]:
        """Why its clocks are lowered now; empty where they are not, or the driver does not tell."""
        return tuple(reason for reason in CLOCK_EVENT_REASONS if (self.clock_event_reasons or 0) & reason.bit)

    @property
    def moves_memory(self) -> bool:
        """Whether its memory controller is seen at work: what trains reads and writes, what spins does not."""
        return (self.memory_utilization_percent or 0) > _STILL_PERCENT

    @property
    def xids(self) -> tuple[int, ...]:
        """That the driver told of it lately, oldest first."""
        return tuple(event.xid for event in self.events if event.xid is not None)


def missing_lanes(gpu: Gpu, gpus: Iterable[Gpu]) -> tuple[int, int] | None:
    """Given a GPU and all of its node, return the PCIe lanes that its link has and those it should have; None where no
    lane is missing, or nobody can tell.

    NVML's maximum is the narrower of device and slot, and wires of a board may be fewer: where all GPUs of a model are
    as narrow, it is made so. A link at rest lowers its speed, never its width.
    """
    alike = [other.pcie_link[1] for other in gpus if other.pcie_link and other.name == gpu.name]
    if gpu.pcie_link is None or not alike:
        return None
    width, possible = gpu.pcie_link[1], max(alike)
    if gpu.pcie_link_maximum:
        possible = min(possible, gpu.pcie_link_maximum[1])
    return (width, possible) if 0 < width < possible else None


_LOWER_CLOCK = 0.93  # of its peers' median; healthy GPUs of one model are within some per cent


class SlowerGpu(NamedTuple):
    """By what a GPU is slower than those of its peers, in words, and by which part."""

    said: str
    share: float


def gpu_slower(gpu: Gpu, peers: Sequence[Gpu]) -> SlowerGpu | None:
    """Given a GPU and those of its peers, return how its clock is lower than theirs; None where it is not, or the
    driver does not tell."""
    clocks = [peer.sm_clock_mhz for peer in peers if peer.sm_clock_mhz]
    if not gpu.sm_clock_mhz or not clocks or gpu.sm_clock_mhz >= _LOWER_CLOCK * median(clocks):
        return None
    why = ", ".join(gpu.slowdowns or [reason.words for reason in gpu.lowered_by]) or "the driver gives no reason"
    said = f"its GPU {gpu.index} runs at {gpu.sm_clock_mhz} MHz, its peers' at {median(clocks):.0f} MHz ({why})"
    return SlowerGpu(said, 1 - gpu.sm_clock_mhz / median(clocks))


class GpuState(msgspec.Struct, frozen=True):
    """The node's driver and everything that NVML says of its GPUs, asked once."""

    driver: str
    cuda: str  # newest CUDA that the driver supports: "12.8"
    gpus: tuple[Gpu, ...]
    # (i, j, level) by nvmlDeviceGetTopologyCommonAncestor: 0 internal, 10 single, 20 multiple, 30 host bridge,
    # 40 node, 50 system
    topology: tuple[tuple[int, int, int], ...] = ()
    failure: str = ""  # NVML as a whole refused: its message
    failure_code: int | None = None
