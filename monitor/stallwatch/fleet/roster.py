"""Which nodes are at the meeting place, and with which key each signs: said every so often, so that a key that is not
the others', and a name that two machines have, show before anything stands. Pure, but for the exchange.

Nodes of different keys share nothing else there: what one claims, says or has told is under its key's name, and holds
nobody up who could not believe it.
"""

import contextlib
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.encoding import msgpack_of
from stallwatch.fleet.place import GREET_SECONDS, GREETED_SECONDS, MOST_ALIKE, Guest, MeetingPlace
from stallwatch.fleet.seal import key_id
from stallwatch.formats.tolerant import NOT_JSON

_MOST_JOBS: Final = 64  # that a node says it has
_MOST_NAMED: Final = 4
_AT_FIRST: Final = 3  # times that it is asked more often: daemons of a fleet are started one after the other
_OFTEN_SECONDS: Final = 5.0
_MOST_NAME: Final = 64
_LIVES: Final = 2  # times that another daemon is found under this node's name until it is said to live
_REMEMBERED_NS: Final = 86400 * SECOND_NS  # of a node that has gone
RENAME: Final = "Set daemon.node to another name on one of them, and restart its daemon."
MEND: Final = "Copy the fleet.key_file of one node to all; daemons take it over within half a minute."


class DaemonId(msgspec.Struct, frozen=True):
    """Which daemon it is that calls itself by a node's name."""

    token: str = ""  # of this life of it
    machine: str = ""  # its boot
    host: str = ""
    address: str = ""
    since_wall_ns: int = 0

    def told(self) -> str:
        """Where it runs, a clause; it may be anybody's word."""
        where = " ".join(filter(None, (f"host {self.host[:_MOST_NAME]}", self.address[:_MOST_NAME])))
        return f"{where}, since {moment(self.since_wall_ns)}"


class Greeting(msgspec.Struct, frozen=True):
    """What a node says of itself."""

    node: str = ""  # "": it only asks who is there
    jobs: tuple[tuple[str, int], ...] = ()  # jobs that it has, as the meeting place calls them, with its lowest rank
    daemon: DaemonId | None = None
    namesake: DaemonId | None = None  # that calls itself so too
    about: str = ""  # of whom it asks, where it says nothing


class Namesake(msgspec.Struct, frozen=True):
    """What stood under this node's name, and was not this daemon's."""

    daemon: DaemonId
    jobs: tuple[tuple[str, int], ...] = ()
    knows: DaemonId | None = None  # another of the name, of which it has said so itself


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
    namesake: Namesake | None = None  # as found once; in `RosterSeat.seen` one that is there for certain
    gone: tuple[tuple[str, int], ...] = ()  # nodes that were alike and are not there any more; wall time, ns

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
        left = "; ".join(f"{node[:_MOST_NAME]} was here until {moment(at)}" for node, at in self.gone[-_MOST_NAMED:])
        none = "with no other node now" if left else "with no other node yet"
        return f"well: {url}, " + "; ".join(filter(None, (f"with {named(self.alike)}" if self.alike else none, left)))


def moment(wall_ns: int) -> str:
    """A moment in words."""
    try:
        return datetime.fromtimestamp(wall_ns // SECOND_NS, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return "?"


def doubled(node: str, other: DaemonId) -> str:
    """That two machines have one name, a sentence without its stop."""
    return (
        f"another machine calls itself {node} too ({other.told()}): each takes the other's word for its own, and tells "
        "of a job of both what it sees alone"
    )


def this_daemon() -> DaemonId:
    """A new life of a daemon on this machine."""
    return DaemonId(secrets.token_hex(8), this_boot(), socket.gethostname(), _own_address(), time.time_ns())


def this_boot() -> str:
    """By which two machines are told apart; "" where it is not known."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _own_address() -> str:
    """By which this machine reaches others; nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("192.0.2.1", 9))  # RFC 5737: nobody's
        return str(one.getsockname()[0])
    return ""


def named(nodes: Sequence[str]) -> str:
    """Names of nodes as a sentence has them, some of many."""
    more = f" and {len(nodes) - _MOST_NAMED} more" * (len(nodes) > _MOST_NAMED)
    return ", ".join(node[:_MOST_NAME] for node in nodes[:_MOST_NAMED]) + more


class _Said(msgspec.Struct, frozen=True, omit_defaults=True):
    jobs: tuple[tuple[str, int], ...] = ()
    daemon: DaemonId | None = None
    namesake: DaemonId | None = None


_JOBS = msgspec.msgpack.Decoder(tuple[tuple[str, int], ...])  # as nodes of an earlier version say it
_SAID = msgspec.msgpack.Decoder(_Said)


