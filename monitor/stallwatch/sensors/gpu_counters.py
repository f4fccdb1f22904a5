"""What of a GPU is read every ten seconds or slower: calls that cost up to a millisecond, and what changes rarely."""

from typing import Any

import msgspec

from stallwatch.sensors.nvml import field_values, optional, value_of

# nvml.h NVML_FI_DEV_*: cumulative time in ns during which clocks were held down, and why.
_THROTTLE = (
    (74, "sw_power_cap"), (75, "thermal"), (76, "sync_boost"), (77, "board_limit"), (78, "low_utilization"),
    (79, "reliability"), (269, "sw_thermal"), (270, "hw_thermal"), (271, "hw_power_brake"),
)  # fmt: skip
_NVLINK = ((38, "crc_flit"), (45, "crc_data"), (52, "replay"), (59, "recovery"))
_RECOVERY_ACTION = 230
_PCIE_REPLAYS = 94
_FIELDS = (*(f for f, _ in _THROTTLE), *(f for f, _ in _NVLINK), _RECOVERY_ACTION, _PCIE_REPLAYS)


class GpuCounters(msgspec.Struct, frozen=True):
    """Named as in model.snapshot.GpuSample."""

    ecc_uncorrected_total: int | None = None
    throttle_ns: tuple[tuple[str, int], ...] | None = None
    pcie_replays: int | None = None
    pcie_link: tuple[int, int] | None = None
    pcie_link_maximum: tuple[int, int] | None = None
    nvlink_errors: tuple[tuple[str, int], ...] | None = None
    remapped_rows: tuple[int, int] | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery_action: int | None = None
    mig: bool | None = None


def read_counters(nvml: Any, handle: Any) -> GpuCounters:
    """Raise NVMLError when the device does not answer."""
    fields = field_values(nvml, handle, _FIELDS)
    rows = optional(nvml, "nvmlDeviceGetRemappedRows", handle)
    mig = optional(nvml, "nvmlDeviceGetMigMode", handle)
    return GpuCounters(
        ecc_uncorrected_total=value_of(
            nvml,
            nvml.nvmlDeviceGetTotalEccErrors,
            handle,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        ),
        throttle_ns=_named(_THROTTLE, fields),
        pcie_replays=fields.get(_PCIE_REPLAYS, optional(nvml, "nvmlDeviceGetPcieReplayCounter", handle)),
        pcie_link=_pair(
            optional(nvml, "nvmlDeviceGetCurrPcieLinkGeneration", handle),
            optional(nvml, "nvmlDeviceGetCurrPcieLinkWidth", handle),
        ),
        pcie_link_maximum=_pair(
            optional(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
            optional(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle),
        ),
        nvlink_errors=_named(_NVLINK, fields),
        remapped_rows=None if rows is None else (rows[0], rows[1]),
        remap_pending=None if rows is None else bool(rows[2]),
        remap_failed=None if rows is None else bool(rows[3]),
        recovery_action=fields.get(_RECOVERY_ACTION),
        mig=None if mig is None else bool(mig[0]),
    )


def _named(names: tuple[tuple[int, str], ...], fields: dict[int, int]) -> tuple[tuple[str, int], ...] | None:
    found = tuple((name, fields[field]) for field, name in names if field in fields)
    return found or None


def _pair(first: Any, second: Any) -> tuple[int, int] | None:
    return None if first is None or second is None else (int(first), int(second))
