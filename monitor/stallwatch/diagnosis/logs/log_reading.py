"""The one reading of an incident's logs: whose each line is, the kernels' among them, which attempt of the run it
tells of, what came first."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec
from msgspec.structs import replace

from stallwatch.diagnosis.logs.consequence import ENDED_NOTHING, SENT, means_nothing
from stallwatch.diagnosis.logs.first_cause import alike, only_warned, tell
from stallwatch.diagnosis.logs.local_ranks import by_local_rank
from stallwatch.diagnosis.logs.logged_failure import LoggedFailure
from stallwatch.diagnosis.logs.watchdog_reports import DEFAULT, GroupReading, read_groups
from stallwatch.formats.log_folders import of_path
from stallwatch.formats.log_progress import ends_any_process
from stallwatch.model.evidence import SHARED_LOG, NodeEvidence, RankEvidence
from stallwatch.model.kernel import KernelEvent
from stallwatch.model.log_event import PROCESS_ENDS, LogEvent

# Attempts of one run: launchers start all ranks again, and what ended an earlier attempt did not end the run.


# Written by the agent once an attempt of its ranks has failed; its header names the agent's process.
_AGENT = re.compile(r"^\[?[EWIF]\d{3,4} \S+ (?P<pid>\d+) ")
# To start ranks again takes an agent longer: they import torch and meet. Agents in containers may have one pid.
_ONE_ATTEMPT_SECONDS = 3.0
_SAYS_SO = (*PROCESS_ENDS, "terminated", "restarting")


def attempts(events: Sequence[LogEvent]) -> list[list[LogEvent]]:
    """Given events of all logs, return them by attempt, the last one last.

    A folder of torchrun's `--log-dir` tells the attempt. In another log each line of an agent that says how its ranks
    ended, but for that agent's last one, ends an attempt; or the line that says that it starts them again; and its last
    one, where ranks made steps after it.
    """
    by_source: dict[str, list[LogEvent]] = {}
    for event in events:
        by_source.setdefault(event.source, []).append(event)
    folders = {source: of_path(source) for source in by_source}
    ends = {source: _ends(of_source) for source, of_source in by_source.items()}
    last = max((folder[0] if folder else len(ends[source]) for source, folder in folders.items()), default=0)
    split: dict[int, list[LogEvent]] = {}
    for event in events:
        folder, own = folders[event.source], ends[event.source]
        # A log with fewer restarts than others is taken as that of the last attempts.
        number = folder[0] if folder else last - len(own) + sum(event.line > end for end in own)
        split.setdefault(number, []).append(event)
    return [split[number] for number in sorted(split)]


def _ends(events: Sequence[LogEvent]) -> list[int]:
    """Lines after which another attempt begins, in order."""
    restarts = [event.line for event in events if event.kind == "restarting"]
    said: dict[str, list[LogEvent]] = {}
    failures = [event.line for event in events if event.exception and event.rank is not None]
    words = [event for event in events if event.kind == "process_failed" and _AGENT.match(event.text)]
    hosts = _hosts(words, events)
    for event in words:
        agent = _AGENT.match(event.text)
        name = agent["pid"] if agent else ""
        while name in said and (
            _of_one_attempt(said[name][-1], event, failures) or _elsewhere(said[name], event, hosts)
        ):
            name += " of another container"
        said.setdefault(name, []).append(event)
    lines = {name: [event.line for event in own] for name, own in said.items()}
    most = max(map(len, lines.values()), default=0)
    # Agents of several nodes may write one log: an attempt has ended when the last of them has said so.
    by_agents = [max(of[-1 - before] for of in lines.values() if len(of) > before) for before in range(most - 1, 0, -1)]
    ends = by_agents if len(by_agents) > len(restarts) else restarts
    if len(by_agents) == len(restarts):  # a run that gave up said more behind its agent's word
        ends = [max(both) for both in zip(by_agents, restarts, strict=True)]
    return [*ends, *_before_steps(events, ends)]


def _before_steps(events: Sequence[LogEvent], ends: Sequence[int]) -> list[int]:
    """The line that ended the attempt before the one whose steps are told last, where that one has failed in nothing
    yet; [] where none is, or `ends` holds it."""
    steps = max((event.line for event in events if event.kind == "steps_again"), default=0)
    last = max((event.line for event in events if event.kind in _SAYS_SO and event.line < steps), default=0)
    return [last] if last > max(ends, default=0) else []


def _hosts(words: Sequence[LogEvent], events: Sequence[LogEvent]) -> dict[int, frozenset[str]]:
    """On which hosts the processes ran that an agent lists behind its word, by that word's line; an agent that starts
    its ranks again lists none."""
    found = {word.line: frozenset[str]() for word in words}
    last: int | None = None
    for event in events:
        if event.line in found:
            last = event.line
        elif event.kind == "launcher_failure" and event.host and last is not None:
            found[last] |= {event.host}
    return found


def _elsewhere(said: Sequence[LogEvent], word: LogEvent, hosts: Mapping[int, frozenset[str]]) -> bool:
    """Whether the agent that said this lists processes of another node than the one that said those before."""
    before = frozenset[str]().union(*(hosts[event.line] for event in said))
    return bool(before and hosts[word.line] and not before & hosts[word.line])


def _of_one_attempt(event: LogEvent, later: LogEvent, failures: Sequence[int]) -> bool:
    """Two agents' words on one end: no time to start again in between, and no rank has failed anew."""
    if any(event.line < line < later.line for line in failures):
        return False
    timed = event.at_seconds is not None and later.at_seconds is not None and event.utc == later.utc
    return timed and (later.at_seconds or 0.0) - (event.at_seconds or 0.0) < _ONE_ATTEMPT_SECONDS


