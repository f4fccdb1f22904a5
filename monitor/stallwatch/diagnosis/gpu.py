"""NVML's view of waiting and of not waiting, relative to the other ranks of the case; absolute watts say nothing.

Measured on H200 (facts): a GPU inside a collective reads 100 % busy and draws more than an idle one; a GPU that spins
in one small kernel reads 100 % busy too, at the power of an idle one. 100 % busy is not progress.
"""

from statistics import median

import msgspec

from stallwatch.diagnosis.case import Case
from stallwatch.model.evidence import GpuLook

_BUSY_PERCENT = 95.0
# 125 W against 171 W was measured; a third of a GPU's draw is well outside the spread of equal GPUs (a few percent).
_LOWER_POWER = 0.85


class GpuOfRank(msgspec.Struct, frozen=True):
    rank: int
    uuid: str
    utilization_percent: float | None
    power_watts: float | None
    error: str | None
    recovery_action: int | None


def gpus_of_ranks(case: Case) -> dict[int, GpuOfRank]:
    """Map ranks to the GPU that lists their process, at the last sample; a GPU that no rank's pid is on is left out."""
    found: dict[int, GpuOfRank] = {}
    for node in case.nodes:
        by_pid = {case.activity(rank).pid: rank for rank in node.ranks if case.activity(rank).pid is not None}
        for sample in node.gpus:  # later samples overwrite
            for gpu in sample:
                for pid in gpu.pids or ():
                    if pid in by_pid:
                        found[by_pid[pid]] = _of_rank(by_pid[pid], gpu)
    return found


def _of_rank(rank: int, gpu: GpuLook) -> GpuOfRank:
    return GpuOfRank(
        rank,
        gpu.uuid,
        gpu.utilization_percent,
        gpu.power_watts,
        gpu.error,
        gpu.recovery_action,
    )


def spins_outside_communication(gpu: GpuOfRank, waiting: list[GpuOfRank]) -> bool:
    """True when the GPU is as busy as those that wait in a collective, at clearly lower power."""
    powers = [other.power_watts for other in waiting if other.power_watts is not None and is_busy(other)]
    return bool(
        is_busy(gpu) and powers and gpu.power_watts is not None and gpu.power_watts < _LOWER_POWER * median(powers)
    )


def is_busy(gpu: GpuOfRank) -> bool:
    return gpu.utilization_percent is not None and gpu.utilization_percent >= _BUSY_PERCENT
