"""What people say on this node, for all nodes, and what was said on others, for this one: to and from fleet.orders."""

import logging
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from stallwatch.clock import SECOND_NS
from stallwatch.fleet.orders import Book, Order
from stallwatch.fleet.place import LIFE_SECONDS
from stallwatch.incidents.messages import Acknowledged, Event, MaintenanceWanted, ModeWanted, MuteWanted
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import JobKey

log = logging.getLogger("stallwatch.fleet")

_ACKNOWLEDGED_SECONDS = 3600.0  # for a node that hears of it late; each keeps it with its incident
_MOST_JOBS = 64  # of a node in maintenance


def give(book: Book, events: Sequence[Event], at_ns: int, wall_ns: int) -> None:
    """Have all nodes told what somebody has said here."""
    for event in events:
        if isinstance(event, MuteWanted):
            ended = event.until_ns <= at_ns
            order = Order("mute", event.training_job, event.owner, ended=ended, by=event.by)
        elif isinstance(event, ModeWanted):
            order = Order("mode", ended=event.until_ns <= at_ns, mode=event.mode, by=event.by)
        elif isinstance(event, MaintenanceWanted):
            ended = event.until_ns <= at_ns
            order = Order("maintenance", event.node, ended=ended, by=event.by, why=event.why, jobs=event.jobs)
        else:
            continue
        _give(book, order, (event.until_ns - at_ns) / SECOND_NS, at_ns, wall_ns)


def give_acknowledged(
    book: Book, incidents: Sequence[Incident], lives: Mapping[str, float], at_ns: int, wall_ns: int
) -> list[Event]:
    """Who is on an incident is on it on all nodes: have them told, and return what others have said. `lives`: by
    incident, for how many seconds its job has run: who said it before that was on another, of a job before."""
    known = {order.about: (order.by, until_ns) for order, until_ns in book.holds("acknowledge")}
    events: list[Event] = []
    for one in incidents:
        name = one.together.incident_id if one.together is not None else ""
        if not name or one.is_over:
            continue
        by, until_ns = known.get(name, ("", 0))
        said_seconds = _ACKNOWLEDGED_SECONDS - (until_ns - at_ns) / SECOND_NS
        is_of_this = bool(by) and said_seconds <= lives.get(one.incident_id, said_seconds) + LIFE_SECONDS
        if one.acknowledged_by and not is_of_this:
            _give(book, Order("acknowledge", name, by=one.acknowledged_by), _ACKNOWLEDGED_SECONDS, at_ns, wall_ns)
        elif is_of_this and not one.acknowledged_by:
            events.append(Acknowledged(one.incident_id, by))
    return events


def give_jobs_here(book: Book, node: str, jobs: Sequence[JobKey], at_ns: int) -> None:
    """Where this node is in maintenance, say which jobs run here: their other nodes stand still with it."""
    for order, until_ns in book.holds("maintenance"):
        names = tuple(sorted({*order.jobs, *(job.name for job in jobs)}))[:_MOST_JOBS]
        if order.about == node and names != order.jobs:
            _give(book, replace(order, jobs=names), (until_ns - at_ns) / SECOND_NS, at_ns, 0)


def _give(book: Book, order: Order, seconds: float, at_ns: int, wall_ns: int) -> None:
    if problem := book.give(order, seconds, wall_ns, at_ns):
        log.warning("%s", problem)


def events_of(news: Sequence[tuple[Order, int]]) -> Iterator[Event]:
    """Given what was said on other nodes, and until when it holds, yield what it means here."""
    for order, until_ns in news:
        whence = f"{order.by or 'somebody'} on {order.node}"
        what = f"{order.kind} {order.mode if order.kind == 'mode' else order.about}{' ended' if order.ended else ''}"
        log.info("said on another node: %s, by %s", what, whence)
        if order.kind == "mute":
            yield MuteWanted(order.about, until_ns, order.owner, whence)
        elif order.kind == "mode":
            yield ModeWanted(order.mode, until_ns, whence)
        elif order.kind == "maintenance":
            yield MaintenanceWanted(order.about, until_ns, order.by, order.why, order.jobs)
