"""Whether a process has joined its job: init_process_group leaves traces before anything is recorded."""

from stallwatch.model.evidence import ANSWERED_WITHOUT_DUMP, RankEvidence, ThreadState

# Names as the kernel cuts them. torch starts these threads in the constructor of a process group.
_GROUP_THREADS = ("pt_nccl_", "pt_gloo_")


def has_joined(rank: RankEvidence) -> bool | None:
    """True when the process shows a process group, False when it was asked and has none, None when nothing tells.

    False may also be a process that has destroyed its groups: it counts only while nobody has communicated.
    """
    if any(is_of_group(thread) for look in rank.processes for thread in look.threads):
        return True
    if rank.recorders or any(beat.groups for beat in rank.heartbeat):
        return True  # the hook asks no recorder before torch.distributed is initialised
    asked = [attempt for attempt in rank.attempts if attempt.what == "flight_recorder" and attempt.answered]
    if asked and all(ANSWERED_WITHOUT_DUMP in attempt.detail for attempt in asked):
        return False
    return None


def is_of_group(thread: ThreadState) -> bool:
    return thread.name.startswith(_GROUP_THREADS)


def has_no_group_thread(rank: RankEvidence) -> bool:
    """True when the threads of the process are known and none belongs to a process group."""
    threads = [look.threads for look in rank.processes if look.threads]
    return bool(threads) and not any(is_of_group(thread) for look in threads for thread in look)
