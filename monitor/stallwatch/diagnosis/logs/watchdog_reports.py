"""What watchdogs print of each process group: who waited in which operation, and how far each member had come.

"last enqueued" and the operation of one number of one group are comparable between ranks: enqueued below the number
that others wait in proves that the rank never came, without any vote.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from stallwatch.diagnosis.logs.consequence import is_of_several
from stallwatch.formats.log_head import WATCHDOGS_WORDS
from stallwatch.formats.operation_names import operation_name
from stallwatch.formats.rank_ranges import named_ranks
from stallwatch.model.evidence import CodeFrame
from stallwatch.model.log_event import PROCESS_ENDS, LogEvent

UNTOLD = 0  # the number of a wait whose watchdog names its group alone (nccl2's); operations count from 1
DEFAULT = ("default_pg", "0", "")
_ONE_WAIT_SECONDS = 2.0  # between the watchdogs of ranks that entered one collective
_AFTER_WATCHDOGS = (*PROCESS_ENDS, "terminated", "restarting", "killing", "heartbeat_stuck")
_MOST_PLACES = 4  # that one sentence tells
_JOIN_LINES = 12  # between a time-out and the line that names its group


class Waiter(NamedTuple):
    """One rank's time-out in a collective, as its watchdog printed it. Sizes are elements."""

    rank: int
    seq: int
    operation: str
    numel_in: int | None
    numel_out: int | None
    frame: CodeFrame | None
    event: LogEvent


class GroupReading:
    """Of one process group: `waiters` by rank, the last `enqueued` and `completed` number by rank."""

    def __init__(self, name: str, key: tuple[str, str]) -> None:
        self.name = name
        self.key = key
        self.waiters: dict[int, Waiter] = {}
        self.enqueued: dict[int, int] = {}
        self.completed: dict[int, int] = {}
        self.places: dict[int, set[int]] = defaultdict(set)  # rank within the group: global ranks that said so
        self.sources: dict[str, set[int]] = defaultdict(set)
        self.comparable = True
        self.goes_on = False  # a log tells more than the waits, before and after: what others had to say is in it
        self.begins = False  # that log begins with the waits: it is whole, or cut between the words of two ranks
        self.written: frozenset[int] = frozenset()  # by whom such a log has any word of a watchdog
        self.folded = False  # a log keeps no more than a count of what some ranks wrote
        self.broke = False  # by an error of a communicator: at once, and for each rank in its own time

    @property
    def is_default(self) -> bool:
        """Whether it is the group that init_process_group makes."""
        return self.name in DEFAULT

    @property
    def heard(self) -> tuple[int, ...]:
        """Ranks that printed anything of the group, ascending."""
        return tuple(sorted({*self.waiters, *self.enqueued}))

    @property
    def waited(self) -> int | None:
        """The lowest number that somebody waits in."""
        return min((waiter.seq for waiter in self.waiters.values()), default=None)

    @property
    def waited_in_vain(self) -> int | None:
        """The lowest number in which somebody's time ran out: not where its communicator broke."""
        return min((w.seq for w in self.waiters.values() if w.event.kind != "collective_broke"), default=None)

    @property
    def size(self) -> int | None:
        """How many members it has, by an operation whose result is as large as all its parts."""
        sizes = {size for waiter in self.waiters.values() if (size := _size(waiter))}
        return sizes.pop() if len(sizes) == 1 else None

    def members(self, world: Sequence[int]) -> tuple[tuple[int, ...], bool]:
        """The members as far as the text tells them, and whether their number is known."""
        size = self.size
        places = {next(iter(ranks)): place for place, ranks in self.places.items() if len(ranks) == 1}
        if self.is_default:
            if size:
                return tuple(range(size)), True
            top = max((*self.heard, *(self.places or ())), default=-1)
            return tuple(sorted({*range(top + 1), *world})), bool(world)
        # Members are mostly evenly spaced: where those that are heard lie so, the gaps between them are members.
        heard = sorted(self.heard)
        steps = {
            (after - before) / (places[after] - places[before])
            for before, after in pairwise(heard)
            if before in places and after in places and places[after] != places[before]
        }
        if len(steps) != 1 or not places or (step := steps.pop()) < 1 or step != int(step):
            return tuple(heard), False
        first = heard[0] - places[heard[0]] * int(step)
        last = size if size else places[heard[-1]] + 1
        return tuple(first + int(step) * place for place in range(last)), bool(size)

    def absent(self) -> tuple[int, ...]:
        """Who had not enqueued the number that others waited in in vain. Where a communicator broke at once, who had
        not come yet may have been on its way."""
        waited = self.waited_in_vain
        if waited is None or not self.comparable:
            return ()
        return tuple(sorted(rank for rank, last in self.enqueued.items() if last < waited and rank not in self.waiters))