# What kernels' logs tell, as events among those of other logs. Their clock is no measure for other logs' times.


_KINDS: Final = {
    "xid": "gpu_xid",
    "sxid": "gpu_xid",
    "off_bus": "gpu_lost",
    "oom_kill": "memory_killed",
    "hung_task": "hung_task",
    "pcie_error": "pcie_error",
    "link_down": "link_down",
    "adapter_error": "adapter_error",
    "gpu_reset": "gpu_unreachable",
    "storage_silent": "storage_silent",
}


def kernel_events(nodes: Iterable[NodeEvidence]) -> list[LogEvent]:
    """Given nodes, return what their kernels told, without what is no outage."""
    return [_event(event, node.host) for node in nodes for event in node.kernel_events if is_outage(event)]


def is_outage(event: KernelEvent) -> bool:
    """Whether a kernel event means that a device has failed, not that an error was corrected."""
    if event.kind == "pcie_error":
        return event.corrected is False
    return event.fatal is not False


def _event(event: KernelEvent, host: str) -> LogEvent:
    return LogEvent(
        kind=_KINDS[event.kind],
        text=event.text,
        line=event.line,
        host=host,
        device=event.pci_bus_id or event.device,
        message=str(event.xid) if event.xid is not None else event.process,
        pid=event.pid,
        at=event.at,
        secondary=event.caused_by_xid is not None,
        source=event.source,
    )


# Whose an event is: by its own mark, by the file that it stands in, by what launchers tell of local ranks and pids.


def gathered(ranks: Sequence[RankEvidence], loose: Iterable[LogEvent], nodes: int = 1) -> list[LogEvent]:
    """Given all that was read, and of how many nodes it is, return each event once, with its rank where anything tells
    it, in the order of files and lines. Ranks that share a log have each of its lines: one without a mark is nobody's.
    """
    found: dict[tuple[str, int, str, str], LogEvent] = {}
    shared = {rank.rank for rank in ranks if shares_its_log(rank)}
    for rank in ranks:
        for event in rank.log_events:
            if event.rank is None and rank.rank not in shared and event.kind not in PROCESS_ENDS:
                event = msgspec.structs.replace(event, rank=rank.rank)
            source = "the ranks' log" if rank.rank in shared else event.source or f"rank {rank.rank}"
            found.setdefault((source, event.line, event.kind, event.text), event)
    for event in loose:
        found.setdefault((event.source, event.line, event.kind, event.text), event)
    events = sorted(found.values(), key=lambda e: (e.source, e.line, e.kind, -1 if e.rank is None else e.rank))
    return _by_group_rank(by_local_rank(_with_folders(events), nodes))


def shares_its_log(rank: RankEvidence) -> bool:
    """Whether the rank writes into one log with others, so that a line tells no rank."""
    return any(attempt.what == "log" and attempt.detail == SHARED_LOG for attempt in rank.attempts)


def _by_group_rank(events: list[LogEvent]) -> list[LogEvent]:
    """torch before 2.2 writes only "[Rank 1]", which counts within the group: the whole job's, where nothing else is
    told and no rank waits in two places. What is thrown later, and passed on by Ray, has no mark either, and names the
    group that each of Ray's several jobs calls so: of one job where its actors are of one class, and all of it is one
    wait."""
    unmarked = [
        event
        for event in events
        if event.rank is None and event.group_rank is not None and event.group in (None, *DEFAULT)
    ]
    marked = any(event.rank is not None and event.group_rank not in (None, event.rank) for event in events)
    places: dict[int | None, set[tuple[int | None, str | None]]] = defaultdict(set)
    for event in unmarked:
        if event.kind == "collective_timeout":
            places[event.group_rank].add((event.seq, event.operation))
    named = {place for event in unmarked if event.group is not None for place in places.get(event.group_rank, ())}
    jobs = {event.group_id for event in unmarked if event.group is not None}
    if marked or any(len(found) > 1 for found in places.values()) or len(named) > 1 or len(jobs) > 1:
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


