"""One exchange with the meeting place: all that a node wants of it about one incident at one moment, and what it sees.

The daemon's child answers it over a real place; tests over one in memory.
"""

import time
from collections.abc import Callable
from typing import get_args

import msgspec

from stallwatch.clock import SECOND_NS, since_boot_ns
from stallwatch.encoding import msgpack_of
from stallwatch.errors import StallwatchError
from stallwatch.fleet.company_seat import CompanySeen
from stallwatch.fleet.orders import OrdersSeen
from stallwatch.fleet.pace_seat import PaceSeen
from stallwatch.fleet.place import KEPT_SECONDS, Board, Key, Life, MeetingPlace, Turn
from stallwatch.fleet.roster import RosterSeen
from stallwatch.fleet.seal import SealBroken, seal, unseal
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.model.incident import OutputTold, Step, Told, is_last


class Wish(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node gives and asks at one exchange about an incident."""

    job: str
    node: str
    ordinal: int = 0  # 0: join
    past: int = 0  # of the job, that is over for this node: where it is told to nobody, who joins opens the next
    began_ns: int = 0  # CLOCK_BOOTTIME when the youngest of its processes here began; 0: not known
    begun: bool = False  # the job is past its start
    summary: bytes = b""
    claims: bool = False
    generation: int = 0  # of our claim, to be renewed; 0: we hold none
    told: Told | None = None
    report: bytes = b""  # the job's verdict, as JSON
    known_report: int = 0  # revision that we have
    whole: bool = False
    closes: bool = False
    leaves: bool = False


class Seen(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the meeting place showed then."""

    ordinal: int = 0
    board: Board = Board()
    generation: int = 0  # of our claim that is in force; 0: we hold none
    told: Told | None = None
    told_noted: bool = False
    report: bytes = b""  # the job's verdict, where it is another than the known one
    report_noted: bool = False
    caveat: str = ""  # what stands there and is not believed
    orders: OrdersSeen | None = None
    pace: PaceSeen | None = None
    company: CompanySeen | None = None
    roster: RosterSeen | None = None
    problem: str = ""  # nothing else is said then
    advice: str = ""


class _Delivered(msgspec.Struct, frozen=True):
    """model.incident.OutputTold as any version writes it."""

    steps: tuple[str, ...] = ()
    verdict: str = ""
    thread: str = ""


class _Told(msgspec.Struct, frozen=True):
    outputs: dict[str, _Delivered] = {}
    incident_id: str = ""
    waits_on: str = ""
    seconds: float = 0.0


_TOLD = msgspec.msgpack.Decoder(_Told)
_STEPS: dict[str, Step] = {step: step for step in get_args(Step)}
_FLEET = ""  # what is told, and the job's verdict, any node of the fleet may write


def exchange(
    place: MeetingPlace,
    secret: bytes,
    wish: Wish,
    wall_ns: Callable[[], int] = time.time_ns,
    since_boot_ns: Callable[[], int] = since_boot_ns,
) -> Seen:
    """Do what is wished, in the order in which it is safe: what was told is noted before anything else. `wall_ns`,
    `since_boot_ns`: this node's clocks."""
    try:
        life = Life((since_boot_ns() - wish.began_ns) / SECOND_NS, wish.begun) if wish.began_ns else None
        return _exchange(place, secret, wish, wall_ns, life)
    except SealBroken as error:
        return Seen(problem=f"what this node has to say cannot be put: {error}")
    except StallwatchError as error:
        return Seen(problem=str(error), advice=error.help)


def _exchange(place: MeetingPlace, secret: bytes, wish: Wish, wall_ns: Callable[[], int], life: Life | None) -> Seen:
    key = Key(wish.job, wish.ordinal or _joined(place, secret, wish, life))
    if wish.leaves:
        place.leave(key, wish.node)
        return Seen(key.ordinal)
    sealed_told = b""
    if wish.told is not None:
        sealed_told = seal(msgpack_of(wish.told), secret, "told", key, _FLEET)
    try:
        summary = wish.summary and seal(_dated(wish.summary, wall_ns()), secret, "summary", key, wish.node)
        report = wish.report and seal(wish.report, secret, "report", key, _FLEET)
    except SealBroken:
        if sealed_told:
            place.turn(key, wish.node, Turn(sealed_told, wish.generation))
        raise
    turn = Turn(sealed_told, wish.generation, summary, wish.claims, report, wish.closes, wish.whole, wish.known_report)
    turned = place.turn(key, wish.node, turn)
    board = turned.board
    told, caveat = _opened(board.told, secret, "told", key)
    known = _decoded(told)
    if told and known is None:
        caveat = "what stands in the meeting place as told is of another form; are all nodes of one version?"
    report, second = _opened(turned.report, secret, "report", key)
    caveat = caveat or second
    return Seen(
        ordinal=key.ordinal,
        board=msgspec.structs.replace(board, told=b""),
        generation=turned.generation,
        told=known,
        told_noted=turned.told_noted,
        report=report,
        report_noted=turned.report_noted,
        caveat=caveat,
    )


_WORD = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


def _dated(word: bytes, wall_ns: int) -> bytes:
    """A node_word.NodeWord that says when it was put: with the place's own time of that, clocks that are apart are told
    from dumps that are old (clocks). What that is made of stays out of the child that talks."""
    try:
        return msgpack_of({**_WORD.decode(word), "put_wall_ns": wall_ns})
    except NOT_JSON:
        return word


def _joined(place: MeetingPlace, secret: bytes, wish: Wish, life: Life | None) -> int:
    """What nodes said in a standstill that is over for one of them says nothing of the next: a job moves as a whole.
    That people were told of it says nothing either once they were told of its end: a job that somebody ends and begins
    anew at the same address has the same name."""
    ordinal = place.join(wish.job, wish.node, wish.past, life)
    if ordinal != wish.past:
        return ordinal
    key = Key(wish.job, ordinal)
    sealed = place.look(key, wish.node, whole=False).told
    told = _decoded(_opened(sealed, secret, "told", key)[0])
    if sealed and not (told is not None and told.outputs and is_last(told)):
        return ordinal
    place.close(key)
    return place.join(wish.job, wish.node, wish.past, life)


def _opened(sealed: bytes, secret: bytes, kind: str, key: Key) -> tuple[bytes, str]:
    if not sealed:
        return b"", ""
    try:
        return unseal(sealed, secret, kind, key, _FLEET), ""
    except SealBroken as error:
        return b"", f"what stands in the meeting place as {kind} is not believed: {error}"


def _decoded(body: bytes) -> Told | None:
    """A node of a later version may take steps that this one does not know: what it told is told all the same."""
    try:
        told = _TOLD.decode(body) if body else None
    except NOT_JSON:
        return None
    if told is None:
        return None
    outputs = {
        name: OutputTold(tuple(_STEPS[step] for step in one.steps if step in _STEPS), one.verdict, one.thread)
        for name, one in told.outputs.items()
    }
    seconds = min(told.seconds, KEPT_SECONDS) if told.seconds >= 0 else 0.0
    return Told(outputs, told.incident_id, told.waits_on, seconds)
