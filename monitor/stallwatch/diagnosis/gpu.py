"""NVML's view of waiting and of not waiting, relative to the other ranks of the case; absolute watts say nothing.

Measured on H200 (facts): a GPU inside a collective reads 100 % busy and draws more than an idle one; a GPU that spins
in one small kernel reads 100 % busy too, at the power of an idle one. 100 % busy is not progress.
"""

from collections import Counter
from statistics import median

from stallwatch.diagnosis.job.case import Case
from stallwatch.model.gpu import Gpu

_BUSY_PERCENT = 95.0
# 125 W against 171 W was measured; a third of a GPU's draw is well outside the spread of equal GPUs (a few percent).
_LOWER_POWER = 0.85


def gpus_of_ranks(case: Case) -> dict[int, Gpu]:
    """Map ranks to the GPU that lists their process, at the last sample; a GPU that no rank's pid is on is left out."""
    found: dict[int, Gpu] = {}
    for node in case.nodes:
        by_pid = {case.activity(rank).pid: rank for rank in node.ranks if case.activity(rank).pid is not None}
        for sample in node.gpus:  # later samples overwrite
            for gpu in sample:
                found |= {by_pid[pid]: gpu for pid in gpu.compute_pids or () if pid in by_pid}
    return found


def gpus_of_their_own(gpus: dict[int, Gpu]) -> dict[int, Gpu]:
    """Those that one rank has alone: what a shared one draws tells of none of its ranks."""
    users = Counter(gpu.uuid for gpu in gpus.values())
    return {rank: gpu for rank, gpu in gpus.items() if users[gpu.uuid] == 1}


def spins_outside_communication(gpu: Gpu, waiting: list[Gpu]) -> bool:
    """True when the GPU is as busy as those that wait in a collective, at clearly lower power."""
    powers = [other.power_watts for other in waiting if other.power_watts is not None and is_busy(other)]
    return bool(
        is_busy(gpu) and powers and gpu.power_watts is not None and gpu.power_watts < _LOWER_POWER * median(powers)
    )


def is_busy(gpu: Gpu) -> bool:
    return gpu.utilization_percent is not None and gpu.utilization_percent >= _BUSY_PERCENT
