"""What people say to all nodes at once: a mute, an acknowledgement, a node's maintenance, the mode. Pure.

Each stands in the meeting place under a name of its own, signed, until it runs out by the place's clock; a node takes
over what is newer than what it knows. A place that has lost everything is given again what still holds.
"""

import hashlib
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.encoding import msgpack_of
from stallwatch.errors import StallwatchError
from stallwatch.fleet.place import MOST_ORDER_BYTES, MOST_ORDERS, Key, MeetingPlace, Standing
from stallwatch.fleet.seal import SealBroken, seal, unseal
from stallwatch.model.incident import Mode

ORDERS_SECONDS: Final = 4.0  # between looks: what is said anywhere holds everywhere within 10 s
_ENDED_SECONDS: Final = 3600.0  # how long the end of an order stands, for who was away
_MOST_OF_OWNER: Final = 32  # mutes that one user's jobs may have among the nodes
_MOST_CAVEATS: Final = 3
_KEY: Final = Key(":fleet", 0)  # no job's: their names have no colon


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """What people said of a job or node, to hold on all nodes."""

    kind: Literal["mute", "acknowledge", "maintenance", "mode"]
    about: str = ""  # a job, an incident as all nodes call it, a node; of the mode nothing
    owner: str = ""  # of the job
    ended: bool = False
    mode: Mode = "tell"
    by: str = ""
    why: str = ""
    node: str = ""  # that gave it
    issued_ns: int = 0  # says of two orders of one name which is the later, and nothing else
    jobs: tuple[tuple[str, str], ...] = ()  # of a node in maintenance: JobKey.name of those that run there

    @property
    def name(self) -> str:
        """Its name at the meeting place: one for what it is about."""
        said = "\0".join((self.owner, self.about)).encode("utf-8", "replace")
        return f"{self.kind}-{hashlib.sha256(said).hexdigest()[:24]}"


class Posting(msgspec.Struct, frozen=True):
    """An order that this node gives to all, for how long, and whether it replaces one of its name."""

    order: Order
    seconds: float
    anew: bool  # False: only where the place has none of its name


class OrdersWish(msgspec.Struct, frozen=True):
    """What a node knows of orders and gives."""

    known: str = ""  # revision
    give: tuple[Posting, ...] = ()


class OrdersSeen(msgspec.Struct, frozen=True):
    """The orders at the meeting place; None: as known."""

    revision: str = ""
    orders: tuple[tuple[Order, float], ...] | None = None  # with the seconds that they still hold; None: as known
    caveat: str = ""


class News(NamedTuple):
    """An order that this node did not know."""

    order: Order
    until_ns: int


_ORDER = msgspec.msgpack.Decoder(Order)


def exchange_orders(place: MeetingPlace, secret: bytes, wish: OrdersWish) -> OrdersSeen:
    """Give what is to be given, then return what stands. Raise StallwatchError."""
    for posting in wish.give:
        order = posting.order
        sealed = seal(msgpack_of(order), secret, "order", _KEY, order.name)
        if len(sealed) > MOST_ORDER_BYTES:
            raise StallwatchError(f"{order.kind} of {order.about[:80]} takes {len(sealed)} bytes", "Say less of it.")
        place.post(order.name, sealed, posting.seconds, anew=posting.anew)
    revision, standing = place.posted(wish.known)
    if standing is None:
        return OrdersSeen(revision)
    orders, caveats = [], []
    for one in list(standing)[:MOST_ORDERS]:
        try:
            orders.append((_opened(one, secret), one.seconds))
        except SealBroken as error:
            caveats.append(f"an order to all nodes ({one.name[:60]}) is not believed: {error}")
    return OrdersSeen(revision, tuple(orders), "; ".join(caveats[:_MOST_CAVEATS]))


def _opened(standing: Standing, secret: bytes) -> Order:
    try:
        order = _ORDER.decode(unseal(standing.data, secret, "order", _KEY, standing.name))
    except msgspec.MsgspecError as error:
        raise SealBroken(f"it is of another form ({error}); are all nodes of one version?") from error
    if order.name != standing.name:
        raise SealBroken("it stands under another's name")
    return order


