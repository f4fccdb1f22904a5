"""What is exported of each GPU: nothing for what the driver did not say."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from stallwatch.model.gpu import CLOCK_EVENT_REASONS, Gpu
from stallwatch.model.metric import Family, Labels

GPU_LABELS = ("gpu", "gpu_uuid")

_Samples = Iterator[tuple[Labels, float]]


def _each(of: Callable[[Gpu], Iterable[tuple[Labels, float]]], gpus: tuple[Gpu, ...]) -> _Samples:
    for gpu in gpus:
        for more, value in of(gpu):
            yield (str(gpu.index), gpu.uuid, *more), value


def _gauge(name: str, help_: str, value: Callable[[Gpu], float | None]) -> Family:
    def of(gpu: Gpu) -> _Samples:
        if (known := value(gpu)) is not None:
            yield (), known

    return Family(f"stallwatch_gpu_{name}", "gauge", GPU_LABELS, help_, partial(_each, of))


def _counter(name: str, help_: str, value: Callable[[Gpu], float | None]) -> Family:
    return _gauge(name, help_, value)._replace(kind="counter")


def _info(gpu: Gpu) -> _Samples:
    yield (gpu.name or "", gpu.serial or "", gpu.pci_bus_id or ""), 1


def _slowed(gpu: Gpu) -> _Samples:
    if gpu.clock_event_reasons is not None:
        for reason in CLOCK_EVENT_REASONS:
            yield (reason.name,), float(reason in gpu.lowered_by)


def _slowed_seconds(gpu: Gpu) -> _Samples:
    return (((reason,), so_far_ns / 1e9) for reason, so_far_ns in gpu.throttle_ns or ())


def _nvlink_errors(gpu: Gpu) -> _Samples:
    return (((kind,), count) for kind, count in gpu.nvlink_errors or ())


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


GPU_METRICS: tuple[Family, ...] = (
    _gauge("up", "1 when the GPU answers NVML, 0 when it does not.", lambda gpu: float(gpu.unavailable is None)),
    Family(
        "stallwatch_gpu_info",
        "gauge",
        (*GPU_LABELS, "name", "serial", "pci_bus_id"),
        "Always 1; what the GPU is.",
        partial(_each, _info),
    ),
    _gauge(
        "utilization_ratio",
        "Share of time in which a kernel ran; NCCL's spin too.",
        lambda gpu: _times(gpu.utilization_percent, 0.01),
    ),
    _gauge("memory_used_bytes", "Memory in use.", lambda gpu: gpu.memory_used_bytes),
    _gauge("memory_total_bytes", "Memory of the device.", lambda gpu: gpu.memory_total_bytes),
    _gauge("power_watts", "Power drawn; low at full utilisation means waiting.", lambda gpu: gpu.power_watts),
    _gauge("power_limit_watts", "Power limit in force.", lambda gpu: gpu.power_limit_watts),
    _gauge("temperature_celsius", "Temperature of the chip.", lambda gpu: gpu.temperature_celsius),
    _gauge(
        "sm_clock_hertz",
        "Clock of the streaming multiprocessors.",
        lambda gpu: _times(gpu.sm_clock_mhz, 1_000_000),
    ),
    _gauge(
        "clock_event_reasons", "NVML's bit mask of why clocks are lowered.", lambda gpu: gpu.clock_event_reasons
    )._replace(no_panel="the raw mask behind stallwatch_gpu_slowed"),
    _counter(
        "ecc_uncorrected_total",
        "Uncorrected memory errors as the driver counts.",
        lambda gpu: gpu.ecc_uncorrected_total,
    ),
    _gauge("last_xid", "Number of the last XID of the GPU.", lambda gpu: gpu.xids[-1] if gpu.xids else None)._replace(
        no_panel="stallwatch_gpu_xid_total says when, too"
    ),
    Family(
        "stallwatch_gpu_slowed",
        "gauge",
        (*GPU_LABELS, "reason"),
        "1 while NVML says that clocks are lowered for this reason: sw_power_cap, hw_slowdown, sync_boost, sw_thermal, "
        "hw_thermal, hw_power_brake.",
        partial(_each, _slowed),
    ),
    Family(
        "stallwatch_gpu_slowed_seconds_total",
        "counter",
        (*GPU_LABELS, "reason"),
        "Time for which the driver has lowered clocks, by reason; it shows what happens between two looks too.",
        partial(_each, _slowed_seconds),
    ),
    _counter("pcie_replays_total", "Replays on the PCIe link as the driver counts.", lambda gpu: gpu.pcie_replays),
    Family(
        "stallwatch_gpu_nvlink_errors_total",
        "counter",
        (*GPU_LABELS, "kind"),
        "Errors over all NVLinks of the GPU.",
        partial(_each, _nvlink_errors),
    ),
    _gauge(
        "recovery_action",
        "What NVML advises: 0 nothing, 1 reset the GPU, 2 reboot the node, 3 and 4 drain it.",
        lambda gpu: gpu.recovery_action,
    ),
)
