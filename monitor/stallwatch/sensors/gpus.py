"""GPUs by NVML. Runs in a child of its own: a call into a sick driver may never come back. No library is normal."""

import importlib
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from stallwatch.model.snapshot import GpuSample
from stallwatch.sensors.sensor import Absent

T = TypeVar("T")

# 8 GPUs at 1 Hz must stay below 1 % of a core. Measured on H200: each of the calls made every time takes 3–21 µs; names
# and limits do not change, ECC totals change rarely (13 µs).
_SLOW_SECONDS = 10.0
# NVML codes that say "this device or driver has no such value" (nvml.h): invalid argument for MIG, not supported,
# no permission, not found.
_NO_VALUE = frozenset((2, 3, 4, 6))


class Nvml(Protocol):
    """The part of pynvml that is used: C names, so that the real module satisfies it."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...  # noqa: N802 - NVML's own names
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...  # noqa: N802


def load_nvml(find: Callable[[str], Any] = importlib.import_module) -> Any:
    """Return pynvml after nvmlInit. Raise Absent where there is no NVIDIA driver or binding."""
    try:
        nvml = find("pynvml")
    except ImportError as error:
        raise Absent(f"no GPU is read: {error}; install stallwatch[daemon]") from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        code = getattr(error, "value", None)
        if code in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
            reason = "libnvidia-ml.so.1 not found" if code == nvml.NVML_ERROR_LIBRARY_NOT_FOUND else str(error)
            raise Absent(f"no GPU on this node: {reason}") from error
        raise
    return nvml


class GpuSensor:
    """Every GPU of the node; a value that a device does not support is None."""

    def __init__(self, nvml: Any = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml if nvml is not None else load_nvml()
        self._monotonic = monotonic
        self._fixed: dict[int, GpuSample] = {}
        self._slow_at = float("-inf")
        self._ecc: dict[int, int | None] = {}

    def read(self) -> tuple[GpuSample, ...]:
        """Raise NVML's error when the driver as a whole does not answer."""
        now = self._monotonic()
        slow = now - self._slow_at >= _SLOW_SECONDS
        if slow:
            self._slow_at = now
        count = self._nvml.nvmlDeviceGetCount()
        return tuple(self._device(index, slow) for index in range(count))

    def _device(self, index: int, slow: bool) -> GpuSample:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            fixed = self._fixed.get(index) or self._describe(index, handle)
            if slow:
                self._ecc[index] = self._value(
                    nvml.nvmlDeviceGetTotalEccErrors, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                    nvml.NVML_VOLATILE_ECC,
                )  # fmt: skip
            memory = self._value(nvml.nvmlDeviceGetMemoryInfo, handle)
            utilization = self._value(nvml.nvmlDeviceGetUtilizationRates, handle)
            power = self._value(nvml.nvmlDeviceGetPowerUsage, handle)
            processes = self._value(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
            return GpuSample(
                index=index,
                uuid=fixed.uuid,
                name=fixed.name,
                serial=fixed.serial,
                pci_bus_id=fixed.pci_bus_id,
                utilization_percent=None if utilization is None else utilization.gpu,
                memory_used_bytes=None if memory is None else memory.used,
                memory_total_bytes=None if memory is None else memory.total,
                power_watts=None if power is None else power / 1000,
                power_limit_watts=fixed.power_limit_watts,
                temperature_celsius=self._value(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
                sm_clock_mhz=self._value(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
                clock_event_reasons=self._value(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle),
                ecc_uncorrected_total=self._ecc.get(index),
                compute_pids=None if processes is None else tuple(sorted(process.pid for process in processes)),
            )
        except nvml.NVMLError as error:
            # The device answered before, or its place is all that is known of it: it is not left out.
            known = self._fixed.get(index)
            return GpuSample(
                index=index,
                uuid=known.uuid if known else "",
                name=known.name if known else None,
                serial=known.serial if known else None,
                pci_bus_id=known.pci_bus_id if known else None,
                unavailable=f"NVML: {error}",
            )

    def _describe(self, index: int, handle: Any) -> GpuSample:
        nvml = self._nvml
        pci = self._value(nvml.nvmlDeviceGetPciInfo, handle)
        limit = self._value(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        fixed = GpuSample(
            index=index,
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)) or "",
            name=_text(self._value(nvml.nvmlDeviceGetName, handle)),
            serial=_text(self._value(nvml.nvmlDeviceGetSerial, handle)),
            pci_bus_id=None if pci is None else _text(pci.busId),
            power_limit_watts=None if limit is None else limit / 1000,
        )
        self._fixed[index] = fixed
        return fixed

    def _value(self, call: Callable[..., T], *arguments: Any) -> T | None:
        """None when the device has no such value; raise when it does not answer (lost, reset required, time-out)."""
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            if getattr(error, "value", None) in _NO_VALUE:
                return None
            raise


def _text(value: str | bytes | None) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
