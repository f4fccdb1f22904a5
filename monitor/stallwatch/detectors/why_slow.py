"""What is different about a slow rank, by facts of the same tick: for people, beside the finding; never an accusation.

Compared with its peers on this node: data loading, contention for the CPU, clocks, memory, links.
"""

from collections.abc import Sequence
from statistics import median

from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.model.gpu import Gpu, gpu_slower, missing_lanes
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import ProcessSample

_FULL = 0.97
_BUSY_CHILDREN = 0.3  # share of the children that run: loaders at work
_CONTENDED_SHARE = 0.2  # of its time runnable without running


def why_slow(rank: int, alive: Sequence[RankHistory], seen: NodeHistory) -> str:
    """Return "; …" in words, "" where all that can be seen is alike."""
    mine = next((r for r in alive if r.sample.rank == rank), None)
    if mine is None:
        return ""
    others = [r for r in alive if r is not mine]
    signs = [sign for sign in (_clock(mine, others, seen), _links(mine, seen), _memory(mine, seen)) if sign]
    signs += [sign for sign in (_contention(mine, others), _loading(mine, others)) if sign]
    return f"; {' and '.join(signs)}" if signs else ""


def gpu_of(rank: RankHistory, gpus: Sequence[Gpu]) -> Gpu | None:
    """The rank's GPU by its process, None where the driver does not say."""
    return next((gpu for gpu in gpus if rank.sample.pid in (gpu.compute_pids or ())), None)


def _clock(mine: RankHistory, others: Sequence[RankHistory], seen: NodeHistory) -> str:
    gpu = gpu_of(mine, seen.gpus)
    slower = gpu and gpu_slower(gpu, [of_peer for r in others if (of_peer := gpu_of(r, seen.gpus))])
    return slower.said if slower else ""


def _links(mine: RankHistory, seen: NodeHistory) -> str:
    gpu = gpu_of(mine, seen.gpus)
    if gpu is None or (lanes := missing_lanes(gpu, seen.gpus)) is None:
        return ""
    return f"the PCIe link of its GPU {gpu.index} has {lanes[0]} of {lanes[1]} lanes"


def _memory(mine: RankHistory, seen: NodeHistory) -> str:
    gpu = gpu_of(mine, seen.gpus)
    if gpu is None or not gpu.memory_used_bytes or not gpu.memory_total_bytes:
        return ""
    full = gpu.memory_used_bytes / gpu.memory_total_bytes
    return f"the memory of its GPU {gpu.index} is {full:.0%} full" if full > _FULL else ""


def _contention(mine: RankHistory, others: Sequence[RankHistory]) -> str:
    """It is ready to run and does not: seen by its state while its CPU time stands still."""
    share = mine.contended_share
    typical = median([r.contended_share for r in others]) if others else 0.0
    if share - typical < _CONTENDED_SHARE:
        return ""
    return f"its main thread waits for a CPU core {share:.0%} of the time, its peers' {typical:.0%}"


def _loading(mine: RankHistory, others: Sequence[RankHistory]) -> str:
    process = _process(mine)
    if process is None or not process.children:
        return ""
    busy = _running_share(process)
    rest = [_running_share(p) for r in others if (p := _process(r)) is not None and p.children]
    if rest and busy - median(rest) >= _BUSY_CHILDREN:
        # Loaders' workers for the most part; not known here.
        work = f"its child processes work ({busy:.0%} of them run or wait for storage)"
        return f"{work}, its peers' rest ({median(rest):.0%})"
    return ""


def _running_share(process: ProcessSample) -> float:
    return sum(child.state in "RD" for child in process.children) / len(process.children)


def _process(rank: RankHistory) -> ProcessSample | None:
    return rank.sample.process.value if isinstance(rank.sample.process, Known) else None
