"""GPUs by NVML. Runs in a child of its own: a call into a sick driver may never come back. No library is normal."""

import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import asdict

from stallwatch.model.snapshot import GpuSample
from stallwatch.sensors.gpu_counters import GpuCounters, read_counters
from stallwatch.sensors.nvml import DriverError, explain, load_nvml, optional, text_of, value_of

# 8 GPUs at 1 Hz must stay below 1 % of a core. Measured on H200: each of the calls made every time takes 3–21 µs, the
# counters of one GPU about 2.5 ms. So they are read every ten seconds, and those of one GPU a tick.
_SLOW_SECONDS = 10.0


class GpuSensor:
    """Every GPU of the node; a value that a device does not support is None."""

    def __init__(self, nvml: Any = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml if nvml is not None else load_nvml()
        self._monotonic = monotonic
        self._fixed: dict[int, GpuSample] = {}
        self._counters: dict[int, GpuCounters] = {}
        self._counted_at: dict[int, float] = {}

    def read(self) -> tuple[GpuSample, ...]:
        """Raise DriverError when the driver as a whole does not answer."""
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            raise DriverError(explain(error)[1]) from error
        now = self._monotonic()
        waiting = [index for index in range(count) if now - self._counted_at.get(index, now) >= _SLOW_SECONDS]
        waiting.sort(key=lambda index: self._counted_at[index])  # so that many GPUs do not starve the last
        due = [index for index in range(count) if index not in self._counted_at] or waiting[:1]
        return tuple(self._device(index, now if index in due else None) for index in range(count))

    def _device(self, index: int, count_now: float | None) -> GpuSample:
        """Given when it is, where the counters are due, return a sample; a device that does not answer keeps its place
        and name."""
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            fixed = self._fixed.get(index) or self._describe(index, handle)
            if count_now is not None:
                self._counted_at[index] = count_now
                self._counters[index] = read_counters(self._nvml, handle)
            return self._sample(handle, fixed, self._counters.get(index, GpuCounters()))
        except self._nvml.NVMLError as error:
            kind, sentence = explain(error)
            known = self._fixed.get(index)
            counters = self._counters.get(index, GpuCounters())
            return GpuSample(
                index=index,
                uuid=known.uuid if known else "",
                name=known.name if known else None,
                serial=known.serial if known else None,
                pci_bus_id=known.pci_bus_id if known else None,
                unavailable=f"NVML: {sentence}",
                unavailable_kind=kind,
                recovery_action=counters.recovery_action,  # its last word, which may be the reason
            )

    def _sample(self, handle: Any, fixed: GpuSample, counters: GpuCounters) -> GpuSample:
        nvml = self._nvml
        memory = value_of(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
        utilization = value_of(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
        power = value_of(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
        processes = value_of(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        return GpuSample(
            index=fixed.index,
            uuid=fixed.uuid,
            name=fixed.name,
            serial=fixed.serial,
            pci_bus_id=fixed.pci_bus_id,
            power_limit_watts=fixed.power_limit_watts,
            utilization_percent=None if utilization is None else utilization.gpu,
            memory_utilization_percent=None if utilization is None else utilization.memory,
            memory_used_bytes=None if memory is None else memory.used,
            memory_total_bytes=None if memory is None else memory.total,
            power_watts=None if power is None else power / 1000,
            temperature_celsius=value_of(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            sm_clock_mhz=value_of(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=value_of(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            clock_event_reasons=value_of(nvml, nvml.nvmlDeviceGetCurrentClocksEventReasons, handle),
            compute_pids=None if processes is None else tuple(sorted({process.pid for process in processes})),
            process_memory_bytes=None if processes is None else _memory_of(processes),
            slow_at_ns=int(self._counted_at.get(fixed.index, 0.0) * 1e9) or None,
            **asdict(counters),
        )

    def _describe(self, index: int, handle: Any) -> GpuSample:
        nvml = self._nvml
        pci = value_of(nvml, nvml.nvmlDeviceGetPciInfo, handle)
        limit = value_of(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        fixed = GpuSample(
            index=index,
            uuid=text_of(nvml.nvmlDeviceGetUUID(handle)) or "",
            name=text_of(value_of(nvml, nvml.nvmlDeviceGetName, handle)),
            serial=text_of(optional(nvml, "nvmlDeviceGetSerial", handle)),
            pci_bus_id=None if pci is None else text_of(pci.busId),
            power_limit_watts=None if limit is None else limit / 1000,
        )
        self._fixed[index] = fixed
        return fixed


def _memory_of(processes: Any) -> tuple[tuple[int, int], ...]:
    """What the driver does not tell (other users' processes in a container, MIG) is left out, not zero."""
    told = [(process.pid, getattr(process, "usedGpuMemory", None)) for process in processes]
    return tuple(sorted((pid, used) for pid, used in told if isinstance(used, int)))
