"""How long a connection may take, and how many of them anybody may hold: silent and slow ones cost others nothing.

A newcomer always finds a place: where its peer, or everybody together, holds too many, the one goes that has kept us
waiting longest. So a scrape and a probe are answered however many others are open: they ask as soon as they come.
"""

import asyncio
import logging
import resource
import time
from collections.abc import Iterable
from typing import Any, Protocol

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from stallwatch.outputs.peers import Peer, peer_of

HEAD_SECONDS = 10.0  # from the first byte of a request, or from connecting, to the end of its head
BODY_SECONDS = 10.0
UNREAD_SECONDS = 30.0  # an answer of which nobody takes the next 48 KiB (or the rest) for so long
_SWEEP_SECONDS = 1.0
_MOST = 256
_MOST_OF_A_PEER = 32

log = logging.getLogger(__name__)


class HeldConnection(Protocol):
    """What a place holds: a connection."""

    @property
    def peer(self) -> Peer:
        """Who is at its other end."""

    def waits_since(self) -> float | None:
        """Since when we wait for its peer, to ask, to go on or to read; None while its peer waits for us."""
        ...

    def overdue(self, now: float) -> bool:
        """Whether its peer has kept us waiting for too long."""
        ...

    def drop(self) -> None:
        """Close it at once."""


class DeadlineConnection(H11Protocol):
    """uvicorn's connection with deadlines. Made by uvicorn, so its places are those of its class: see `limited`."""

    places: "Places"
    peer: Peer
    head_since: float | None = None  # a request has begun, or must now
    body_since: float | None = None
    unread_since: float | None = None  # bytes wait that nobody takes
    used_at: float = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Note who has connected, and take a place; a request must begin from now on."""
        super().connection_made(transport)
        self.peer = peer_of(transport.get_extra_info("socket"))
        self.app_state = {**self.app_state, "peer": self.peer}
        self.head_since = self.used_at = time.monotonic()
        self.places.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self.places.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what came, and note how far the request is for its deadlines."""
        super().data_received(data)
        self.used_at = time.monotonic()
        self._note(self.used_at, has_begun=True)

    def resume_writing(self) -> None:
        """The other side reads again: its deadline for that is over."""
        self.unread_since = None
        super().resume_writing()

    def overdue(self, now: float) -> bool:
        """Whether a deadline has passed at `now` (time.monotonic): for a request's head, its body, or taking our
        answer."""
        # What came together with the request before it has begun too.
        self._note(now, has_begun=self.head_since is not None or bool(self.conn.trailing_data[0]))
        waits = (
            (self.head_since, HEAD_SECONDS),
            (self.body_since, BODY_SECONDS),
            (self.unread_since, UNREAD_SECONDS),
        )
        return any(since is not None and now - since > seconds for since, seconds in waits)

    def waits_since(self) -> float | None:
        """Since when (time.monotonic) the other side is waited for; None while an answer is ours to give."""
        if self.transport.get_write_buffer_size() or self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            return self.unread_since or self.head_since or self.body_since or self.used_at
        return None

    def drop(self) -> None:
        """Close at once; what was not sent is lost."""
        self.transport.abort()

    def _note(self, now: float, *, has_begun: bool) -> None:
        state = self.conn.their_state
        self.head_since = (self.head_since or now) if state is h11.IDLE and has_begun else None
        self.body_since = (self.body_since or now) if state is h11.SEND_BODY else None
        self.unread_since = (self.unread_since or now) if self.transport.get_write_buffer_size() else None


class Places:
    """The connections of one listener."""

    def __init__(self, most: int | None = None, most_of_a_peer: int = _MOST_OF_A_PEER) -> None:
        self._most = most or _affordable()
        self._most_of_a_peer = most_of_a_peer
        self._of: dict[Peer, set[HeldConnection]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self.dropped_total = 0

    def enter(self, connection: HeldConnection) -> None:
        """Take it in. Where that is one too many, another goes; it goes itself where all others wait for us."""
        own = self._of.setdefault(connection.peer, set())
        own.add(connection)
        if len(own) > self._most_of_a_peer:
            self._make_room(own, connection)
        elif len(self) > self._most:
            largest: set[HeldConnection] = max(self._of.values(), key=len)
            self._make_room(largest, connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._look)

    def leave(self, connection: HeldConnection) -> None:
        """Give the place of a connection back."""
        own = self._of.get(connection.peer, set())
        own.discard(connection)
        if not own:
            self._of.pop(connection.peer, None)

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def _make_room(self, among: Iterable[HeldConnection], newcomer: HeldConnection) -> None:
        waiting = [(since, one) for one in among if one is not newcomer and (since := one.waits_since()) is not None]
        self._drop(min(waiting, key=lambda pair: pair[0])[1] if waiting else newcomer)

    def _look(self) -> None:
        now = time.monotonic()
        for connection in [one for own in self._of.values() for one in own]:
            if connection.overdue(now):
                self._drop(connection)
        again = asyncio.get_running_loop().call_later
        self._sweep = again(_SWEEP_SECONDS, self._look) if self._of else None

    def _drop(self, connection: HeldConnection) -> None:
        self.leave(connection)
        connection.drop()
        self.dropped_total += 1
        if self.dropped_total & (self.dropped_total - 1) == 0:  # 1, 2, 4, …: a flood must not fill the log too
            log.warning("connections dropped since the start: %d, the last of %s", self.dropped_total, connection.peer)


def limited(places: Places) -> type[asyncio.Protocol]:
    """Return a class of connections for uvicorn.Config's `http`, all of which share these places."""
    made: dict[str, Any] = {"places": places}
    return type("DeadlineConnection", (DeadlineConnection,), made)


def _affordable() -> int:
    """A quarter of the handles that this process may have, and no more than anybody needs: the rest is the loop's."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else min(_MOST, max(soft // 4, 16))
