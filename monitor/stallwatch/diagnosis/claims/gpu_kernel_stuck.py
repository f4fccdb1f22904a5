"""The rank's host waits for a GPU that runs something which is not communication and does not end."""

from stallwatch.diagnosis.claims.claim import Claim, Saying, activity_facts, main_wait, operation_of, waiting_facts
from stallwatch.diagnosis.gpu import spins_outside_communication
from stallwatch.diagnosis.story import Story
from stallwatch.model.verdict import Fact, Rejected


def claim(story: Story) -> Saying:
    if not story.graph.waits or not story.gpus:
        return None
    absent = sorted({rank for rank, _ in story.roots.absent})
    waiting = [story.gpus[wait.rank] for wait in story.graph.waits if wait.rank in story.gpus]
    culprits = [
        rank
        for rank in absent
        if rank in story.gpus
        and _host_may_wait_for_gpu(story, rank)
        and spins_outside_communication(story.gpus[rank], waiting)
    ]
    if not culprits:
        return Rejected("gpu_kernel_stuck", "no absent rank waits for a GPU that is busy at the power of an idle one")
    facts = []
    for rank in culprits:
        gpu = story.gpus[rank]
        facts.append(
            Fact(
                f"rank {rank}'s GPU is {gpu.utilization_percent:.0f} % busy at {gpu.power_watts:.0f} W; "
                f"those that wait in the collective draw more",
                "NVML",
            )
        )
    wait = main_wait(story, culprits)
    return Claim(
        cause="gpu_kernel_stuck",
        culprits=tuple(culprits),
        confidence="likely",
        because=(*facts, *waiting_facts(story), *activity_facts(story, culprits)),
        where="gpu_sync",
        group=wait.point.group if wait else None,
        operation=operation_of(story, wait) if wait else None,
        seq=wait.point.seq or None if wait else None,
    )


def _host_may_wait_for_gpu(story: Story, rank: int) -> bool:
    """The thread is in a device synchronisation, or spins in a native call below a line of the job's own code."""
    activity = story.case.activity(rank)
    return activity.gpu_sync or (activity.where in ("busy_loop", "user_code", "unknown") and _spins(story, rank))


def _spins(story: Story, rank: int) -> bool:
    evidence = story.case.evidence.get(rank)
    if evidence is None or not evidence.processes:
        return False
    main = max(evidence.processes, key=lambda look: look.look)
    thread = next((thread for thread in main.threads if thread.tid == main.pid), None)
    return (thread.state if thread else main.state) == "R"
