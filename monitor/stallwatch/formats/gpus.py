"""gpus.json: NVML samples, each a list of GPUs, by the daemon's own names or those of common capture scripts."""

from typing import Any, Final

from stallwatch.formats.tolerant import decode_json, integer, items, mapping, number, text
from stallwatch.formats.unreadable import Unreadable
from stallwatch.formats.xid import bus_address
from stallwatch.model.evidence import GpuLook

# First the field of model.snapshot.GpuSample, then what capture scripts write.
_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "index": ("index", "i", "gpu"),
    "uuid": ("uuid",),
    "utilization_percent": ("utilization_percent", "gpu_util", "util", "utilization"),
    "power_watts": ("power_watts", "power_w", "power"),
    "temperature_celsius": ("temperature_celsius", "temp", "temperature"),
    "sm_clock_mhz": ("sm_clock_mhz", "sm_mhz", "sm_clock"),
    "clock_event_reasons": ("clock_event_reasons", "throttle", "throttle_reasons"),
    "memory_used_bytes": ("memory_used_bytes", "mem_used"),
    "pids": ("compute_pids", "pids", "procs"),
    "error": ("unavailable", "error"),
    "recovery_action": ("recovery_action",),
    "pci_bus_id": ("pci_bus_id", "bus_id"),
    "events": ("events",),
    "ecc_uncorrected": ("ecc_uncorrected_total", "ecc_uncorrected"),
}


def parse(data: bytes) -> tuple[tuple[GpuLook, ...], ...]:
    """Samples, oldest first. Raise Unreadable."""
    said = decode_json(data)
    if type(said) is dict:
        said = [said] if "uuid" in said else list(said.values())
    if type(said) is not list:
        raise Unreadable("it is not a list of NVML samples")
    if said and all(type(each) is dict for each in said):
        said = [said]  # one sample, not wrapped
    samples = tuple(tuple(_gpu(gpu, place) for place, gpu in enumerate(items(s)) if type(gpu) is dict) for s in said)
    if said and not any(samples):
        raise Unreadable("it is not a list of NVML samples")
    return samples


def _gpu(said: dict[str, Any], place: int) -> GpuLook:
    def find(field: str) -> Any:
        return next((said[name] for name in _NAMES[field] if said.get(name) is not None), None)

    index, pids = integer(find("index")), find("pids")
    return GpuLook(
        index=place if index is None else index,
        uuid=text(find("uuid")) or "",
        utilization_percent=number(find("utilization_percent")),
        power_watts=number(find("power_watts")),
        temperature_celsius=number(find("temperature_celsius")),
        sm_clock_mhz=number(find("sm_clock_mhz")),
        clock_event_reasons=integer(find("clock_event_reasons")),
        memory_used_bytes=integer(find("memory_used_bytes")),
        pids=tuple(p for p in map(integer, pids) if p is not None) if type(pids) is list else None,
        error=text(find("error")),
        recovery_action=integer(find("recovery_action")),
        ecc_uncorrected=integer(find("ecc_uncorrected")),
        pci_bus_id=bus_address(text(find("pci_bus_id")) or "") or None,
        xids=tuple(x for x in (integer(mapping(e).get("xid")) for e in items(find("events"))) if x is not None),
    )
