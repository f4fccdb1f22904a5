"""Whose reading and writing counts as progress of a rank: a thread that waits by itself, for what the kernel gives it
or for a lock that another keeps, gets nothing by what others of its process read and write (a recorder, a
prefetcher)."""

from collections.abc import Collection

from stallwatch.diagnosis.activity.blocking_location import AT_A_BARRIER_OF_PROCESSES, BlockingLocation
from stallwatch.diagnosis.activity.kernel_waits import KernelWait, kernel_wait
from stallwatch.diagnosis.activity.threads import RankLook, ThreadLook, brings_results, carries_collectives

# Calls that end when a descriptor of its own, or the kernel, has something. Another thread may end any other wait: it
# sets an event, or what a loop looks at that sleeps.
_BY_ITSELF: frozenset[KernelWait | None] = frozenset({
    "poll", "socket", "pipe", "pipe_write", "terminal", "file", "file_lock", "semaphore",
})  # fmt: skip
_PLAIN_LOCK = "waits for a lock"  # neither an event nor a queue, nor what a native library waits for


def waits_by_itself(kernel: ThreadLook, standing: BlockingLocation) -> bool:
    """Whether no other thread of its process ends its wait by what it reads or writes."""
    wait = kernel_wait(kernel.wchan, kernel.state, kernel.waits_on)
    return wait in _BY_ITSELF or (wait == "futex" and standing.detail in (_PLAIN_LOCK, AT_A_BARRIER_OF_PROCESSES))


def moved_bytes(look: RankLook, own_id: int | None, awaited: Collection[int]) -> int | None:
    """What a thread has read and written so far, with those that it waits for, those that bring results of worker
    processes, and those in which neither Python nor a collective runs (they work for whoever called them); None: not
    known."""
    if look.process is None or not look.process.threads or own_id is None:
        return None
    others = {
        thread.os_thread_id
        for thread in look.threads
        if thread.os_thread_id not in (own_id, None, *awaited) and not brings_results(thread)
    }
    own = (t for t in look.process.threads if t.tid == own_id or not (t.tid in others or carries_collectives(t)))
    counts = [thread.moved_bytes for thread in own]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None
