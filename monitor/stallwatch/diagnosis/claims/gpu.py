"""A GPU reported an error that stops work, or does not answer; NVLink, switch or NIC errors that explain a hang; or a
GPU runs a kernel that is no communication and does not end.

XIDs and what they mean are those of NVIDIA's catalogue; which ones follow from others is marked there, too.
"""

from collections.abc import Iterable
from statistics import median

from stallwatch.diagnosis.analysis import Analysis, gpus_of_their_own, spins_outside_communication
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, main_wait, named, waiting_facts
from stallwatch.diagnosis.logs.blame import find_blame
from stallwatch.diagnosis.logs.failure_line import headline
from stallwatch.diagnosis.logs.logged_failure import LoggedFailure
from stallwatch.diagnosis.logs.remedies_by_origin import words_in
from stallwatch.diagnosis.logs.remedies_by_text import Words
from stallwatch.formats.xid import FABRIC_FAULTS, FOLLOW_ON, GPU_FAULTS, LEADING, OF_THE_JOB
from stallwatch.model.evidence import NodeEvidence
from stallwatch.model.gpu import Gpu
from stallwatch.model.kernel import KernelEvent
from stallwatch.model.verdict import Cause, Confidence, Fact, Rejected

# A kernel line this long before the last look at the processes belongs to another day.
_OLD_SECONDS = 3600.0
# A host that asks its GPU nothing goes on by as many kernels as are queued (1,024), and ends a step or some meanwhile.
_AHEAD_SECONDS = 60.0
_BOOT_SECONDS = 180.0
_OF_WAYS = ("Got completion", "NET/OFI Request")  # what an end of a way writes that failed
_ALIKE, _UNLIKE = 1.05, 1.5  # times the multiprocessors that the others occupy
_FAILURES = ("out_of_memory", "memory_killed", "cuda_error", "native_crash", "dataloader_killed")
_CRASHES = (4, 7, 8, 9, 11)  # signals that end a process which did not wait: SIGILL, SIGBUS, SIGFPE, SIGKILL, SIGSEGV


def gpu_fault(analysis: Analysis) -> Saying:
    """A GPU of the job reported an error that ends its work, fell off the bus, or does not answer."""
    faults: list[tuple[str, Fact, tuple[int, ...]]] = []
    by_programs: list[tuple[str, Fact, tuple[int, ...]]] = []  # a kernel log reaches back: the hardware's come first
    ignored: list[str] = []
    for node in analysis.case.nodes:
        for event in node.kernel_events:
            if _is_old(analysis, node, event):
                continue
            if event.kind == "off_bus" or (event.kind == "xid" and event.xid in GPU_FAULTS | LEADING):
                fact = _of_kernel(node, event)
                kept = by_programs if event.xid in OF_THE_JOB else faults
                kept.append((node.host, fact, _owners(analysis, node, event)))
            elif event.kind == "xid" and event.xid in FOLLOW_ON:
                ignored.append(f"XID {event.xid} on {node.host} follows from something else")
        faults += _told_by_driver(analysis, node, GPU_FAULTS)
        for gpu in node.gpus[-1] if node.gpus else ():
            if gpu.unavailable and "not supported" not in gpu.unavailable.lower():
                ranks = tuple(rank for rank, mine in analysis.gpus.items() if mine.uuid == gpu.uuid)
                faults.append((node.host, Fact(f"GPU {gpu.index} of {node.host}: {gpu.unavailable}", "NVML"), ranks))
            elif gpu.recovery_action:
                ranks = tuple(rank for rank, mine in analysis.gpus.items() if mine.uuid == gpu.uuid)
                text = f"GPU {gpu.index} of {node.host} asks for recovery action {gpu.recovery_action}"
                faults.append((node.host, Fact(text, "NVML"), ranks))
    told = [one for one in analysis.case.logs.of_kind("gpu_unreachable") if not one.consequence]
    for one in told:
        rank = None if _is_anybodys(one, told) else one.rank
        faults.append((one.event.host or "", Fact(headline(one, who=rank is None), one.place), _of(rank)))
    return _claim(analysis, "gpu_fault", faults + by_programs, ignored)


def _is_anybodys(one: LoggedFailure, told: Iterable[LoggedFailure]) -> bool:
    """Whether other ranks tell of the same GPU: NCCL asks for all of a node, and all that have memory of one that hangs
    are told so."""
    device = one.event.device
    return bool(device) and len({other.rank for other in told if other.event.device == device}) > 1


