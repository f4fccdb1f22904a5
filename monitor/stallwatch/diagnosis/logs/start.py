"""The start of a job as logs tell it: who did not come, and what does not fit together."""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from stallwatch.diagnosis.logs.log_reading import LogReading
from stallwatch.formats.rank_ranges import named_ranks, rank_ranges
from stallwatch.model.evidence import LogEvent

STALE_STORE_STEP = (
    "Look who else uses MASTER_PORT (`ss -ltnp | grep MASTER_PORT`): end what an older run left there, or take another "
    "port."
)
_INIT = ("init_timeout", "init_waiting")


class Missing(NamedTuple):
    """Ranks that did not come while others waited for them."""

    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    at_rendezvous: bool  # False: they came to init_process_group, and not to what was called next
    operation: str
    facts: tuple[tuple[str, str], ...]  # what, and where it stands


def who_is_missing(logs: LogReading, observed: Iterable[int]) -> Missing | None:
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
    of_nccl = "ncclUniqueId" in event.text
    what = "to set NCCL's unique id" if of_nccl else "to write its address into the store"
    facts = tuple((f"{named_ranks(waiting)} waited for rank {rank} {what}", _place(waits[rank][0])) for rank in missing)
    return Missing(
        tuple(missing),
        tuple(sorted(waiting)),
        not of_nccl,
        "the first collective" if of_nccl else "init_process_group",
        facts,
    )


def _by_count(logs: LogReading) -> Missing | None:
    """As many as came have written it: who has not is missing."""
    told = [e for e in logs.events if e.kind in _INIT and e.rank is not None and e.joined is not None and e.expected]
    if not told:
        return None
    expected = {event.expected for event in told}
    came = {event.rank for event in told if event.rank is not None}
    most = max(event.joined or 0 for event in told)
    size = expected.pop()
    if expected or size is None or most != len(came) or most >= size or max(came) >= size:
        return None
    missing = tuple(rank for rank in range(size) if rank not in came)
    last = max(told, key=lambda event: event.joined or 0)
    fact = f"{most} of {size} ranks came to the store's barrier: {rank_ranges(came)}"
    return Missing(missing, tuple(sorted(came)), True, "init_process_group", ((fact, _place(last)),))


def oddities(logs: LogReading) -> list[tuple[str, str]]:
    """What does not fit together at the start: too many at the store, communicators begun and not completed."""
    found = []
    for event in logs.events:
        if event.kind in _INIT and event.joined is not None and event.expected and event.joined > event.expected:
            text = (
                f"{event.joined} came to a store that waits for {event.expected}: it is an older job's, or another job "
                "uses the same port"
            )
            found.append((text, _place(event)))
            break
    return found + _communicators(logs)


def stale_store(logs: LogReading) -> bool:
    """Whether more ranks joined than the job has: a store of an earlier attempt counts on."""
    return any(e.kind in _INIT and e.joined is not None and e.expected and e.joined > e.expected for e in logs.events)


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


def _communicators(logs: LogReading) -> list[tuple[str, str]]:
    found = incomplete(logs)
    if found is None:
        return []
    comm, ranks, size = found
    event = next(e for e in logs.events if e.comm == comm and e.kind == "nccl_init_started")
    return [
        (
            f"NCCL's communicator {comm} of {size} ranks was begun by {named_ranks(ranks)} and not completed",
            _place(event),
        )
    ]


def _place(event: LogEvent) -> str:
    return f"{event.source}:{event.line}" if event.source else "log"
