"""Waits that no recorder shows: by stacks, and by what hooks tell of calls."""

from stallwatch.diagnosis.frames.code_origin import code_origin, hands_over, source_text
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.job.untold import may_hide_transfers
from stallwatch.diagnosis.recorder.signature import names_transfer

# Calls that are carried out without being recorded, by gloo for one.
_UNRECORDED = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "wait", "p2p", "work", "monitored_barrier")


def waits_unrecorded(case: Case, rank: int, waiting: set[int]) -> bool:
    """Return True when the stack shows a wait in communication that the recorder does not hold."""
    activity = case.activity(rank)
    if rank in waiting or activity.end.gone or activity.process.stopped or activity.progress.moving:
        return False
    if not case.recorded(rank):
        summary = case.summaries.get(rank)
        lost = summary is not None and summary.outran and not activity.known  # it waits in what the file has lost
        return lost or bool(activity.call.in_collective or activity.place.gpu_sync or activity.place.in_store_or_init)
    if activity.place.in_store_or_init:
        return True
    if not activity.call.in_collective:
        return False
    if any(stream.cut_short for stream in case.summaries[rank].streams):
        return True  # what it stands in may be among the entries that the file has lost
    if rank in case.outdated:
        return True  # it has called it since its dump was taken
    if not case.summaries[rank].streams:
        return True  # an NCCL communicator is made before its first operation is recorded
    name = activity.call.collective or ""
    if names_transfer(name) and not case.summaries[rank].pairs:
        return True
    if case.untold.intersection(case.summaries[rank].backends) and activity.progress.moving is not False:
        return False  # it may be in what it issued, and that may end
    makes_one = "nccl" in case.summaries[rank].backends
    if activity.progress.moving is False and (makes_one or _has_not_issued_it(case, rank)):
        # All that is recorded has completed: it makes another communicator, of a group or of two that send and receive
        # for the first time, which comes before the record.
        return True
    unnamed = not name or any(part in name.lower() for part in _UNRECORDED)
    return unnamed and may_hide_transfers(case.summaries[rank])


def _has_not_issued_it(case: Case, rank: int) -> bool:
    """True when it stands where the operation is handed to its group: torch compares the ranks' calls first, in a group
    of its own and by messages that no recorder holds, where TORCH_DISTRIBUTED_DEBUG is DETAIL."""
    stack = case.activity(rank).place.stack
    evidence = case.evidence.get(rank)
    if not stack or evidence is None or not code_origin(stack[0].filename).module.startswith("torch.distributed"):
        return False
    return hands_over(source_text(evidence.sources, stack[0]))


def may_wait(case: Case, rank: int, waiting: set[int]) -> bool:
    """gloo's Work.wait is a native call below a line of the job's own: nothing tells it from another lock."""
    activity = case.activity(rank)
    hidden = not case.recorded(rank) or may_hide_transfers(case.summaries[rank])
    return bool(
        hidden and rank not in waiting and activity.call.in_collective is None and activity.progress.moving is False
    )


def peers_by_hooks(case: Case, unrecorded: tuple[int, ...]) -> dict[int, int]:
    """Given ranks that wait so, return whom each waits for in a transfer of which only its hook tells, unless the
    other is inside it as well."""
    calls = {rank: call for rank in unrecorded if (call := case.activity(rank).call.named_call) and call.is_transfer}
    found = {}
    for rank, call in calls.items():
        if call.rank is None or call.rank == rank:
            continue
        other = calls.get(call.rank)
        sends = "send" in call.function
        if other is None or other.rank != rank or ("send" in other.function) == sends:
            found[rank] = call.rank
    return found


def apart_from_one_call(case: Case, unrecorded: tuple[int, ...], perhaps: tuple[int, ...]) -> list[int]:
    """Given ranks that wait so, and those that stand still in a native call which may be such a wait, where nothing is
    recorded: the one that is not in the call in which all others of the job stand; none where that is not so. Whatever
    it waits for in its native call, no other rank is about to send it anything. A lock of C was told to be undecided,
    after five minutes."""
    if len(perhaps) != 1 or case.unobserved or {*unrecorded, *perhaps} != set(case.observed):
        return []
    others = [case.activity(rank) for rank in unrecorded]
    if any(a.call.is_transfer or a.place.in_store_or_init or a.progress.moving is not False for a in others):
        return []
    if not all(a.call.in_collective and a.place.frame for a in others):
        return []
    if len({(a.call.collective, a.place.frame) for a in others}) != 1:
        return []
    (rank,) = perhaps
    stack, evidence = case.activity(rank).place.stack, case.evidence.get(rank)
    told = bool(stack) and evidence is not None and source_text(evidence.sources, stack[0]) is not None
    return [rank] if told else []  # a line that is not known may be a wait for the others' last call
