"""Whose a line is that tells a local rank only: by what launchers tell of the ranks of their nodes."""

from collections import defaultdict
from collections.abc import Mapping

import msgspec

from stallwatch.model.log_event import LogEvent


def by_local_rank(events: list[LogEvent], nodes: int) -> list[LogEvent]:
    """Local ranks become ranks: by the summary of the same log, or of the only node that there is."""
    of_source: dict[str, dict[int, dict[int, LogEvent]]] = defaultdict(lambda: defaultdict(dict))
    of_pid: dict[tuple[str, int], set[tuple[int, str]]] = defaultdict(set)
    hosts: dict[str, set[str]] = defaultdict(set)
    for event in events:
        if event.rank is not None and event.local_rank is not None:
            of_source[event.source][event.local_rank][event.rank] = event
        if event.rank is not None and event.pid is not None:
            of_pid[event.source, event.pid].add((event.rank, event.host or ""))
        if event.kind == "launcher_failure" and event.host:
            hosts[event.source].add(event.host)
    one_node = max(len(set().union(*hosts.values())), nodes) <= 1 and all(
        e.rank is None or e.local_rank is None or e.rank == e.local_rank for e in events
    )
    locals_seen = {event.local_rank for event in events if event.local_rank is not None}
    one_node = one_node and all(event.rank is None or event.rank <= max(locals_seen, default=0) for event in events)
    of_several = {source for source, named in hosts.items() if len(named) > 1}
    return [_resolved(event, of_source, of_pid, of_several, one_node=one_node) for event in events]


def _resolved(
    event: LogEvent,
    of_source: Mapping[str, Mapping[int, Mapping[int, LogEvent]]],
    of_pid: Mapping[tuple[str, int], set[tuple[int, str]]],
    of_several: set[str],
    *,
    one_node: bool,
) -> LogEvent:
    if event.rank is not None:
        return event
    known_as = of_source[event.source].get(event.local_rank, {}) if event.local_rank is not None else {}
    ranks = set(known_as)
    if event.source in of_several:
        ranks = {rank for rank, told in known_as.items() if _may_have_said(told, event)}
    if not ranks and event.pid is not None:
        known = of_pid.get((event.source, event.pid), set())
        ranks = {rank for rank, host in known if _may_be_on(host, event)}
    if not ranks and one_node and event.local_rank is not None:
        ranks = {event.local_rank}
    return msgspec.structs.replace(event, rank=next(iter(ranks))) if len(ranks) == 1 else event


def _may_have_said(told: LogEvent, event: LogEvent) -> bool:
    """Whether a rank may have written a line in a log of several nodes, by what its launcher told of its end: nothing
    below that, and no exception where a signal ended it."""
    if told.kind != "launcher_failure":
        return True
    return event.line < told.line and not (event.exception and told.exit_signal is not None)


def _may_be_on(host: str, event: LogEvent) -> bool:
    """Whether an event may be of that host: two addresses, or two names, that differ are not one. Ray's workers live in
    containers, which have the same pids on every node."""
    if not host or not event.host:
        return not host or event.kind != "actor_died"
    names = host, event.host
    if sum(name[:1].isdigit() for name in names) == 1:
        return True
    return len({name if name[:1].isdigit() else name.partition(".")[0] for name in names}) == 1
