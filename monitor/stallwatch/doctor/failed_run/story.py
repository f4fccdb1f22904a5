"""First cause and consequences: events of logs, pure. What the launcher or torch says first is not always the cause."""

from typing import NamedTuple

import msgspec

from stallwatch.formats.xid import FABRIC_FAULTS, GPU_FAULTS
from stallwatch.model.evidence import LogEvent

# What names a cause by itself, the strongest first. Everything below "exception" is what others saw of it.
_CAUSES: tuple[tuple[str, ...], ...] = (
    ("address_in_use",),
    ("gpu_xid",),
    (
        "out_of_memory",
        "memory_killed",
        "shared_memory",
        "dataloader_killed",
        "open_files",
        "duplicate_gpu",
        "cuda_error",
    ),
    ("collective_mismatch", "gloo_size_mismatch", "nccl_version_mismatch", "barrier_absent"),
    ("exception",),
    ("cancelled",),
    ("launcher_failure", "process_failed"),
    ("nccl_completion_error", "nccl_async_event"),
    ("gloo_connect", "init_timeout", "store_unreachable"),
    ("heartbeat_stuck", "gil_clue"),
    ("collective_timeout", "gloo_timeout"),
)
# Exceptions that tell what another rank's death or absence did to this one.
_OF_OTHERS = (
    "connection closed by peer", "connection reset by peer", "broken pipe", "timed out waiting", "socket timeout",
    "watchdog", "nccl communicator was aborted", "childfailederror", "signalexception", "distnetworkerror",
    "failed to recv", "store", "remote process exited",
)  # fmt: skip
_FAULTS = GPU_FAULTS | FABRIC_FAULTS
_ADDRESS_IN_USE = ("address already in use", "eaddrinuse")
_OUT_OF_MEMORY = ("out of memory", "outofmemoryerror")


class Told(NamedTuple):
    """An event, the log it stands in, and what it is taken as."""

    log: str
    event: LogEvent
    kind: str
    is_consequence: bool


def tell(events: list[tuple[str, LogEvent]]) -> tuple[Told, ...]:
    """Given events of all logs, return those worth telling, the first cause first, consequences after it."""
    told = _without_own_ends([_read(log, event, kind) for log, event, kind in _merged(events)])
    worth = [one for one in told if one.kind not in ("group_status", "nccl_init_started", "nccl_init_complete")]
    causes = [one for one in worth if not one.is_consequence]
    first = min(causes, key=lambda one: _rank_of(one, causes), default=None)
    if first is None:
        return tuple(worth)
    return (first, *(one for one in worth if one is not first))


# What a process says before it ends itself by SIGABRT, the launcher's first failure or not.
_BEFORE_ABORT = frozenset(
    ("collective_timeout", "watchdog_end", "heartbeat_stuck", "cuda_error", "gloo_size_mismatch", "gil_clue", "gpu_xid")
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


def _read(log: str, event: LogEvent, kind: str) -> Told:
    text = f"{event.exception or ''} {event.message or ''} {event.text}".lower()
    if kind in ("exception", "cuda_error"):
        if any(words in text for words in _ADDRESS_IN_USE):
            kind = "address_in_use"
        elif any(words in text for words in _OUT_OF_MEMORY):
            kind = "out_of_memory"
        elif any(words in text for words in _OF_OTHERS):
            return Told(log, event, kind, is_consequence=True)
    if kind == "duplicate_gpu" or (kind == "exception" and "duplicate gpu detected" in text):
        return Told(log, event, "duplicate_gpu", is_consequence=False)
    if kind == "gpu_xid":
        number = int((event.message or "0").partition(",")[0])
        return Told(log, event, kind, is_consequence="SXid" not in event.text and number not in _FAULTS)
    if kind in ("launcher_failure", "process_failed") and _ended_by_others(event):
        return Told(log, event, kind, is_consequence=True)
    return Told(log, event, kind, is_consequence=event.secondary)


def _ended_by_others(event: LogEvent) -> bool:
    """SIGTERM is the launcher's, SIGABRT the watchdog's, unless the launcher calls it the first failure."""
    return event.exit_signal in (6, 15) and not event.first


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