def fabric_fault(analysis: Analysis) -> Saying:
    """A switch, NVLink, port or adapter reported an error that explains the wait."""
    faults: list[tuple[str, Fact, tuple[int, ...]]] = []
    for node in analysis.case.nodes:
        for event in node.kernel_events:
            of_switch = event.kind == "sxid" and event.fatal is True
            of_port = event.kind in ("link_down", "adapter_error") and not _at_boot(event)
            fatal = (
                of_switch
                or of_port
                or (event.kind == "xid" and event.xid in FABRIC_FAULTS and event.fatal is not False)
            )
            if fatal and not _is_old(analysis, node, event):
                fact = _of_kernel(node, event)
                faults.append((node.host, fact, _owners(analysis, node, event)))
        faults += _told_by_driver(analysis, node, FABRIC_FAULTS)
    faults += _told_by_nccl(analysis)
    return _claim(analysis, "fabric_fault", faults, [])


def _of_kernel(node: NodeEvidence, event: KernelEvent) -> Fact:
    if node.host in ("unknown", ""):
        return Fact(event.text.strip(), f"{event.source}:{event.line}" if event.source else "kernel log")
    return Fact(f"kernel of {node.host}: {event.text.strip()}", "kernel log")


def _told_by_nccl(analysis: Analysis) -> list[tuple[str, Fact, tuple[int, ...]]]:
    """A port's own event comes before the completion error that its peers get. Who gets one stands at one end of a way
    that failed, and nothing tells at which: unless all that he has talked to are at the other ends."""
    kinds = "nccl_completion_error", "nccl_async_event"
    told = [one for one in analysis.case.logs.of_kind(*kinds) if not one.event.secondary]
    own = [one for one in told if one.kind == "nccl_async_event"] or ([] if _a_rank_failed(analysis) else told)
    peers: dict[tuple[int | None, str | None], set[str]] = {}
    for one in own:
        peers.setdefault((one.rank, one.event.host), set()).add((one.event.peer or "").partition("<")[0])
    ends = [end for end, others in peers.items() if len(others) > 1] if len(peers) == 1 else []
    faults = []
    for one in own:
        end = one.rank, one.event.host
        if peers.pop(end, None) is not None:
            named_by = _of(one.rank) if one.kind == "nccl_async_event" or end in ends else ()
            faults.append((one.event.host or "", Fact(headline(one)[:240], one.place), named_by))
    return faults


def _a_rank_failed(analysis: Analysis) -> bool:
    """A rank failed for a reason of its own: that the adapters of its peers gave up follows."""
    first = analysis.case.logs.first
    if first is None or first.rank is None or first.kind == "nccl_error":
        return False
    return bool(first.event.exception) or first.kind in _FAILURES or first.event.exit_signal in _CRASHES


def _of(rank: int | None) -> tuple[int, ...]:
    return () if rank is None else (rank,)


def _at_boot(event: KernelEvent) -> bool:
    """Ports go up and down while a node starts."""
    return event.seconds is not None and event.seconds < _BOOT_SECONDS


def _claim(
    analysis: Analysis, cause: Cause, faults: list[tuple[str, Fact, tuple[int, ...]]], ignored: list[str]
) -> Saying:
    if not faults:
        return Rejected(cause, ignored[0]) if ignored else None
    gone = any(activity.end.gone for activity in analysis.case.activities.values())
    seen = any(
        evidence.processes or evidence.stacks or evidence.heartbeat for evidence in analysis.case.evidence.values()
    )
    if (
        not analysis.hangs
        and not gone
        and (seen or any(analysis.case.recorded(rank) for rank in analysis.case.observed))
    ):
        return Rejected(cause, f"{faults[0][1].fact}: but nobody waits")
    culprits = _unique(rank for _, _, ranks in faults for rank in ranks)
    # A switch carries every GPU of its node: that one rank is waited for says nothing about it.
    of_switch = all("SXid" in fact.fact for _, fact, _ in faults)
    if not culprits and not of_switch:
        culprits = _only_suspect(analysis, {host for host, _, _ in faults})
    wait = main_wait(analysis, culprits)
    where = f"on a GPU of {named(culprits)}" if culprits else "on a GPU that no rank's process is known to use"
    where = "on an NVSwitch, which all GPUs of the node share" if of_switch else where
    of_way = not culprits and all(any(words in fact.fact for words in _OF_WAYS) for _, fact, _ in faults)
    where = "on the way between two nodes, and nothing tells at which end" if of_way else where
    lacking = (
        "the log of the other end, whose address the line names, and both nodes' kernel logs"
        if of_way
        else ("which rank's GPU it is: the kernel named no process of the job")
    )
    return Claim(
        cause=cause,
        culprits=culprits,
        confidence="likely" if culprits else "possible",
        because=(*(fact for _, fact, _ in faults[:6]), Fact(f"it happened {where}", "pids"), *waiting_facts(analysis)),
        by_line=_by_line(analysis, cause, faults),
        missing=() if culprits or of_switch else (lacking,),
    ).at(analysis, wait)


