"""NVML, read here and nowhere else: the driver's codes told apart, its values without mistaking absence for zero.

A call into a sick driver may never come back: who reads runs in a process that may be lost (sensors.gpus,
node.nvml_once).
"""

import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from stallwatch.formats.outside_text import name_of
from stallwatch.model.gpu import Gpu, GpuState
from stallwatch.model.reading import Absent

T = TypeVar("T")

# "This device or driver has no such value" (nvml.h): invalid argument and not supported (MIG, consumer boards), no
# permission, not found, function not in this driver, deprecated, version of a structure.
_NO_VALUE = frozenset((2, 3, 4, 6, 13, 25, 26))

_DRIVER_MISMATCH = 18
# Codes that are signals: what they are called here, and what a person should know.
_SIGNALS: dict[int, tuple[str, str]] = {
    8: ("insufficient_power", "its power cables are not connected"),
    10: ("timeout", "a call to the driver timed out"),
    11: ("irq_issue", "the kernel sees an interrupt issue with the GPU"),
    14: ("corrupted_inforom", "its infoROM is corrupted"),
    15: ("lost", "the GPU has fallen off the bus; see XID 79 in the kernel log"),
    16: ("reset_required", "the GPU needs a reset before it can be used again"),
    _DRIVER_MISMATCH: (
        "driver_mismatch",
        "the driver's library and kernel module have different versions: the driver was updated under running jobs; "
        "reload the module or reboot when they have ended",
    ),
    28: ("lost", "the GPU is not there any more"),
    999: ("unknown_error", "the driver met an internal error (NVML 999)"),
}

# 8 GPUs at 1 Hz must stay below 1 % of a core. Measured on H200: each of the calls made every time takes 3–21 µs, the
# counters of one GPU about 2.5 ms. So they are read every ten seconds, and those of one GPU a tick.
_SLOW_SECONDS = 10.0
# Whose processes a GPU has is half of what a tick takes: who comes or goes changes how much of its memory is in use.
_PROCESSES_SECONDS = 5.0
# nvml.h NVML_FI_DEV_*: cumulative time in ns during which clocks were held down, and why.
_THROTTLE = (
    (74, "sw_power_cap"), (75, "thermal"), (76, "sync_boost"), (77, "board_limit"), (78, "low_utilization"),
    (79, "reliability"), (269, "sw_thermal"), (270, "hw_thermal"), (271, "hw_power_brake"),
)  # fmt: skip
_NVLINK = ((38, "crc_flit"), (45, "crc_data"), (52, "replay"), (59, "recovery"))
_RECOVERY_ACTION = 230
_PCIE_REPLAYS = 94
_LINK_SPEED = 90  # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: one link, one direction, in MB/s
_FIELDS = (*(f for f, _ in _THROTTLE), *(f for f, _ in _NVLINK), _RECOVERY_ACTION, _PCIE_REPLAYS)
_MOST_LINKS = 36
_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
_SM_UTIL = 2  # nvml.h NVML_GPM_METRIC_SM_UTIL
# nvmlValueType_t: which member of the union holds the value.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class DriverError(Exception):
    """The driver as a whole does not answer; the message says what kind of silence it is."""


def load_nvml(find: Callable[[str], Any] = importlib.import_module) -> Any:
    """Return pynvml after nvmlInit. Raise Absent where there is no NVIDIA driver or binding, DriverError where there is
    one that cannot be used."""
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
        raise DriverError(explain(error)[1]) from error
    return nvml


def explain(error: Exception) -> tuple[str, str]:
    """Return the kind of an NVMLError and a sentence: lost, unknown error and driver mismatch are not the same."""
    code = getattr(error, "value", None)
    kind, meaning = _SIGNALS.get(code, ("error", "")) if isinstance(code, int) else ("error", "")
    return kind, f"{error}: {meaning}" if meaning else str(error)


def value_of(nvml: Any, call: Callable[..., T], *arguments: Any) -> T | None:
    """Return None when the device has no such value; raise when it does not answer (lost, reset required, time-out)."""
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        if getattr(error, "value", None) in _NO_VALUE:
            return None
        raise


