"""A GPU runs something which is not communication and does not end: its host waits for it before the collective that
the others are in, or has issued that behind it and waits where all wait."""

from stallwatch.diagnosis.analysis import Analysis, gpus_of_their_own, spins_outside_communication
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, main_wait, named, operation_of, waiting_facts
from stallwatch.model.gpu import Gpu
from stallwatch.model.verdict import Confidence, Fact, Rejected


def claim(analysis: Analysis) -> Saying:
    gpus = gpus_of_their_own(analysis.gpus)
    if not analysis.graph.waits:
        return None
    absent = sorted({rank for rank, _ in analysis.roots.absent})
    behind = [] if absent else _not_begun(analysis)
    if behind:
        facts = [Fact(f"the GPU of {named(behind)} has not come to it, those of the others have", "flight recorders")]
        return _claim(analysis, behind, facts, "likely")
    if not gpus:
        return None
    if absent:
        waiting = [gpu for wait in analysis.graph.waits if (gpu := gpus.get(wait.rank))]
        culprits = [
            rank
            for rank in absent
            if rank in gpus
            and _host_may_wait_for_gpu(analysis, rank)
            and spins_outside_communication(gpus[rank], waiting)
        ]
    else:
        culprits = _draw_less(analysis, gpus)
    if not culprits:
        return Rejected("gpu_kernel_stuck", "no absent rank waits for a GPU that is busy at the power of an idle one")
    return _claim(analysis, culprits, _facts(analysis, culprits), "likely" if absent else "possible")


def _claim(analysis: Analysis, culprits: list[int], facts: list[Fact], confidence: Confidence) -> Claim:
    wait = main_wait(analysis, culprits)
    return Claim(
        cause="gpu_kernel_stuck",
        culprits=tuple(culprits),
        confidence=confidence,
        because=(*facts, *waiting_facts(analysis), *activity_facts(analysis, culprits)),
        where="gpu_sync",
        group=wait.point.group if wait else None,
        operation=operation_of(analysis, wait) if wait else None,
        seq=wait.point.seq or None if wait else None,
    )


def _all_have_issued(analysis: Analysis) -> bool:
    return analysis.hangs and bool(analysis.roots.closed) and not analysis.roots.cycles


def _not_begun(analysis: Analysis) -> list[int]:
    """Of ranks that have all issued what they wait for, those few whose GPU is still before it, by recorders that note
    starts (TORCH_NCCL_ENABLE_TIMING=1)."""
    if not _all_have_issued(analysis):
        return []
    begun = {wait.rank: wait.pending.begun for wait in analysis.graph.waits if wait.point in analysis.roots.closed}
    behind = sorted(rank for rank, has in begun.items() if has is False)
    return behind if 2 * len(behind) < len(begun) and None not in begun.values() else []


def _draw_less(analysis: Analysis, gpus: dict[int, Gpu]) -> list[int]:
    """The same by what their GPUs draw: a collective of megabytes draws more than one small kernel that spins. One of
    kilobytes does not (121.6 and 121.1 W on two H200)."""
    if not _all_have_issued(analysis):
        return []
    members = {wait.rank: gpu for wait in analysis.graph.waits if (gpu := gpus.get(wait.rank))}
    found = [
        rank
        for rank, gpu in members.items()
        if spins_outside_communication(gpu, [other for other_rank, other in members.items() if other_rank != rank])
    ]
    return sorted(found) if 2 * len(found) < len(members) else []


def _facts(analysis: Analysis, culprits: list[int]) -> list[Fact]:
    facts = []
    for rank in culprits:
        gpu = analysis.gpus[rank]
        facts.append(
            Fact(
                f"rank {rank}'s GPU is {gpu.utilization_percent:.0f} % busy at {gpu.power_watts:.0f} W; "
                f"those that wait in the collective draw more",
                "NVML",
            )
        )
    return facts


def _host_may_wait_for_gpu(analysis: Analysis, rank: int) -> bool:
    """The thread is in a device synchronisation, or spins in a native call below a line of the job's own code."""
    activity = analysis.case.activity(rank)
    return activity.gpu_sync or (activity.where in ("busy_loop", "user_code", "unknown") and _spins(analysis, rank))


def _spins(analysis: Analysis, rank: int) -> bool:
    evidence = analysis.case.evidence.get(rank)
    if evidence is None or not evidence.processes:
        return False
    main = max(evidence.processes, key=lambda look: look.look)
    thread = next((thread for thread in main.threads if thread.tid == main.pid), None)
    return (thread.state if thread else main.state) == "R"