def _by_line(analysis: Analysis, cause: Cause, faults: list[tuple[str, Fact, tuple[int, ...]]]) -> Words | None:
    """What the line that NVML's caller, or NCCL's plug-in of EFA, wrote says to do, where no kernel and no driver told
    more."""
    kind = "gpu_unreachable" if cause == "gpu_fault" else "nccl_completion_error"
    told = [one for one in analysis.case.logs.of_kind(kind) if not one.consequence]
    alone = len(told) == len(faults) if cause == "gpu_fault" else all("NET/OFI" in fact.fact for _, fact, _ in faults)
    return words_in(told[0], analysis.case.logs.events) if told and alone else None


def _told_by_driver(
    analysis: Analysis, node: NodeEvidence, xids: frozenset[int]
) -> list[tuple[str, Fact, tuple[int, ...]]]:
    """XIDs that the driver told by itself, unless the kernel's log tells them; in a container that is often closed."""
    logged = {(event.xid, event.pci_bus_id) for event in node.kernel_events if event.kind == "xid"}
    faults = []
    for gpu in node.gpus[-1] if node.gpus else ():
        ranks = tuple(rank for rank, mine in analysis.gpus.items() if mine.uuid == gpu.uuid)
        told = [one for one in gpu.events if not _went_on(analysis, ranks or node.ranks, one.at_ns / 1e9)]
        for xid in dict.fromkeys(one.xid for one in told):
            if xid is not None and xid in xids and (xid, gpu.pci_bus_id) not in logged:
                faults.append((node.host, Fact(f"GPU {gpu.index} of {node.host} reported XID {xid}", "NVML"), ranks))
    return faults


def _owners(analysis: Analysis, node: NodeEvidence, event: KernelEvent) -> tuple[int, ...]:
    """By the process that the kernel names, else by who used the GPU at that place."""
    named = _named_by_kernel(analysis, node, event)
    # Of a link's fault the driver names no process, and says of those that it then ends what ended them.
    ended = (other for other in node.kernel_events if other.caused_by_xid == event.xid is not None)
    there = [other for other in ended if other.pci_bus_id == event.pci_bus_id]
    named = named or tuple(sorted({rank for other in there for rank in _named_by_kernel(analysis, node, other)}))
    if named:
        return named
    uuids = {
        gpu.uuid for sample in node.gpus for gpu in sample if gpu.pci_bus_id and gpu.pci_bus_id == event.pci_bus_id
    }
    return tuple(rank for rank in node.ranks if rank in analysis.gpus and analysis.gpus[rank].uuid in uuids)


def _named_by_kernel(analysis: Analysis, node: NodeEvidence, event: KernelEvent) -> tuple[int, ...]:
    if event.pid is None:
        return ()
    if named := tuple(rank for rank in node.ranks if analysis.case.activity(rank).pid == event.pid):
        return named
    for one in analysis.case.logs.of_kind("gpu_xid", "gpu_lost"):  # whose pid other logs tell
        if one.rank is not None and (one.event.source, one.event.line) == (event.source, event.line):
            return (one.rank,)
    return ()


def _only_suspect(analysis: Analysis, hosts: set[str]) -> tuple[int, ...]:
    """The one rank on the host of the fault, or the one there that others wait for."""
    hosts_of = {rank: analysis.case.activity(rank).host for rank in analysis.case.observed}
    # A kernel log that lies beside dumps and logs does not say whose it is: it is of a node of the job.
    anywhere = not any(hosts_of.values()) or hosts <= {"unknown", ""}
    there = [rank for rank, host in hosts_of.items() if anywhere or host in hosts]
    suspects = [rank for rank, _ in analysis.roots.absent if rank in there]
    if anywhere and not suspects:
        logs = analysis.case.logs
        blame = find_blame(logs.groups, {*analysis.case.world, *analysis.case.observed})
        suspects = list(blame.ranks) if blame is not None and blame.kind in ("absent", "silent") else []
        return tuple(suspects) if len(suspects) == 1 else ()
    chosen = there if len(there) == 1 else suspects
    return tuple(chosen) if len(chosen) == 1 else ()


def _unique(ranks: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(ranks)))


