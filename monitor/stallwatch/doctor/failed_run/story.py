"""First cause and consequences: events of logs, pure. What the launcher or torch says first is not always the cause."""

from typing import NamedTuple

import msgspec

from stallwatch.doctor.failed_run.meaning import meaning, means_nothing, was_tried_again
from stallwatch.model.evidence import LogEvent

# What names a cause by itself, the strongest first. Everything below "exception" is what others saw of it.
_CAUSES: tuple[tuple[str, ...], ...] = (
    ("address_in_use",),
    ("gpu_xid", "gpu_lost"),
    (
        "out_of_memory",
        "memory_killed",
        "shared_memory",
        "dataloader_killed",
        "open_files",
        "locked_memory",
        "duplicate_gpu",
        "cuda_error",
        "native_crash",
        "node_failed",
        "evicted",
    ),
    ("collective_mismatch", "gloo_size_mismatch", "nccl_version_mismatch", "barrier_absent"),
    ("exception", "not_started", "native_exception"),
    ("cancelled",),
    ("nccl_no_interface", "name_unresolved", "hung_task", "pcie_error"),
    ("launcher_failure", "process_failed"),
    ("nccl_completion_error", "nccl_async_event", "nccl_connect"),
    ("gloo_connect", "init_timeout", "store_unreachable"),
    ("nccl_error",),
    ("heartbeat_stuck", "gil_clue"),
    ("collective_timeout", "gloo_timeout"),
    ("interrupted",),
)


class Told(NamedTuple):
    """An event, the log it stands in, and what it is taken as."""

    log: str
    event: LogEvent
    kind: str
    is_consequence: bool


def tell(events: list[tuple[str, LogEvent]]) -> tuple[Told, ...]:
    """Given events of all logs, return those worth telling, the first cause first, consequences after it."""
    read = [Told(log, event, *meaning(event, kind)) for log, event, kind in _merged(events) if not means_nothing(event)]
    told = _without_own_ends(_without_retries(read))
    worth = [one for one in told if one.kind not in ("group_status", "nccl_init_started", "nccl_init_complete")]
    causes = [one for one in worth if not one.is_consequence]
    first = min(causes, key=lambda one: _rank_of(one, causes), default=None)
    if first is None:
        return tuple(worth)
    return (first, *(one for one in worth if one is not first))


def _without_retries(told: list[Told]) -> list[Told]:
    """A port at which a second agent found the first one's store is no cause where something else is."""
    of_others = _until("exception") - {"address_in_use"}
    causes = [one for one in told if not one.is_consequence and not was_tried_again(one.event, one.kind)]
    if any(one.kind == "address_in_use" for one in causes) or not any(one.kind in of_others for one in causes):
        return told
    return [one._replace(is_consequence=True) if one.kind == "address_in_use" else one for one in told]


def _until(kind: str) -> frozenset[str]:
    at = next(at for at, kinds in enumerate(_CAUSES) if kind in kinds)
    return frozenset(one for kinds in _CAUSES[: at + 1] for one in kinds)


# What a process says before it ends itself by SIGABRT, the launcher's first failure or not.
_BEFORE_ABORT = frozenset(
    (
        "collective_timeout",
        "watchdog_end",
        "heartbeat_stuck",
        "cuda_error",
        "gloo_size_mismatch",
        "gil_clue",
        "gpu_xid",
        "native_exception",
    )
)


def _without_own_ends(told: list[Told]) -> list[Told]:
    """A rank that its own watchdog aborted is the first that torchrun sees to end, and only a waiting one; ranks that
    ended after it by themselves are no cause either."""
    aborts = [one.event for one in told if one.kind in _BEFORE_ABORT]

    def aborted_itself(event: LogEvent) -> bool:
        return event.exit_signal == 6 and any(one.rank in (None, event.rank) or event.rank is None for one in aborts)

    def has_told_why(event: LogEvent) -> bool:
        """An exit code says nothing where the process' own exception says why it left, be that its own or a peer's."""
        own = {event.rank} if event.rank is not None else {of_local.get(event.local_rank), None}
        return event.exit_signal is None and any(
            one.rank in own if one.rank is not None else one.local_rank in (None, event.local_rank) for one in raised
        )

    ends = [one for one in told if one.kind in ("launcher_failure", "process_failed")]
    of_local: dict[int | None, int | None]
    raised = [one.event for one in told if one.event.exception and "ChildFailedError" not in one.event.exception]
    # Of one node's agent; without its summary the numbers are the same, as in a job of one node.
    of_local = {event.local_rank: event.rank for event in raised if event.local_rank is not None}
    of_local |= {one.event.local_rank: one.event.rank for one in ends if one.event.rank is not None}
    first_aborted = any(one.event.first and aborted_itself(one.event) for one in ends)
    return [
        one._replace(is_consequence=True)
        if one in ends
        and (aborted_itself(one.event) or has_told_why(one.event) or (first_aborted and one.event.exit_signal is None))
        else one
        for one in told
    ]


def _merged(events: list[tuple[str, LogEvent]]) -> list[tuple[str, LogEvent, str]]:
    """An exception whose last line means more by itself comes as two events of one line: it is told once, as that."""
    others = {(log, event.line): event for log, event in events if event.kind != "exception"}
    exceptions = {(log, event.line) for log, event in events if event.kind == "exception"}
    merged = []
    for log, event in events:
        other = others.get((log, event.line))
        if event.kind == "exception" and other is not None:
            merged.append((log, msgspec.structs.replace(event, ranks=other.ranks), other.kind))
        elif event.kind == "exception" or (log, event.line) not in exceptions:
            merged.append((log, event, event.kind))
    return merged


def _rank_of(one: Told, causes: list[Told]) -> tuple[int, int, int]:
    """Order of causes: how much the kind says; then what torchrun saw first; then the place in the log."""
    strength = next((at for at, kinds in enumerate(_CAUSES) if one.kind in kinds), len(_CAUSES))
    event = one.event
    # A rank that was killed by a signal nobody sent on purpose (SIGKILL, SIGSEGV, SIGBUS) beats peers' exceptions.
    if one.kind == "launcher_failure" and event.exit_signal not in (None, 6, 15):
        strength = 3
    # torchrun names the first failure that it saw: an exception of that rank is the cause.
    first = [other.event for other in causes if other.event.first]
    is_first = any(
        event.rank == other.rank if event.rank is not None else event.local_rank == other.local_rank is not None
        for other in first
    )
    return strength, 0 if is_first else 1, event.line


def ranks_with(told: tuple[Told, ...], kind: str) -> tuple[int, ...]:
    return tuple(sorted({one.event.rank for one in told if one.kind == kind and one.event.rank is not None}))
