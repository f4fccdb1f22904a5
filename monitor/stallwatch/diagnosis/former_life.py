"""A log outlives a process: after a launcher's restart, one file holds the former lives of the job, too."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from stallwatch.model.evidence import LogEvent, RankEvidence

_DEATHS = frozenset({"launcher_failure", "process_failed", "terminated"})


def of_this_life(ranks: Sequence[RankEvidence]) -> tuple[RankEvidence, ...]:
    """Return the ranks without log events of a life that ended: what a log says up to its last report of the death of
    a process that is none of ours. Nothing is dropped where not every rank's pid is known as its log would call it."""
    pids: set[int] = set()
    for rank in ranks:
        own = _pids(rank)
        if not own:
            return tuple(ranks)
        pids |= own
    return tuple(replace(rank, log_events=_later(rank.log_events, pids)) for rank in ranks)


def _later(events: Iterable[LogEvent], pids: set[int]) -> tuple[LogEvent, ...]:
    events = tuple(events)
    foreign = [e.line for e in events if e.kind in _DEATHS and e.pid is not None and e.pid not in pids]
    last = max(foreign, default=-1)
    return tuple(event for event in events if event.line > last)


def _pids(rank: RankEvidence) -> set[int]:
    """Every number that its log may know it by: a container's own, and ours."""
    inner = {beat.pid for beat in rank.heartbeat if not beat.is_child}
    inner |= {look.namespace_pid for look in rank.processes if look.namespace_pid is not None}
    if not inner:
        return set()
    return inner | {look.pid for look in rank.processes if look.pid is not None} | ({rank.pid} if rank.pid else set())