def _is_old(analysis: Analysis, node: NodeEvidence, event: KernelEvent) -> bool:
    """Both clocks count from boot; a line without a time is taken as new."""
    if event.seconds is None:
        return False
    seen = [evidence for rank in node.ranks if (evidence := analysis.case.evidence.get(rank)) is not None]
    looks = [at_ns for one in seen for look in one.processes for at_ns in (look.at_ns, look.ended_ns)]
    looks += [beat.pulse_ns for one in seen for beat in one.heartbeat]
    last_ns = max((at_ns for at_ns in looks if at_ns is not None), default=None)
    if last_ns is not None and last_ns / 1e9 - event.seconds > _OLD_SECONDS:
        return True
    return _went_on(analysis, _owners(analysis, node, event) or node.ranks, event.seconds)


def _went_on(analysis: Analysis, ranks: Iterable[int], seconds: float) -> bool:
    """Whether each of `ranks`, one of which it would have stopped, has ended steps well after that moment."""
    beats = [evidence.heartbeat for rank in ranks if (evidence := analysis.case.evidence.get(rank)) is not None]
    steps = [max((beat.last_step_ns or 0 for beat in looks), default=0) for looks in beats]
    return bool(steps) and min(steps) / 1e9 - seconds > _AHEAD_SECONDS


# A GPU runs something which is not communication and does not end: its host waits for it before the collective that
# the others are in, or has issued that behind it and waits where all wait.


def kernel_stuck(analysis: Analysis) -> Saying:
    """The GPUs of ranks that others wait for are busy with something that is no communication."""
    gpus = gpus_of_their_own(analysis.gpus)
    if not analysis.graph.waits:
        return None
    absent = sorted({rank for rank, _ in analysis.roots.absent})
    behind = [] if absent else _not_begun(analysis)
    if behind:
        facts = [Fact(f"the GPU of {named(behind)} has not come to it, those of the others have", "flight recorders")]
        return _kernel_claim(analysis, behind, facts, "likely")
    if not gpus:
        return None
    unlike, facts = ([], []) if absent else _unlike_the_others(analysis, gpus)
    if unlike:
        return _kernel_claim(analysis, unlike, facts, "likely")
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
    return _kernel_claim(analysis, culprits, _facts(analysis, culprits), "likely" if absent else "possible")


def _kernel_claim(analysis: Analysis, culprits: list[int], facts: list[Fact], confidence: Confidence) -> Claim:
    wait = main_wait(analysis, culprits)
    return Claim(
        cause="gpu_kernel_stuck",
        culprits=tuple(culprits),
        confidence=confidence,
        because=(*facts, *waiting_facts(analysis), *activity_facts(analysis, culprits)),
        where="gpu_sync",
    ).at(analysis, wait)


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


def _unlike_the_others(analysis: Analysis, gpus: dict[int, Gpu]) -> tuple[list[int], list[Fact]]:
    """The same by how many multiprocessors they occupy: NCCL gives one collective as many blocks on each member (24 of
    132 on two H200s that waited in one; an endless kernel of one block took 1 of 132, a matrix product 128)."""
    points = {wait.point for wait in analysis.graph.waits}
    if not _all_have_issued(analysis) or len(points) != 1 or not all(point.seq for point in points):
        return [], []
    members = {wait.rank: gpus[wait.rank] for wait in analysis.graph.waits if wait.rank in gpus}
    shares = {rank: gpu.multiprocessors_percent for rank, gpu in members.items() if gpu.multiprocessors_percent}
    # What another program runs there counts as well.
    alone = all(len(gpu.compute_pids or ()) == 1 for gpu in members.values())
    if len(shares) < len(analysis.graph.waits) or not alone or len({gpu.name for gpu in members.values()}) > 1:
        return [], []
    most = median(shares.values())
    unlike = sorted(rank for rank, share in shares.items() if not most / _UNLIKE < share < most * _UNLIKE)
    alike = [share for rank, share in shares.items() if rank not in unlike]
    if not unlike or 2 * len(unlike) >= len(shares) or max(alike) > _ALIKE * min(alike):
        return [], []
    theirs = ", ".join(f"{shares[rank]:.1f}" for rank in unlike)
    said = f"the GPU of {named(unlike)} occupies {theirs} % of its multiprocessors, those of the others {most:.1f}"
    return unlike, [Fact(f"{said}: it is not in the collective that was issued on all", "NVML")]


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
    return activity.place.gpu_sync or (
        activity.place.where in ("busy_loop", "user_code", "unknown") and _spins(analysis, rank)
    )


def _spins(analysis: Analysis, rank: int) -> bool:
    evidence = analysis.case.evidence.get(rank)
    if evidence is None or not evidence.processes:
        return False
    main = max(evidence.processes, key=lambda look: look.look)
    thread = next((thread for thread in main.threads if thread.tid == main.pid), None)
    return (thread.state if thread else main.state) == "R"
