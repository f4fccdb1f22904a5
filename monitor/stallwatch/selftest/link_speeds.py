"""What the links between this node's GPUs should give, by NVML. A figure is given only where it is sure: all NVLinks of
all GPUs active and ending in a switch, or two GPUs joined by NVLink.
"""

from collections.abc import Sequence

from stallwatch.model.gpu import Gpu
from stallwatch.model.reading import Known
from stallwatch.node import nvml_once
from stallwatch.selftest.result import TrialResult

_SECONDS = 10.0
# A healthy collective reaches 70 to 90 % of the links; below half something is wrong. Small sizes never get there.
_LEAST_SHARE = 0.5
_LEAST_BYTES = 64 << 20


def read_gpus() -> tuple[Gpu, ...]:
    """Ask NVML in a child; nothing is known when it does not answer."""
    state = nvml_once.ask(_SECONDS)
    return state.value.gpus if isinstance(state, Known) else ()


def expected_bytes_per_second(gpus: Sequence[Gpu], uuids: Sequence[str]) -> int | None:
    """Given the node's GPUs and those of a job, return what their NVLinks carry in one direction; None where that is
    not sure."""
    by_uuid = {gpu.uuid.removeprefix("GPU-"): gpu for gpu in gpus}
    mine = [by_uuid.get(uuid.removeprefix("GPU-")) for uuid in uuids]
    known = [gpu for gpu in mine if gpu is not None and gpu.nvlink_bytes_per_second]
    if len(known) != len(uuids) or len(known) < 2:
        return None
    joined = all(gpu.nvlinks_to_switches for gpu in known) or (len(gpus) == 2 and len(known) == 2)
    return min(gpu.nvlink_bytes_per_second or 0 for gpu in known) if joined else None


def warnings(trial: TrialResult, gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Bandwidths that are far below what the links should give."""
    expected = expected_bytes_per_second(gpus, [device.uuid or "" for device in trial.devices])
    if expected is None:
        return ()
    return tuple(
        f"{step.step} reaches {step.bus_bytes_per_second / 1e9:.0f} GB/s, less than half of the {expected / 1e9:.0f} "
        "GB/s of these GPUs' NVLinks: look at `nvidia-smi nvlink -e`, clocks, and NCCL_DEBUG=INFO for the transport"
        for step in trial.steps
        if step.bus_bytes_per_second is not None
        and (step.bytes or 0) >= _LEAST_BYTES
        and step.bus_bytes_per_second < _LEAST_SHARE * expected
    )
