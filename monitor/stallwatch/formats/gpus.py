"""gpus.json: NVML samples, each a list of GPUs, by the daemon's own names or those of common capture scripts."""

from typing import Any, Final

from stallwatch.formats.tolerant import decode_json, integer, items, mapping, number, text
from stallwatch.formats.unreadable import Unreadable
from stallwatch.formats.xid import bus_address
from stallwatch.model.gpu import Gpu, GpuEvent

# First the field of model.gpu.Gpu, then what capture scripts write.
_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "index": ("index", "i", "gpu"),
    "uuid": ("uuid",),
    "utilization_percent": ("utilization_percent", "gpu_util", "util", "utilization"),
    "multiprocessors_percent": ("multiprocessors_percent",),
    "power_watts": ("power_watts", "power_w", "power"),
    "temperature_celsius": ("temperature_celsius", "temp", "temperature"),
    "sm_clock_mhz": ("sm_clock_mhz", "sm_mhz", "sm_clock"),
    "clock_event_reasons": ("clock_event_reasons", "throttle", "throttle_reasons"),
    "memory_used_bytes": ("memory_used_bytes", "mem_used"),
    "compute_pids": ("compute_pids", "pids", "procs"),
    "unavailable": ("unavailable", "error"),
    "recovery_action": ("recovery_action",),
    "pci_bus_id": ("pci_bus_id", "bus_id"),
    "events": ("events",),
    "ecc_uncorrected_total": ("ecc_uncorrected_total", "ecc_uncorrected"),
}


def parse(data: bytes) -> tuple[tuple[Gpu, ...], ...]:
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


def _gpu(said: dict[str, Any], place: int) -> Gpu:
    def find(field: str) -> Any:
        return next((said[name] for name in _NAMES[field] if said.get(name) is not None), None)

    index, pids = integer(find("index")), find("compute_pids")
    return Gpu(
        index=place if index is None else index,
        uuid=text(find("uuid")) or "",
        utilization_percent=number(find("utilization_percent")),
        multiprocessors_percent=number(find("multiprocessors_percent")),
        power_watts=number(find("power_watts")),
        temperature_celsius=number(find("temperature_celsius")),
        sm_clock_mhz=number(find("sm_clock_mhz")),
        clock_event_reasons=integer(find("clock_event_reasons")),
        memory_used_bytes=integer(find("memory_used_bytes")),
        compute_pids=tuple(p for p in map(integer, pids) if p is not None) if type(pids) is list else None,
        unavailable=text(find("unavailable")),
        recovery_action=integer(find("recovery_action")),
        ecc_uncorrected_total=integer(find("ecc_uncorrected_total")),
        pci_bus_id=bus_address(text(find("pci_bus_id")) or "") or None,
        events=tuple(_event(mapping(event)) for event in items(find("events"))),
    )


def _event(said: dict[str, Any]) -> GpuEvent:
    return GpuEvent(
        text(said.get("kind")) or "",
        integer(said.get("at_ns")) or 0,
        text(said.get("uuid")) or "",
        integer(said.get("xid")),
    )
