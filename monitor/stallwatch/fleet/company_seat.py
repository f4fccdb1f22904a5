"""Whose jobs stand at one file system or server, said by each node to the others: one at a time tells people of it, and
names all. Pure: time is given.

Each cause has a meeting of its own, named by what is waited for and by whom it is told. Who wants to tell claims it, in
the answer hears whom others' messages name, tells, says whom it has named, and lets the claim run out.
"""

import contextlib
import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from stallwatch.clock import SECOND_NS
from stallwatch.encoding import msgpack_of
from stallwatch.fleet.place import CLAIM_SECONDS, Key, MeetingPlace
from stallwatch.fleet.seal import SealBroken, seal, unseal
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.model.incident import SEVERITIES, Companion, Gathering, Severity, StandsAt

PUT_SECONDS: Final = 10.0
SILENT_SECONDS: Final = 3 * PUT_SECONDS  # who has said nothing for so long has no message that stands
_OFTEN_SECONDS: Final = 1.0  # between looks while somebody is to be told
_CALM_SECONDS: Final = 3.0
_GATHER_SECONDS: Final = 4.0  # jobs of one mount stall within seconds of each other: who comes first waits for them
# What stood at one mount is well again within seconds of each other, as nodes look at theirs: whoever is not after this
# is told of.
_OVER_SECONDS: Final = 30.0
_ORDINAL: Final = 0
_MOST_STANDING: Final = 64  # incidents that a node speaks of at one meeting
_MOST_NAMED: Final = 512
_MOST_CHARACTERS: Final = 200