def exchange_roster(place: MeetingPlace, secret: bytes, greeting: Greeting) -> RosterSeen:
    """Say who this node is, and return who else is there. Raise StallwatchError."""
    own, name = key_id(secret), greeting.about or greeting.node
    word = msgpack_of(_Said(greeting.jobs[:_MOST_JOBS], greeting.daemon, greeting.namesake))
    guests = place.greet(greeting.node, word, name)
    alike = sorted({one.node for one in guests if one.key == own and one.node != greeting.node})
    strangers = tuple(_stranger(one) for one in guests if one.key != own and one.node != greeting.node)
    return RosterSeen(own, tuple(alike), strangers, _namesake(guests, name, greeting.daemon))


def _said(word: bytes) -> _Said:
    """What a node says of its jobs nobody of another key can believe: it decides who of two sides tells, and nothing
    else."""
    for decoder in (_SAID, _JOBS):
        with contextlib.suppress(*NOT_JSON):
            found = decoder.decode(word)
            said = found if isinstance(found, _Said) else _Said(found)
            return msgspec.structs.replace(said, jobs=said.jobs[:_MOST_JOBS])
    return _Said()


def _stranger(guest: Guest) -> Stranger:
    return Stranger(guest.node[:_MOST_NAME], guest.key[:_MOST_NAME], _said(guest.word).jobs)


def _namesake(guests: Sequence[Guest], name: str, own: DaemonId | None) -> Namesake | None:
    for said in (_said(one.word) for one in guests if one.node == name and one.word):
        if said.daemon is not None and said.daemon.token not in ("", own.token if own is not None else ""):
            return Namesake(said.daemon, said.jobs, said.namesake)
    return None


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


def doubled_in(job: str, node: str, seen: RosterSeen | None) -> str:
    """That a job runs on two machines that have this node's name, which can share nothing; "" where it does not."""
    twin = seen.namesake if seen is not None else None
    return doubled(node, twin.daemon) if twin is not None and job in dict(twin.jobs) else ""


class RosterSeat:
    """When to say so again, and what was seen."""

    def __init__(self, node: str, daemon: DaemonId | None = None) -> None:
        self._node = node
        self._daemon = daemon
        self._has_said = False
        self._namesakes: list[tuple[int, Namesake]] = []  # when each was found after this daemon had said its name
        self._gone: dict[str, int] = {}
        self._asked_ns: int | None = None
        self._said: Greeting | None = None
        self._times = 0
        self.jobs: tuple[tuple[str, int], ...] = ()
        self.seen: RosterSeen | None = None

    def wish(self, now_ns: int) -> Greeting | None:
        """Return what is to be said, where it is time to."""
        twin = self.seen.namesake if self.seen is not None else None
        greeting = Greeting(self._node, self.jobs, self._daemon, twin.daemon if twin is not None else None)
        since_ns = None if self._asked_ns is None else now_ns - self._asked_ns
        often = GREET_SECONDS if self._times >= _AT_FIRST else _OFTEN_SECONDS
        is_news = greeting != self._said and since_ns is not None and since_ns >= SECOND_NS
        if since_ns is not None and since_ns < often * SECOND_NS and not is_news:
            return None
        self._asked_ns, self._said, self._times = now_ns, greeting, self._times + 1
        return greeting

    def heard(self, seen: RosterSeen, now_ns: int, wall_ns: int) -> None:
        """Take in what the place showed. What a daemon before this one left under its name, or a request of it that was
        still on its way, is found once; of another that lives it comes again."""
        if self._has_said and seen.namesake is not None:
            self._namesakes.append((now_ns, seen.namesake))
        self._has_said = True
        self._namesakes = [one for one in self._namesakes[-_LIVES:] if now_ns - one[0] < GREETED_SECONDS * SECOND_NS]
        twin = self._namesakes[-1][1] if len(self._namesakes) >= _LIVES else None
        if self.seen is not None and len(seen.alike) < MOST_ALIKE - 1:
            # What it said last stood for so long.
            last_ns = wall_ns - int(GREETED_SECONDS * SECOND_NS)
            self._gone |= {one: last_ns for one in self.seen.alike if one not in seen.alike}
        kept = [(one, at) for one, at in self._gone.items() if one not in seen.alike]
        self._gone = dict([one for one in kept if wall_ns - one[1] < _REMEMBERED_NS][-_MOST_JOBS:])
        self.seen = msgspec.structs.replace(seen, namesake=twin, gone=tuple(self._gone.items()))

    def problem(self) -> tuple[str, str]:
        """What is wrong with who is there, and what mends it; empty where all is well."""
        if self.seen is None:
            return "", ""
        if self.seen.namesake is not None:
            return doubled(self._node, self.seen.namesake.daemon), RENAME
        strange = self.seen.problem()
        return strange, MEND * bool(strange)