def optional(nvml: Any, name: str, *arguments: Any) -> Any:
    """As `value_of`, for a call that older bindings do not have."""
    call = getattr(nvml, name, None)
    return None if call is None else value_of(nvml, call, *arguments)


def text_of(value: str | bytes | None) -> str | None:
    """What NVML calls something, decoded; None: it did not say."""
    return None if value is None else name_of(value)


class GpuReader:
    """Every GPU of the node, again and again; a value that a device does not support is None."""

    def __init__(self, nvml: Any, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._monotonic = monotonic
        self._fixed: dict[int, Gpu] = {}
        self._counters: dict[int, dict[str, Any]] = {}
        self._counted_at: dict[int, float] = {}
        self._processes: dict[int, _Occupants] = {}
        self._gpm: dict[int, _GpmSamples | None] = {}

    def read(self) -> tuple[Gpu, ...]:
        """Raise DriverError when the driver as a whole does not answer."""
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            raise DriverError(explain(error)[1]) from error
        now = self._monotonic()
        waiting = [index for index in range(count) if now - self._counted_at.get(index, now) >= _SLOW_SECONDS]
        waiting.sort(key=lambda index: self._counted_at[index])  # so that many GPUs do not starve the last
        due = [index for index in range(count) if index not in self._counted_at] or waiting[:1]
        return tuple(self._device(index, now, index in due) for index in range(count))

    def _device(self, index: int, now: float, counts: bool) -> Gpu:
        """Return a GPU, its counters read anew where they are due; one that does not answer keeps its place and
        name."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            fixed = self._fixed.get(index)
            if fixed is None:
                fixed = self._fixed[index] = _described(nvml, index, handle)
            if counts:
                self._counted_at[index] = now
                self._counters[index] = {**_counters(nvml, handle), "slow_at_ns": int(now * 1e9) or None}
            momentary = _momentary(nvml, handle)
            momentary["compute_pids"] = self._pids(index, handle, momentary["memory_used_bytes"], now)
            gpu = msgspec.structs.replace(fixed, **momentary, **self._counters.get(index, {}))
            if (occupied := self._occupied(index, handle, gpu)) is None:
                return gpu
            return msgspec.structs.replace(gpu, multiprocessors_percent=occupied)
        except nvml.NVMLError as error:
            # Its last word may be the reason.
            return _silent(index, error, self._fixed.get(index), self._counters.get(index, {}).get("recovery_action"))

    def _pids(self, index: int, handle: Any, used_bytes: int | None, now: float) -> tuple[int, ...] | None:
        known = self._processes.pop(index, None)  # where it is lost, it is asked anew
        is_old = known is None or now - known.at >= _PROCESSES_SECONDS or used_bytes != known.used_bytes
        if known is None or is_old or used_bytes is None:
            known = _Occupants(now, used_bytes, _compute_pids(self._nvml, handle))
        self._processes[index] = known
        return known.pids

    def _occupied(self, index: int, handle: Any, gpu: Gpu) -> float | None:
        """Percent of a spinning GPU's multiprocessors that ran something since the last look (GPM: 0.3 ms a look). What
        refuses this is not sick: the calls above tell that."""
        try:
            if index not in self._gpm:
                support = optional(self._nvml, "nvmlGpmQueryDeviceSupport", handle)
                self._gpm[index] = _GpmSamples(self._nvml) if support and support.isSupportedDevice else None
            samples = self._gpm[index]
            if samples is None:
                return None
            if not gpu.is_busy or gpu.moves_memory:
                samples.forget()
                return None
            return samples.since_last(handle)
        except self._nvml.NVMLError:
            self._gpm[index] = None
            return None


class _Occupants(NamedTuple):
    at: float
    used_bytes: int | None
    pids: tuple[int, ...] | None


class _GpmSamples:
    """The last counters of one GPU, and room for the next."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._last, self._next = (value_of(nvml, nvml.nvmlGpmSampleAlloc) for _ in range(2))
        self._has_last = False
        self._asked = asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
        asked.metrics[0].metricId = _SM_UTIL

    def forget(self) -> None:
        """What was read tells nothing of what comes."""
        self._has_last = False

    def since_last(self, handle: Any) -> float | None:
        """Percent of the multiprocessors that ran something since the last call; None: not known yet, or refused."""
        nvml, had = self._nvml, self._has_last
        self._has_last = value_of(nvml, nvml.nvmlGpmSampleGet, handle, self._next) is not None
        if not self._has_last:
            return None
        self._last, self._next = self._next, self._last
        asked = self._asked
        asked.sample1, asked.sample2 = self._next, self._last
        if not had or value_of(nvml, nvml.nvmlGpmMetricsGet, asked) is None or asked.metrics[0].nvmlReturn != 0:
            return None
        return round(float(asked.metrics[0].value), 3)


def read_state(nvml: Any) -> GpuState:
    """Given pynvml, not initialised, return everything that is known at once, links included; a refusal of NVML as a
    whole is a value too."""
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return GpuState("", "", (), failure=str(error), failure_code=getattr(error, "value", None))
    handles: dict[int, Any] = {}
    gpus = []
    for index in range(count):
        try:
            handle = handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
            of_now = {**_momentary(nvml, handle), **_counters(nvml, handle), **_links(nvml, handle)}
            of_now["compute_pids"] = _compute_pids(nvml, handle)
            gpus.append(msgspec.structs.replace(_described(nvml, index, handle), **of_now))
        except nvml.NVMLError as error:
            gpus.append(_silent(index, error))
    cuda = value_of(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
    common = nvml.nvmlDeviceGetTopologyCommonAncestor
    return GpuState(
        driver=text_of(value_of(nvml, nvml.nvmlSystemGetDriverVersion)) or "",
        cuda="" if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        gpus=tuple(gpus),
        topology=tuple(
            (left, right, level)
            for left in handles
            for right in handles
            if left < right and (level := value_of(nvml, common, handles[left], handles[right])) is not None
        ),
    )


def _silent(index: int, error: Exception, known: Gpu | None = None, recovery_action: int | None = None) -> Gpu:
    kind, sentence = explain(error)
    return Gpu(
        index=index,
        uuid=known.uuid if known else "",
        name=known.name if known else None,
        serial=known.serial if known else None,
        pci_bus_id=known.pci_bus_id if known else None,
        unavailable=f"NVML: {sentence}",
        unavailable_kind=kind,
        recovery_action=recovery_action,
    )


def _described(nvml: Any, index: int, handle: Any) -> Gpu:
    """What never changes."""
    pci = value_of(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    limit = optional(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)
    return Gpu(
        index=index,
        uuid=text_of(nvml.nvmlDeviceGetUUID(handle)) or "",
        name=text_of(value_of(nvml, nvml.nvmlDeviceGetName, handle)),
        serial=text_of(optional(nvml, "nvmlDeviceGetSerial", handle)),
        pci_bus_id=None if pci is None else text_of(pci.busId),
        power_limit_watts=None if limit is None else limit / 1000,
    )


def _momentary(nvml: Any, handle: Any) -> dict[str, Any]:
    """What is read at each tick, by Gpu's names."""
    memory = value_of(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    utilization = optional(nvml, "nvmlDeviceGetUtilizationRates", handle)
    power = optional(nvml, "nvmlDeviceGetPowerUsage", handle)
    return {
        "utilization_percent": None if utilization is None else utilization.gpu,
        "memory_utilization_percent": None if utilization is None else utilization.memory,
        "memory_used_bytes": None if memory is None else memory.used,
        "memory_total_bytes": None if memory is None else memory.total,
        "power_watts": None if power is None else power / 1000,
        "temperature_celsius": value_of(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        "sm_clock_mhz": value_of(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
        "clock_event_reasons": value_of(nvml, nvml.nvmlDeviceGetCurrentClocksEventReasons, handle),
    }


def _compute_pids(nvml: Any, handle: Any) -> tuple[int, ...] | None:
    processes = value_of(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return None if processes is None else tuple(sorted({process.pid for process in processes}))


def _counters(nvml: Any, handle: Any) -> dict[str, Any]:
    """What costs up to a millisecond, or changes rarely, by Gpu's names."""
    fields = _field_values(nvml, handle, _FIELDS)
    rows = optional(nvml, "nvmlDeviceGetRemappedRows", handle)
    mig = optional(nvml, "nvmlDeviceGetMigMode", handle)
    kind, volatile = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    return {
        "ecc_uncorrected_total": value_of(nvml, nvml.nvmlDeviceGetTotalEccErrors, handle, kind, volatile),
        "throttle_ns": _named(_THROTTLE, fields),
        "pcie_replays": fields.get(_PCIE_REPLAYS, optional(nvml, "nvmlDeviceGetPcieReplayCounter", handle)),
        "pcie_link": _link(nvml, handle, "Curr"),
        "pcie_link_maximum": _link(nvml, handle, "Max"),
        "nvlink_errors": _named(_NVLINK, fields),
        "remap_pending": None if rows is None else bool(rows[2]),
        "remap_failed": None if rows is None else bool(rows[3]),
        "recovery_action": fields.get(_RECOVERY_ACTION),
        "mig": None if mig is None else bool(mig[0]),
    }


def _links(nvml: Any, handle: Any) -> dict[str, Any]:
    """How it is joined with others, by Gpu's names; some calls for each link."""
    active, inactive, remote = 0, 0, []
    for link in range(_MOST_LINKS):
        state = value_of(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            break  # no such link
        active, inactive = active + bool(state), inactive + (not state)
        if state:
            remote.append(optional(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link))
    known = [kind for kind in remote if kind is not None]
    speed = _field_values(nvml, handle, (_LINK_SPEED,)).get(_LINK_SPEED) if active else None
    return {
        "nvlinks": (active, inactive) if active or inactive else None,
        "nvlinks_to_switches": all(kind == _SWITCH for kind in known) if known else None,
        "nvlink_bytes_per_second": speed * 1_000_000 * active if speed else None,
        "fabric": _fabric(nvml, handle),
        "compute_capability": optional(nvml, "nvmlDeviceGetCudaComputeCapability", handle),
    }


def _fabric(nvml: Any, handle: Any) -> tuple[int, int] | None:
    """State and status of the fabric manager's registration (HGX and newer)."""
    try:
        info = nvml.c_nvmlGpuFabricInfo_t()
        nvml.nvmlDeviceGetGpuFabricInfo(handle, nvml.byref(info))
    except (nvml.NVMLError, AttributeError, TypeError):
        return None
    return int(info.state), int(info.status)


def _field_values(nvml: Any, handle: Any, fields: Sequence[int]) -> dict[int, int]:
    """Return the fields that the device has, by their number; one call for all, for each call costs."""
    answers = optional(nvml, "nvmlDeviceGetFieldValues", handle, list(fields))
    return {answer.fieldId: _number(answer) for answer in answers or () if answer.nvmlReturn == 0}


def _number(answer: Any) -> int:
    kind = answer.valueType
    return int(getattr(answer.value, _MEMBERS[kind] if 0 <= kind < len(_MEMBERS) else "ullVal"))


def _named(names: tuple[tuple[int, str], ...], fields: dict[int, int]) -> tuple[tuple[str, int], ...] | None:
    found = tuple((name, fields[field]) for field, name in names if field in fields)
    return found or None


def _link(nvml: Any, handle: Any, which: str) -> tuple[int, int] | None:
    generation = optional(nvml, f"nvmlDeviceGet{which}PcieLinkGeneration", handle)
    width = optional(nvml, f"nvmlDeviceGet{which}PcieLinkWidth", handle)
    return None if generation is None or width is None else (int(generation), int(width))