class CompanyWish(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node gives and asks at a meeting."""

    cause: str  # the name of the meeting
    node: str
    word: bytes = b""  # b"": as it was
    claims: bool = False
    generation: int = 0
    leaves: bool = False


class CompanySeen(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the other nodes say there."""

    generation: int = 0  # of this node's claim; 0: it has none
    others: tuple[Companion, ...] = ()
    caveat: str = ""


class CompanyWord(msgspec.Struct, frozen=True):
    """What a node says of its own incidents."""

    standing: tuple[Companion, ...]


class _Said(msgspec.Struct, frozen=True):
    """CompanyWord as any version writes it."""

    standing: tuple[msgspec.Raw, ...]


class _Stands(msgspec.Struct, frozen=True):
    """model.incident.Companion as any version writes it."""

    incident_id: str
    training_job: str
    severity: str = "none"
    said: str = ""
    acknowledged_by: str = ""
    tells: bool = False
    named: tuple[str, ...] = ()


_SAID = msgspec.msgpack.Decoder(_Said)
_STANDS = msgspec.msgpack.Decoder(_Stands)
_SEVERITIES: Final[dict[str, Severity]] = {severity: severity for severity in SEVERITIES}


def exchange_company(place: MeetingPlace, secret: bytes, wish: CompanyWish) -> CompanySeen:
    """Put, claim or renew, then read what others say: whoever gets the claim hears all that was said before it did.
    Raise StallwatchError."""
    key = Key(wish.cause, _ORDINAL)
    if wish.leaves:
        place.leave(key, wish.node)
        return CompanySeen()
    if wish.word:
        place.put(key, wish.node, seal(wish.word, secret, "company", key, wish.node))
    generation = wish.generation if wish.generation and place.renew(key, wish.node, wish.generation) else 0
    if wish.claims and not generation:
        generation = place.claim(key, wish.node)
        if generation:
            place.renew(key, wish.node, generation)
    others, caveat = [], ""
    summaries, ages = place.dated_summaries(key)
    for name in sorted(summaries):
        if name == wish.node or ages.get(name, 0.0) > SILENT_SECONDS:
            continue
        try:
            others += _believed(unseal(summaries[name], secret, "company", key, name))
        except SealBroken as error:
            caveat = f"what node {name[:64]} says of who stands where others do is not believed: {error}"
    return CompanySeen(generation, tuple(others), caveat)


def _believed(body: bytes) -> list[Companion]:
    """A later version may know more of an incident, and others: what is not of a form that is known costs nothing
    else."""
    try:
        said = _SAID.decode(body).standing
    except NOT_JSON as error:
        raise SealBroken(f"it is of another form ({error}); are all nodes of one version?") from error
    found = []
    for one in said[:_MOST_STANDING]:
        with contextlib.suppress(*NOT_JSON):
            found.append(_companion(_STANDS.decode(one)))
    return found


def _companion(said: _Stands) -> Companion:
    def cut(text: str) -> str:
        return text[:_MOST_CHARACTERS]

    return Companion(
        cut(said.incident_id),
        cut(said.training_job),
        # Of more urgency than is known here: what this node finds critical is told all the same.
        _SEVERITIES.get(said.severity, "warning"),
        cut(said.said),
        cut(said.acknowledged_by),
        said.tells,
        tuple(map(cut, said.named[:_MOST_NAMED])),
    )


class _Seat:
    """This node's part in one meeting."""

    def __init__(self, waits_on: str, readers: str, now_ns: int) -> None:
        self.waits_on, self.readers = waits_on, readers
        said = "\0".join((waits_on, readers)).encode("utf-8", "replace")
        self.name = f"waits-on.{hashlib.sha256(said).hexdigest()[:24]}"
        self._began_ns = now_ns
        self._word = b""
        self._wants = False
        self._put = b""
        self._put_ns = 0
        self._asked_ns: int | None = None
        self._generation = 0
        self._until_ns = 0  # our claim is in force, by our clock
        self._others: tuple[Companion, ...] = ()
        self._seen: dict[str, tuple[Companion, int]] = {}  # whose message names others, and when they last stood
        self._known = False

    def say(self, stands: Sequence[StandsAt]) -> None:
        self._word = msgpack_of(CompanyWord(tuple(one.incident for one in stands[:_MOST_STANDING])))
        self._wants = any(one.wants for one in stands)

    def wish(self, now_ns: int, node: str) -> CompanyWish | None:
        claimed = now_ns < self._until_ns
        is_news = self._word != self._put
        often = _OFTEN_SECONDS if self._wants or is_news else _CALM_SECONDS
        if self._asked_ns is not None and now_ns - self._asked_ns < often * SECOND_NS:
            return None
        self._asked_ns = now_ns
        puts = is_news or now_ns - self._put_ns >= PUT_SECONDS * SECOND_NS
        return CompanyWish(
            self.name,
            node,
            word=self._word if puts else b"",
            claims=self._wants and now_ns - self._began_ns >= _GATHER_SECONDS * SECOND_NS,
            generation=self._generation if self._wants or (claimed and is_news) else 0,
        )

    def heard(self, wish: CompanyWish, seen: CompanySeen, now_ns: int) -> None:
        """`now_ns`: when the answer came. A claim counts from when it was asked for."""
        asked_ns = self._asked_ns or now_ns
        if wish.word:
            self._put, self._put_ns = wish.word, asked_ns
        if wish.claims or wish.generation:
            self._generation = seen.generation
            self._until_ns = asked_ns + int((CLAIM_SECONDS - 1) * SECOND_NS) if seen.generation else 0
        now = {one.incident_id: one for one in seen.others}
        self._seen |= {one.incident_id: (one, now_ns) for one in seen.others if one.tells and one.named}
        self._seen = {
            known: (one, at_ns)
            for known, (one, at_ns) in self._seen.items()
            if known in now or now_ns - at_ns < _OVER_SECONDS * SECOND_NS
        }
        over = tuple(replace(one, over=True) for known, (one, _) in self._seen.items() if known not in now)
        self._others, self._known = (*seen.others, *over), True

    def meeting(self, now_ns: int) -> Gathering:
        speaks = self._generation > 0 and now_ns < self._until_ns
        return Gathering(self.waits_on, self.readers, self._others, self._known, speaks)


class Companies:
    """This node's part in all meetings of that kind."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._seats: dict[tuple[str, str], _Seat] = {}
        self._left: list[str] = []
        self.problem = ""

    def step(self, now_ns: int, stands: Sequence[StandsAt]) -> None:
        """Take in who stands where now, of this node's incidents."""
        at = {(one.waits_on, one.readers) for one in stands}
        for where in [where for where in self._seats if where not in at]:
            self._left.append(self._seats.pop(where).name)
        for where in at:
            seat = self._seats.setdefault(where, _Seat(*where, now_ns))
            seat.say([one for one in stands if (one.waits_on, one.readers) == where])

    def meetings(self, now_ns: int) -> tuple[Gathering, ...]:
        """Return what is known of each."""
        return tuple(seat.meeting(now_ns) for seat in self._seats.values())

    def wish(self, now_ns: int) -> CompanyWish | None:
        """Return what is to be asked next, where anything is due; `heard` or nothing follows."""
        if self._left:
            return CompanyWish(self._left.pop(0), self._node, leaves=True)
        return next((wish for seat in self._seats.values() if (wish := seat.wish(now_ns, self._node))), None)

    def heard(self, wish: CompanyWish, seen: CompanySeen, now_ns: int) -> None:
        """Take in an answer."""
        self.problem = seen.caveat
        for seat in self._seats.values():
            if seat.name == wish.cause and not wish.leaves:
                seat.heard(wish, seen, now_ns)
