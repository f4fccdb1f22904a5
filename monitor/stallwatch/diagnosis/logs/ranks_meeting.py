"""The start of a job by its logs: who did not come to the ranks' meeting, and what does not fit together there."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from stallwatch.diagnosis.logs.log_reading import LogReading
from stallwatch.formats.rank_ranges import named_ranks, rank_ranges
from stallwatch.model.log_event import LogEvent
from stallwatch.model.verdict import Fact

_INIT = ("init_timeout", "init_waiting")


class Missing(NamedTuple):
    """Ranks that did not come while others waited for them."""

    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    at_rendezvous: bool  # False: they came to init_process_group, and not to what was called next
    operation: str
    facts: tuple[Fact, ...]


def who_is_missing(logs: LogReading) -> Missing | None:
    """Given what logs tell, return the ranks that others waited for at the start, where the text proves them."""
    if any(one.kind == "collective_timeout" for one in logs.told):
        return None  # the job had communicated
    return _by_store_keys(logs) or _by_count(logs)


def _by_store_keys(logs: LogReading) -> Missing | None:
    """Ranks name whom they wait for: the one that writes NCCL's id, or a key of gloo."""
    waits: dict[int, list[LogEvent]] = defaultdict(list)
    waiting: set[int] = set()
    for one in logs.told:
        event = one.event
        if one.kind != "init_timeout" or not event.ranks or one.rank is None:
            continue
        waiting.add(one.rank)
        if event.group_rank is not None and event.group_rank != one.rank:
            return None  # ranks of a group that is not the whole job: whom they name is not known
        for rank in event.ranks:
            waits[rank].append(event)
    missing = sorted(set(waits) - waiting)
    if not missing:
        return None
    event = waits[missing[0]][0]
    of_nccl, of_hccl = "ncclUniqueId" in event.text, "unconnected ranks" in event.text
    if of_hccl and {*missing, *waiting} != set(range(len(missing) + len(waiting))):
        return None  # it counts within the communicator, which may be of some ranks
    what = "to set NCCL's unique id" if of_nccl else "to write its address into the store"
    what = "to connect to HCCL's root" if of_hccl else what
    facts = tuple(
        Fact(f"{named_ranks(waiting)} waited for rank {rank} {what}", place_of(waits[rank][0])) for rank in missing
    )
    return Missing(
        tuple(missing),
        tuple(sorted(waiting)),
        not of_nccl,
        "the first collective" if of_nccl else "init_process_group",
        facts,
    )


def _by_count(logs: LogReading) -> Missing | None:
    """As many as came have written it: who has not is missing. Each barrier of the store counts by itself."""
    barriers: dict[str | None, list[LogEvent]] = defaultdict(list)
    for event in logs.events:
        if event.kind in _INIT and event.rank is not None and not event.went_on:
            barriers[event.group_id].append(event)
    return next((missing for told in barriers.values() if (missing := _of_barrier(told)) is not None), None)


def _of_barrier(told: Sequence[LogEvent]) -> Missing | None:
    counted = [event for event in told if event.joined is not None and event.expected]
    if not counted:
        return None
    expected = {event.expected for event in counted}
    came = {event.rank for event in told if event.rank is not None}
    most = max(event.joined or 0 for event in counted)
    size = expected.pop()
    if expected or size is None or most != len(came) or most >= size or max(came) >= size:
        return None
    missing = tuple(rank for rank in range(size) if rank not in came)
    last = max(counted, key=lambda event: event.joined or 0)
    fact = f"{most} of {size} ranks came to the store's barrier: {rank_ranges(came)}"
    return Missing(missing, tuple(sorted(came)), True, "init_process_group", (Fact(fact, place_of(last)),))


def oddities(logs: LogReading) -> list[Fact]:
    """What does not fit together at the start: too many at the store, communicators begun and not completed."""
    text = "{} came to a store that waits for {}: it is an older job's, or another job uses the same port"
    strangers = [Fact(text.format(event.joined, event.expected), place_of(event)) for event in too_many(logs)]
    return [*strangers[:1], *_communicators(logs)]


def too_many(logs: LogReading) -> list[LogEvent]:
    """Where more ranks joined than the job has: a store of an earlier attempt counts on."""
    return [e for e in logs.events if e.kind in _INIT and e.joined is not None and e.expected and e.joined > e.expected]


def incomplete(logs: LogReading) -> tuple[str, tuple[int, ...], int] | None:
    """The communicator that was begun and not completed: its id, the ranks in it that began, its size."""
    began: dict[str, dict[int, LogEvent]] = defaultdict(dict)
    completed: dict[str, set[int]] = defaultdict(set)
    for event in logs.events:
        if event.comm is None or event.group_rank is None:
            continue
        if event.kind == "nccl_init_started":
            began[event.comm][event.group_rank] = event
        elif event.kind == "nccl_init_complete":
            completed[event.comm].add(event.group_rank)
    for comm, ranks in sorted(began.items()):
        open_ = sorted(set(ranks) - completed[comm])
        if open_:
            return comm, tuple(open_), next(iter(ranks.values())).expected or 0
    return None


def _communicators(logs: LogReading) -> list[Fact]:
    found = incomplete(logs)
    if found is None:
        return []
    comm, ranks, size = found
    event = next(e for e in logs.events if e.comm == comm and e.kind == "nccl_init_started")
    begun = f"NCCL's communicator {comm} of {size} ranks was begun by {named_ranks(ranks)} and not completed"
    return [Fact(begun, place_of(event))]


def place_of(event: LogEvent) -> str:
    """Where an event stands: "train.log:12"."""
    return f"{event.source}:{event.line}" if event.source else "log"
