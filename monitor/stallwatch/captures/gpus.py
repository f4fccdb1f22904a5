"""NVML samples around the incident, as the bundle keeps them."""

from collections.abc import Sequence

from stallwatch.model.evidence import GpuLook
from stallwatch.model.snapshot import GpuSample


def to_looks(samples: Sequence[tuple[GpuSample, ...]]) -> list[list[GpuLook]]:
    """Name the values of the snapshots as the evidence does: one list a sample, one entry a GPU."""
    return [[_look(gpu) for gpu in sample] for sample in samples]


def _look(gpu: GpuSample) -> GpuLook:
    return GpuLook(
        index=gpu.index,
        uuid=gpu.uuid,
        utilization_percent=gpu.utilization_percent,
        power_watts=gpu.power_watts,
        temperature_celsius=gpu.temperature_celsius,
        sm_clock_mhz=gpu.sm_clock_mhz,
        clock_event_reasons=gpu.clock_event_reasons,
        memory_used_bytes=gpu.memory_used_bytes,
        pids=gpu.compute_pids,
        error=gpu.unavailable,
        ecc_uncorrected=gpu.ecc_uncorrected_total,
    )