class LogReading:
    """Read-only. `told` is what the last attempt's logs tell, the first cause first; `earlier` the same of attempts
    before it, oldest first; `events` all events of the last attempt, in the order of files and lines."""

    def __init__(self, by_attempt: Sequence[Sequence[LogEvent]], kernel: Sequence[LogEvent]) -> None:
        self.events: tuple[LogEvent, ...] = (*(by_attempt[-1] if by_attempt else ()), *kernel)
        self._has_attempts = len(by_attempt) > 1
        self.told: tuple[LoggedFailure, ...] = tell(self.events)
        self.earlier: tuple[tuple[LoggedFailure, ...], ...] = tuple(
            told for events in by_attempt[:-1] if (told := tell(events))
        )

    def of_last_attempt(self, ranks: Sequence[RankEvidence]) -> tuple[RankEvidence, ...]:
        """The ranks without what their logs tell of attempts before the last one."""
        if not self._has_attempts:
            return tuple(ranks)
        last = {(event.source, event.line) for event in self.events}
        return tuple(
            replace(rank, log_events=tuple(event for event in rank.log_events if (event.source, event.line) in last))
            for rank in ranks
        )

    @property
    def only_warned(self) -> bool:
        """The first cause is a warning of what was tried again, and nothing tells that it failed for good."""
        return only_warned(self.told)

    @property
    def first(self) -> LoggedFailure | None:
        """The first cause; None where the logs tell none, or only consequences."""
        return self.told[0] if self.told and not self.told[0].consequence else None

    @cached_property
    def causes(self) -> tuple[LoggedFailure, ...]:
        """The first cause and the same failure of other ranks, by rank."""
        return tuple(sorted(alike(self.told), key=lambda one: -1 if one.rank is None else one.rank))

    @cached_property
    def groups(self) -> tuple[GroupReading, ...]:
        """What watchdogs tell of each process group."""
        return read_groups(self.events)

    @property
    def ended_well(self) -> bool:
        """Nothing but what a job prints that has ended by itself, and not that alone: torch says that a process ends
        behind an exception, too, which stood before."""
        said = [event for event in self.events if event.kind == "clean_end"]
        ends = any(
            event.line > sum(other.source == event.source and other.line <= event.line for other in said)
            or not ends_any_process(event)
            for event in said
        )
        harmless = all(
            one.consequence in ENDED_NOTHING or (one.kind == "store_closed" and one.event.text.startswith("[W"))
            for one in self.told
        )
        return ends and harmless and not self.unrecognised

    @cached_property
    def ended_together(self) -> tuple[int, ...]:
        """All ranks from the first to the last, where one signal that somebody sent ended all of them at one time and
        nothing else is told; else ()."""
        launchers_own = ("exception", "killing", "terminated")  # what it raised itself, and what it did then
        told = [
            one for one in self.told if one.rank is not None or one.kind not in launchers_own or not one.consequence
        ]
        ends = {(one.event.exit_signal, one.event.at) for one in told}
        ranks = sorted(rank for one in told for rank in ((one.rank,) if one.rank is not None else one.event.ranks))
        by_signal = len(ends) == 1 and next(iter(ends))[0] in SENT
        whole = len(ranks) > 1 and ranks == list(range(len(ranks)))
        only_ends = all(one.kind in PROCESS_ENDS and "RUNNING AT" not in one.event.text for one in told)
        return tuple(ranks) if by_signal and whole and only_ends else ()

    @property
    def unrecognised(self) -> tuple[LogEvent, ...]:
        """Lines that look like errors, where nothing in a log is known."""
        return tuple(event for event in self.events if event.kind in ("error_like", "last_line"))

    @property
    def says_something(self) -> bool:
        """Whether any line has a meaning here."""
        return bool(self.told or self.earlier) or any(not means_nothing(event) for event in self.events)

    def of_kind(self, *kinds: str) -> list[LoggedFailure]:
        """The failures of these kinds, the first cause first."""
        return [one for one in self.told if one.kind in kinds]


def read_logs(
    ranks: Iterable[RankEvidence],
    loose: Iterable[LogEvent] = (),
    nodes: Iterable[NodeEvidence] = (),
    log_nodes: int = 1,
) -> LogReading:
    """Given ranks with the events of their logs, events of other logs, nodes with their kernels' logs, in any order,
    and of how many nodes the logs are, return what they tell."""
    ranks = sorted(ranks, key=lambda rank: rank.rank)
    events = gathered(ranks, loose, log_nodes)
    kernel = kernel_events(sorted(nodes, key=lambda node: node.host))
    kernel = [event for event in kernel if not _is_anothers_kill(event, ranks, events)]
    return LogReading(attempts(events), owned_by_pid(kernel, events))


def _is_anothers_kill(event: LogEvent, ranks: Sequence[RankEvidence], events: Sequence[LogEvent]) -> bool:
    """A kill of a process that is none of the node's known ranks, and in no log: a kernel's log reaches back months."""
    if event.kind != "memory_killed" or event.pid is None or any(one.pid == event.pid for one in events):
        return False
    pids = {rank.pid for rank in ranks if rank.host == event.host}
    return bool(pids) and None not in pids and event.pid not in pids


# A log outlives a process: after a launcher's restart, one file holds the former lives of the job, too.
_DEATHS = frozenset({*PROCESS_ENDS, "terminated"})


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


NOTHING_READ = read_logs(())