def read_groups(events: Sequence[LogEvent]) -> tuple[GroupReading, ...]:
    """Given events with their ranks, in the order of files and lines, return what they tell of each process group."""
    groups: dict[tuple[str, str], GroupReading] = {}
    stacks = _stacks(events)
    for place, event in enumerate(events):
        if event.kind not in ("collective_timeout", "collective_broke", "group_status"):
            continue
        rank = event.rank
        if rank is None:
            continue
        named = event if event.group is not None else _named_later(events, place)
        key = (named.group_id or "", named.group or "") if named is not None else ("", "")
        group = groups.setdefault(key, GroupReading(key[1], key))
        group.sources[event.source].add(rank)
        group.broke |= event.kind == "collective_broke"
        group.folded |= is_of_several(event)
        group_rank = event.group_rank if event.group_rank is not None else (named.group_rank if named else None)
        if group_rank is not None:
            group.places[group_rank].add(rank)
        if event.kind == "group_status":
            _take_status(group, rank, event)
        elif event.seq is not None or event.group is not None:
            _take_wait(group, rank, event, stacks)
    for group in groups.values():
        group.comparable = _is_one_group(group, groups)
        logs = [source for source in sorted(group.sources) if _goes_on(group, events, source)]
        words = [e for e in events if e.source in logs and e.kind in (*WATCHDOGS_WORDS, "heartbeat_stuck")]
        group.goes_on, group.begins = bool(logs), any(event.before == "nothing" for event in words)
        group.written = frozenset(event.rank for event in words if event.rank is not None)
    return tuple(groups[key] for key in sorted(groups))


def places_of(groups: Iterable[GroupReading]) -> str:
    """Where each rank waits, "rank 0 in all_gather number 5, ranks 1-3 in broadcast number 3 of group dp"; "" where all
    wait in one call, or nobody is known to."""
    ranks: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    for group in groups:
        for waiter in group.waiters.values():
            ranks["" if group.is_default else group.name, waiter.seq, waiter.operation].append(waiter.rank)
    if len(ranks) < 2:
        return ""
    said = [
        f"{named_ranks(sorted(who))} in {operation_name(operation) or 'a call'}"
        f"{f' number {seq}' if seq != UNTOLD else ''}{f' of group {name}' if name else ''}"
        for (name, seq, operation), who in sorted(ranks.items(), key=lambda item: min(item[1]))
    ]
    return ", ".join(said[:_MOST_PLACES]) + (f", {len(said) - _MOST_PLACES} more" if len(said) > _MOST_PLACES else "")


def _goes_on(group: GroupReading, events: Iterable[LogEvent], source: str) -> bool:
    """Whether this log does not begin within what watchdogs wrote, and was written on for a while after the last that
    waited had said so: ranks that wait for one another say so within moments, and a text that was cut in these lacks
    some."""
    waits = [waiter.event for waiter in group.waiters.values() if waiter.event.source == source]
    if not waits or any(event.before == "rest" for event in waits):
        return False
    last = max(event.line for event in waits)
    at = max((event.at_seconds for event in waits if event.at_seconds is not None), default=None)
    for event in events:
        if event.source != source or event.line <= last:
            continue
        if event.kind in _AFTER_WATCHDOGS:
            return True
        if at is not None and event.at_seconds is not None and event.at_seconds > at + _ONE_WAIT_SECONDS:
            return True
    return False


def _take_status(group: GroupReading, rank: int, event: LogEvent) -> None:
    if event.enqueued is not None:
        group.enqueued[rank] = min(event.enqueued, group.enqueued.get(rank, event.enqueued))
    if event.completed is not None:
        group.completed[rank] = max(event.completed, group.completed.get(rank, event.completed))
    if event.seq is not None and event.seq > 0 and rank not in group.waiters:
        group.waiters[rank] = Waiter(rank, event.seq, "", None, None, None, event)


def _take_wait(
    group: GroupReading, rank: int, event: LogEvent, stacks: dict[tuple[str, int | None], list[LogEvent]]
) -> None:
    seq, operation = (UNTOLD, "UNKNOWN") if event.seq is None else (event.seq, event.operation or "")
    before = group.waiters.get(rank)
    if before is not None and before.operation and before.seq <= seq:
        return  # the first is the one it stands in; torch prints it again as it ends
    own = [stack for stack in stacks.get((event.source, event.rank), ()) if stack.line >= event.line]
    frame = own[0].frame if own else None
    group.waiters[rank] = Waiter(rank, seq, operation, event.numel_in, event.numel_out, frame, event)


def _stacks(events: Iterable[LogEvent]) -> dict[tuple[str, int | None], list[LogEvent]]:
    found: dict[tuple[str, int | None], list[LogEvent]] = defaultdict(list)
    for event in events:
        if event.kind == "failed_stack":
            found[event.source, event.rank].append(event)
    return found


def _named_later(events: Sequence[LogEvent], place: int) -> LogEvent | None:
    """The line of the same rank and number that names the group: torch 2.2 and later print it next, the last one as
    they end, where the time-out is repeated behind the group's name."""
    event = events[place]
    for later in events[place + 1 :]:
        if later.source != event.source or later.line > event.line + 100 * _JOIN_LINES:
            break
        named = later.kind in ("group_status", "collective_timeout") and later.group is not None
        if named and (later.rank, later.seq, later.group_rank) == (event.rank, event.seq, event.group_rank):
            return later
    return None


def _is_one_group(group: GroupReading, groups: dict[tuple[str, str], GroupReading]) -> bool:
    """Whether what was read under one name is of one group: no two ranks have one place in it. Without a name all ranks
    must have the place of their number."""
    if any(len(ranks) > 1 for ranks in group.places.values()):
        return False
    if group.key == ("", ""):
        return all(ranks == {place} for place, ranks in group.places.items()) and len(groups) == 1
    return True


def _size(waiter: Waiter) -> int | None:
    small, large = sorted((waiter.numel_in or 0, waiter.numel_out or 0))
    if waiter.operation.strip("_") in ("ALLGATHER_BASE", "ALLGATHER", "REDUCE_SCATTER_BASE", "REDUCE_SCATTER"):
        return large // small if small and large % small == 0 and large > small else None
    return None
