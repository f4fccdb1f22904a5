"""The one reading of an incident's logs: whose each line is, which attempt it tells of, what came first."""

from collections.abc import Iterable, Sequence
from functools import cached_property

from msgspec.structs import replace

from stallwatch.diagnosis.logs.attempts import attempts
from stallwatch.diagnosis.logs.collectives import GroupReading, read_groups
from stallwatch.diagnosis.logs.consequence import ENDED_NOTHING, means_nothing
from stallwatch.diagnosis.logs.first_cause import alike, only_warned, tell
from stallwatch.diagnosis.logs.kernel import kernel_events
from stallwatch.diagnosis.logs.owners import gathered, owned_by_pid
from stallwatch.diagnosis.logs.told import Told
from stallwatch.model.evidence import LogEvent, NodeEvidence, RankEvidence

_SENT = (9, 15)  # SIGKILL, SIGTERM: signals that somebody sends


class LogReading:
    """Read-only. `told` is what the last attempt's logs tell, the first cause first; `earlier` the same of attempts
    before it, oldest first; `events` all events of the last attempt, in the order of files and lines."""

    def __init__(self, by_attempt: Sequence[Sequence[LogEvent]], kernel: Sequence[LogEvent]) -> None:
        self.events: tuple[LogEvent, ...] = (*(by_attempt[-1] if by_attempt else ()), *kernel)
        self._has_attempts = len(by_attempt) > 1
        self.told: tuple[Told, ...] = tell(self.events)
        self.earlier: tuple[tuple[Told, ...], ...] = tuple(told for events in by_attempt[:-1] if (told := tell(events)))

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
    def first(self) -> Told | None:
        """The first cause; None where the logs tell none, or only consequences."""
        return self.told[0] if self.told and not self.told[0].consequence else None

    @cached_property
    def causes(self) -> tuple[Told, ...]:
        """The first cause and the same failure of other ranks, by rank."""
        return tuple(sorted(alike(self.told), key=lambda one: -1 if one.rank is None else one.rank))

    @cached_property
    def groups(self) -> tuple[GroupReading, ...]:
        """What watchdogs tell of each process group."""
        return read_groups(self.events)

    @property
    def ended_well(self) -> bool:
        """Nothing but what a job prints that has ended by itself."""
        ends = any(event.kind in ("clean_end", "store_closed") for event in self.events)
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
        by_signal = len(ends) == 1 and next(iter(ends))[0] in _SENT
        whole = len(ranks) > 1 and ranks == list(range(len(ranks)))
        only_ends = all(one.kind in ("launcher_failure", "process_failed") for one in told)
        return tuple(ranks) if by_signal and whole and only_ends else ()

    @property
    def unrecognised(self) -> tuple[LogEvent, ...]:
        """Lines that look like errors, where nothing in a log is known."""
        return tuple(event for event in self.events if event.kind in ("error_like", "last_line"))

    @property
    def says_something(self) -> bool:
        """Whether any line has a meaning here."""
        return bool(self.told) or any(not means_nothing(event) for event in self.events)

    def of_kind(self, *kinds: str) -> list[Told]:
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
    events = gathered(sorted(ranks, key=lambda rank: rank.rank), loose, log_nodes)
    kernel = kernel_events(sorted(nodes, key=lambda node: node.host))
    return LogReading(attempts(events), owned_by_pid(kernel, events))


# A log outlives a process: after a launcher's restart, one file holds the former lives of the job, too.
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


NOTHING_READ = read_logs(())
