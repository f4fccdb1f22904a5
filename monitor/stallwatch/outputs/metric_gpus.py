"""What the metrics say about GPUs; nothing for what the driver did not say."""

from collections.abc import Iterator

from stallwatch.model.reading import Known
from stallwatch.model.snapshot import GpuSample, NodeSnapshot
from stallwatch.outputs.metric_sample import Labels, Sample

# nvmlClocksEventReasons of nvml.h; without idleness and the application's own setting, which slow nothing down.
SLOWED_BY: dict[str, int] = {
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
}


class XidCounter:
    """Counts XIDs by GPU and code. The driver's events and the kernel's log tell of the same ones: the larger count."""

    def __init__(self) -> None:
        self._seen: dict[str, set[tuple[Labels, int, str]]] = {"driver": set(), "kernel": set()}
        self._counts: dict[str, dict[Labels, int]] = {"driver": {}, "kernel": {}}

    def see(self, snapshot: NodeSnapshot) -> None:
        gpus = snapshot.gpus.value if isinstance(snapshot.gpus, Known) else ()
        told = {
            (_xid_labels(gpu, event.xid), event.at_ns, "")
            for gpu in gpus
            for event in gpu.events
            if event.xid is not None
        }
        self._count("driver", told)
        if not isinstance(snapshot.host, Known):
            return
        by_bus = {bus_address(gpu.pci_bus_id): gpu for gpu in gpus if gpu.pci_bus_id}
        logged = set()
        for notice in snapshot.host.value.notices:
            if notice.xid is not None:
                address = bus_address(notice.pci_bus_id or "")
                gpu = by_bus.get(address)
                labels = _xid_labels(gpu, notice.xid) if gpu else ("", f"pci:{address}", str(notice.xid))
                logged.add((labels, notice.at_ns, notice.text))
        self._count("kernel", logged)

    def _count(self, source: str, present: set[tuple[Labels, int, str]]) -> None:
        counts = self._counts[source]
        for labels, _, _ in present - self._seen[source]:
            counts[labels] = counts.get(labels, 0) + 1
        self._seen[source] = present  # bounded: a snapshot holds those of the last minutes, and none comes back

    def totals(self) -> dict[Labels, int]:
        driver, kernel = self._counts["driver"], self._counts["kernel"]
        return {labels: max(driver.get(labels, 0), kernel.get(labels, 0)) for labels in sorted({**driver, **kernel})}


def gpu_samples(snapshot: NodeSnapshot, xids: XidCounter) -> Iterator[Sample]:
    if isinstance(snapshot.gpus, Known):
        for gpu in snapshot.gpus.value:
            yield from _gpu(gpu)
    for labels, count in xids.totals().items():
        yield Sample("stallwatch_gpu_xid_total", labels, count)


def bus_address(pci_bus_id: str) -> str:
    """ "00000000:18:00.0" of NVML and "0000:18:00" of the kernel's log as the same "0000:18:00"."""
    domain, _, rest = pci_bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest.partition('.')[0]}" if rest else ""


def _xid_labels(gpu: GpuSample, xid: int) -> Labels:
    return (str(gpu.index), gpu.uuid, str(xid))


def _gpu(gpu: GpuSample) -> Iterator[Sample]:
    labels = (str(gpu.index), gpu.uuid)
    yield Sample("stallwatch_gpu_up", labels, float(gpu.unavailable is None))
    yield Sample("stallwatch_gpu_info", (*labels, gpu.name or "", gpu.serial or "", gpu.pci_bus_id or ""), 1)
    for name, value, factor in (
        ("stallwatch_gpu_utilization_ratio", gpu.utilization_percent, 0.01),
        ("stallwatch_gpu_memory_used_bytes", gpu.memory_used_bytes, 1),
        ("stallwatch_gpu_memory_total_bytes", gpu.memory_total_bytes, 1),
        ("stallwatch_gpu_power_watts", gpu.power_watts, 1),
        ("stallwatch_gpu_power_limit_watts", gpu.power_limit_watts, 1),
        ("stallwatch_gpu_temperature_celsius", gpu.temperature_celsius, 1),
        ("stallwatch_gpu_sm_clock_hertz", gpu.sm_clock_mhz, 1_000_000),
        ("stallwatch_gpu_clock_event_reasons", gpu.clock_event_reasons, 1),
        ("stallwatch_gpu_ecc_uncorrected_total", gpu.ecc_uncorrected_total, 1),
        ("stallwatch_gpu_last_xid", gpu.xid_last, 1),
        ("stallwatch_gpu_pcie_replays_total", gpu.pcie_replays, 1),
        ("stallwatch_gpu_recovery_action", gpu.recovery_action, 1),
    ):
        if value is not None:
            yield Sample(name, labels, value * factor)
    if gpu.clock_event_reasons is not None:
        for reason, bit in SLOWED_BY.items():
            yield Sample("stallwatch_gpu_slowed", (*labels, reason), float(bool(gpu.clock_event_reasons & bit)))
    for reason, so_far_ns in gpu.throttle_ns or ():
        yield Sample("stallwatch_gpu_slowed_seconds_total", (*labels, reason), so_far_ns / 1e9)
    for kind, count in gpu.nvlink_errors or ():
        yield Sample("stallwatch_gpu_nvlink_errors_total", (*labels, kind), count)
