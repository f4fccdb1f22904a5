"""Which nodes are at the meeting place, and with which key each signs: said every so often, so that a key that is not
the others' shows before anything stands. Pure, but for the exchange.

Nodes of different keys share nothing else there: what one claims, says or has told is under its key's name, and holds
nobody up who could not believe it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.encoding import msgpack_of
from stallwatch.fleet.place import GREET_SECONDS, MOST_ALIKE, Guest, MeetingPlace
from stallwatch.fleet.seal import key_id
from stallwatch.formats.tolerant import NOT_JSON

_MOST_JOBS: Final = 64  # that a node says it has
_MOST_NAMED: Final = 4
_AT_FIRST: Final = 3  # times that it is asked more often: daemons of a fleet are started one after the other
_OFTEN_SECONDS: Final = 5.0
_MOST_NAME: Final = 64
MEND: Final = "Copy the fleet.key_file of one node to all; daemons take it over within half a minute."


class Greeting(msgspec.Struct, frozen=True):
    """What a node says of itself."""

    node: str = ""  # "": it only asks who is there
    jobs: tuple[tuple[str, int], ...] = ()  # jobs that it has, as the meeting place calls them, with its lowest rank


class Stranger(msgspec.Struct, frozen=True):
    """A node that signs with another key."""

    node: str
    key: str
    jobs: tuple[tuple[str, int], ...] = ()


class RosterSeen(msgspec.Struct, frozen=True):
    """Who is at the meeting place."""

    key: str = ""  # this node's
    alike: tuple[str, ...] = ()  # the other nodes that sign with it, MOST_ALIKE at most
    strangers: tuple[Stranger, ...] = ()

    @property
    def known(self) -> tuple[str, ...]:
        """All nodes that are there, but for this one; () where they are too many to be listed."""
        return () if len(self.alike) >= MOST_ALIKE - 1 else (*self.alike, *(one.node for one in self.strangers))

    def problem(self) -> str:
        """That there are nodes of another key, and which, a sentence without its stop; "" where there are none."""
        if not self.strangers:
            return ""
        nodes = sorted({one.node for one in self.strangers})
        keys = sorted({one.key for one in self.strangers})
        theirs = keys[0] if len(keys) == 1 else f"{len(keys)} of them"
        alike = f", as on {named(self.alike)}" if self.alike else ""
        return (
            f"{named(nodes)} {'sign' if len(nodes) > 1 else 'signs'} with another key ({theirs}) than this node "
            f"({self.key}{alike}): neither side believes the other, and each tells what it sees alone"
        )

    def well(self, url: str) -> str:
        """Who is met where, a clause."""
        return f"well: {url}, " + (f"with {named(self.alike)}" if self.alike else "with no other node yet")


def named(nodes: Sequence[str]) -> str:
    """Names of nodes as a sentence has them, some of many."""
    more = f" and {len(nodes) - _MOST_NAMED} more" * (len(nodes) > _MOST_NAMED)
    return ", ".join(node[:_MOST_NAME] for node in nodes[:_MOST_NAMED]) + more


_JOBS = msgspec.msgpack.Decoder(tuple[tuple[str, int], ...])


def exchange_roster(place: MeetingPlace, secret: bytes, greeting: Greeting) -> RosterSeen:
    """Say who this node is, and return who else is there. Raise StallwatchError."""
    own = key_id(secret)
    guests = place.greet(greeting.node, msgpack_of(greeting.jobs[:_MOST_JOBS]))
    alike = sorted({one.node for one in guests if one.key == own and one.node != greeting.node})
    return RosterSeen(own, tuple(alike), tuple(_stranger(one) for one in guests if one.key != own))


def _stranger(guest: Guest) -> Stranger:
    """What it says of its jobs nobody here can believe: it decides who of two sides tells, and nothing else."""
    try:
        jobs = _JOBS.decode(guest.word)[:_MOST_JOBS]
    except NOT_JSON:
        jobs = ()
    return Stranger(guest.node[:_MOST_NAME], guest.key[:_MOST_NAME], jobs)


class Unheard(msgspec.Struct, frozen=True):
    """Nodes of a job that sign with another key than this one."""

    nodes: tuple[str, ...]
    why: str
    lower: bool  # one of them has lower ranks of the job: that side tells of what none finds the cause of


def apart_of(job: str, ranks: Sequence[int], seen: RosterSeen | None) -> Unheard | None:
    """Given a job and its ranks on this node, return who of its nodes cannot be believed; None where all can."""
    if seen is None:
        return None
    lowest: Mapping[str, int] = {one.node: rank for one in seen.strangers for name, rank in one.jobs if name == job}
    if not lowest:
        return None
    nodes = tuple(sorted(lowest))
    verb = "sign" if len(nodes) > 1 else "signs"
    why = f"{named(nodes)} {verb} with another key than this node ({seen.key}), and cannot be believed"
    return Unheard(nodes, why, min(lowest.values()) < min(ranks, default=0))


class RosterSeat:
    """When to say so again, and what was seen."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._asked_ns: int | None = None
        self._said: Greeting | None = None
        self._times = 0
        self.jobs: tuple[tuple[str, int], ...] = ()
        self.seen: RosterSeen | None = None

    def wish(self, now_ns: int) -> Greeting | None:
        """Return what is to be said, where it is time to."""
        greeting = Greeting(self._node, self.jobs)
        since_ns = None if self._asked_ns is None else now_ns - self._asked_ns
        often = GREET_SECONDS if self._times >= _AT_FIRST else _OFTEN_SECONDS
        is_news = greeting != self._said and since_ns is not None and since_ns >= SECOND_NS
        if since_ns is not None and since_ns < often * SECOND_NS and not is_news:
            return None
        self._asked_ns, self._said, self._times = now_ns, greeting, self._times + 1
        return greeting