class Book:
    """What this node knows to hold, and what it has to say."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._held: dict[str, tuple[Order, int]] = {}  # until when, CLOCK_MONOTONIC
        self._to_give: dict[str, Posting] = {}
        self._revision = ""
        self._asked_ns: int | None = None

    def give(self, order: Order, seconds: float, wall_ns: int, now_ns: int) -> str:
        """Have all nodes told; return why they are not, "" where they are. Nothing is said twice."""
        known = self._held.get(order.name)
        if known is not None and _same(known[0], order) and abs(known[1] - now_ns - seconds * SECOND_NS) < SECOND_NS:
            return ""
        whose = [one for one, _ in self._held.values() if one.kind == "mute" and one.owner == order.owner]
        if order.kind == "mute" and not order.ended and known is None and len(whose) >= _MOST_OF_OWNER:
            return f"{order.owner} has {len(whose)} mutes on all nodes: this one holds here alone"
        issued_ns = max(wall_ns, known[0].issued_ns + 1 if known is not None else 0)
        order = msgspec.structs.replace(order, node=self._node, issued_ns=issued_ns)
        seconds = _ENDED_SECONDS if order.ended else seconds
        self._held[order.name] = (order, now_ns + int(seconds * SECOND_NS))
        self._to_give[order.name] = Posting(order, seconds, anew=True)
        return ""

    def holds(self, kind: str) -> tuple[News, ...]:
        """Return the orders of a kind that are known and not ended."""
        return tuple(News(*one) for one in self._held.values() if one[0].kind == kind and not one[0].ended)

    def wish(self, now_ns: int) -> OrdersWish | None:
        """Return what is to be asked, where it is time to. `heard` or nothing follows."""
        due = self._asked_ns is None or now_ns - self._asked_ns >= ORDERS_SECONDS * SECOND_NS
        if not due and not self._to_give:
            return None
        if not due and self._asked_ns is not None and now_ns - self._asked_ns < SECOND_NS:
            return None  # what could not be given is tried again, and not at once
        self._asked_ns = now_ns
        return OrdersWish(self._revision, tuple(self._to_give.values()))

    def heard(self, wish: OrdersWish, seen: OrdersSeen, now_ns: int) -> list[News]:
        """Take in an answer; return what is new of it."""
        for posting in wish.give:
            if self._to_give.get(posting.order.name) == posting:
                del self._to_give[posting.order.name]
        self._held = {name: one for name, one in self._held.items() if one[1] > now_ns}
        if self._revision and _life(self._revision) != _life(seen.revision):
            self._give_again(now_ns)  # the place has lost what it held
        self._revision = seen.revision
        return [] if seen.orders is None else self._newer(seen.orders, now_ns)

    def _newer(self, orders: Iterable[tuple[Order, float]], now_ns: int) -> list[News]:
        news = []
        for order, seconds in orders:
            known = self._held.get(order.name)
            if known is not None and known[0].issued_ns >= order.issued_ns:
                continue
            until_ns = now_ns + int(seconds * SECOND_NS)
            self._held[order.name] = (order, until_ns)
            self._to_give.pop(order.name, None)  # somebody has said something later
            news.append(News(order, now_ns if order.ended else until_ns))
        return news

    def _give_again(self, now_ns: int) -> None:
        for name, (order, until_ns) in self._held.items():
            self._to_give.setdefault(name, Posting(order, (until_ns - now_ns) / SECOND_NS, anew=False))


def _life(revision: str) -> str:
    """Of a revision the part that is another once the place has lost everything."""
    return revision.partition(":")[0]


def _same(one: Order, other: Order) -> bool:
    bare = msgspec.structs.replace(one, node="", issued_ns=0, by=other.by)
    return bare == msgspec.structs.replace(other, node="", issued_ns=0)
