"""Whose an event is: by its own mark, by the file that it stands in, by what launchers tell of local ranks and pids."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from stallwatch.formats.log_folders import of_path
from stallwatch.model.evidence import SHARED_LOG, LogEvent, RankEvidence


def gathered(ranks: Sequence[RankEvidence], loose: Iterable[LogEvent], nodes: int = 1) -> list[LogEvent]:
    """Given all that was read, and of how many nodes it is, return each event once, with its rank where anything tells
    it, in the order of files and lines. Ranks that share a log have each of its lines: one without a mark is nobody's.
    """
    found: dict[tuple[str, int, str, str], LogEvent] = {}
    shared = {rank.rank for rank in ranks if shares_its_log(rank)}
    for rank in ranks:
        for event in rank.log_events:
            if (
                event.rank is None
                and rank.rank not in shared
                and event.kind not in ("launcher_failure", "process_failed")
            ):
                event = msgspec.structs.replace(event, rank=rank.rank)
            source = "the ranks' log" if rank.rank in shared else event.source or f"rank {rank.rank}"
            found.setdefault((source, event.line, event.kind, event.text), event)
    for event in loose:
        found.setdefault((event.source, event.line, event.kind, event.text), event)
    events = sorted(found.values(), key=lambda e: (e.source, e.line, e.kind, -1 if e.rank is None else e.rank))
    return _by_group_rank(_by_local_rank(_with_folders(events), nodes))


def shares_its_log(rank: RankEvidence) -> bool:
    """Whether the rank writes into one log with others, so that a line tells no rank."""
    return any(attempt.what == "log" and attempt.detail == SHARED_LOG for attempt in rank.attempts)


def _by_group_rank(events: list[LogEvent]) -> list[LogEvent]:
    """torch before 2.2 writes only "[Rank 1]", which counts within the group: the whole job's, where nothing else is
    told and no rank waits in two places."""
    unmarked = [event for event in events if event.rank is None and event.group_rank is not None and not event.group]
    marked = any(event.rank is not None and event.group_rank not in (None, event.rank) for event in events)
    places: dict[int | None, set[tuple[int | None, str | None]]] = defaultdict(set)
    for event in unmarked:
        if event.kind == "collective_timeout":
            places[event.group_rank].add((event.seq, event.operation))
    if marked or any(len(found) > 1 for found in places.values()):
        return events
    known = {id(event) for event in unmarked}
    return [msgspec.structs.replace(event, rank=event.group_rank) if id(event) in known else event for event in events]


def owned_by_pid(kernel: Iterable[LogEvent], events: Iterable[LogEvent]) -> list[LogEvent]:
    """The kernel's lines about a process, with the rank that other logs know it as."""
    of_pid: dict[int, set[int]] = defaultdict(set)
    for event in events:
        if event.pid is not None and event.rank is not None:
            of_pid[event.pid].add(event.rank)
    owned = []
    for event in kernel:
        ranks = of_pid.get(event.pid, set()) if event.pid is not None else set()
        owned.append(msgspec.structs.replace(event, rank=next(iter(ranks))) if len(ranks) == 1 else event)
    return owned


def _with_folders(events: Iterable[LogEvent]) -> list[LogEvent]:
    placed = []
    for event in events:
        place = of_path(event.source)
        if place and event.rank is None and event.local_rank is None:
            event = msgspec.structs.replace(event, local_rank=place[1])
        placed.append(event)
    return placed


def _by_local_rank(events: list[LogEvent], nodes: int) -> list[LogEvent]:
    """Local ranks become ranks: by the summary of the same log, or of the only node that there is."""
    of_source: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    of_pid: dict[tuple[str, int], set[int]] = defaultdict(set)
    hosts: set[str] = set()
    for event in events:
        if event.rank is not None and event.local_rank is not None:
            of_source[event.source][event.local_rank].add(event.rank)
        if event.rank is not None and event.pid is not None:
            of_pid[event.source, event.pid].add(event.rank)
        if event.kind == "launcher_failure" and event.host:
            hosts.add(event.host)
    one_node = max(len(hosts), nodes) <= 1 and all(
        e.rank is None or e.local_rank is None or e.rank == e.local_rank for e in events
    )
    locals_seen = {event.local_rank for event in events if event.local_rank is not None}
    one_node = one_node and all(event.rank is None or event.rank <= max(locals_seen, default=0) for event in events)
    return [_resolved(event, of_source, of_pid, one_node=one_node) for event in events]


def _resolved(
    event: LogEvent,
    of_source: Mapping[str, Mapping[int, set[int]]],
    of_pid: Mapping[tuple[str, int], set[int]],
    *,
    one_node: bool,
) -> LogEvent:
    if event.rank is not None:
        return event
    ranks = of_source[event.source].get(event.local_rank, set()) if event.local_rank is not None else set()
    if not ranks and event.pid is not None:
        ranks = of_pid.get((event.source, event.pid), set())
    if not ranks and one_node and event.local_rank is not None:
        ranks = {event.local_rank}
    return msgspec.structs.replace(event, rank=next(iter(ranks))) if len(ranks) == 1 else event
