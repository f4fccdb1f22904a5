"""What a meeting place can do. Every call may block and belongs into a child; every call may raise PlaceProblem."""

from typing import Literal, NamedTuple, Protocol

import msgspec

from stallwatch.errors import StallwatchError

# A claim is in force for this long after it was renewed.
CLAIM_SECONDS = 10.0
# A node that has not looked for this long has left, where another leaves: the last one ends the incident.
LEFT_SECONDS = 30.0
# An incident that nobody has looked at for this long is over. Longer than the meeting place itself may be away: who
# joins after that must meet those who had joined before it.
DESERTED_SECONDS = 600.0
# An incident that is older than the ranks of who comes is of a job before: by more than file systems round times.
LIFE_SECONDS = 1.0
# What is in a meeting place goes after this, whoever has died.
KEPT_SECONDS = 3600
# Each node says so often which key it signs with; who has not for the second time is gone.
GREET_SECONDS = 20.0
GREETED_SECONDS = 70.0
MOST_GUESTS = 64
MOST_ALIKE = 512  # of one's own key; of more no list is whole
# The largest thing that is put, or believed, in a meeting place.
MOST_BYTES = 256 << 10

# Of what people say to all nodes: how many things, and of how many bytes each.
MOST_ORDERS = 512
MOST_ORDER_BYTES = 4 << 10

Kind = Literal["told", "report"]


class PlaceProblem(StallwatchError):
    """The meeting place did not do what was asked: away, full, read-only, refused."""


class Key(msgspec.Struct, frozen=True):
    """An incident of one life of a job, the same on all of its nodes. No time of a node's clock is in it."""

    job: str  # a name that is a safe file name: incidents.incident_names
    ordinal: int  # given by the meeting place, from 1


class Life(NamedTuple):
    """How old a job is on the node that asks. A job that is started anew at the same address has the same name, and
    clocks are apart: by ages alone all nodes can tell that an incident was there before it."""

    seconds: float  # since the youngest of its processes here began
    begun: bool  # past its start: nobody joins such a job late


class Board(msgspec.Struct, frozen=True):
    """What a meeting place shows of an incident at one look."""

    puts: int = 0  # changes with each summary; meaningful in a `whole` look alone
    holder: str = ""  # whose claim is in force; "": nobody's
    generation: int = 0  # of the last claim; 0: there was none
    told: bytes = b""  # what was told to people; b"": nothing
    report_revision: int = 0  # of the job's verdict; 0: there is none
    closed: bool = False
    member: bool = True  # the node that looks has joined; False: the place has lost it, or holds that it has left


class Turn(msgspec.Struct, frozen=True):
    """What a node does about an incident that it has joined, in this order, before it looks."""

    told: bytes = b""  # to be noted, of `generation`
    generation: int = 0  # of its claim, to be renewed; 0: it holds none
    summary: bytes = b""
    claims: bool = False
    report: bytes = b""  # the job's verdict, where it holds the claim
    closes: bool = False
    whole: bool = False
    known_report: int = 0  # revision that it has


class Turned(msgspec.Struct, frozen=True):
    """What came of it."""

    told_noted: bool
    generation: int  # of its claim that is in force; 0: it holds none
    report_noted: bool
    board: Board
    report: bytes  # the job's verdict of another, where it is not the known one


class Dated(NamedTuple):
    """Summaries of an incident by node, and for how many seconds each stands there by the place's own clock; of one
    that was put anew while it was read, that is not known."""

    summaries: dict[str, bytes]
    ages: dict[str, float]


class Published(NamedTuple):
    """The job's verdict as it stands in the meeting place."""

    revision: int = 0  # 0: there is none
    data: bytes = b""
    seconds: float = 0.0  # since it was put, by the place's own clock


class Guest(NamedTuple):
    """A node that is at the meeting place."""

    node: str
    key: str  # by which the key that it signs with is known: seal.key_id
    word: bytes


class Standing(msgspec.Struct, frozen=True):
    """What somebody has posted for all nodes."""

    name: str
    data: bytes
    seconds: float  # that it still stands, by the place's own clock


class MeetingPlace(Protocol):
    """Where nodes meet."""

    def check(self) -> None:
        """Try that it can be read and written, and that two cannot claim one thing."""
        ...

    def join(self, job: str, node: str, past: int = 0, life: Life | None = None) -> int:
        """Join the open incident of a job, or open the next, whose ordinal is larger than `past`, also where the place
        has lost what it knew; return its ordinal. Atomic: all nodes get the same. One that was opened before this
        `life` of the job began is another job's, and left as it is; where that has not got past its start, it may have
        been waited for: then only if nobody has looked for LEFT_SECONDS."""
        ...

    def put(self, key: Key, node: str, summary: bytes) -> None:
        """Put this node's summary in place of its last one."""
        ...

    def summaries(self, key: Key) -> dict[str, bytes]:
        """Return all summaries, by node."""
        ...

    def dated_summaries(self, key: Key) -> Dated:
        """Return all summaries, and for how many seconds each stands there."""
        ...

    def look(self, key: Key, node: str, *, whole: bool) -> Board:
        """Return how things stand, and note that this node looks on. `whole`: with `puts`, which may cost more."""
        ...

    def turn(self, key: Key, node: str, turn: Turn) -> Turned:
        """Do all that a node wants at one moment, and look; where an answer takes seconds, it takes those of one."""
        ...

    def claim(self, key: Key, node: str) -> int:
        """Claim to speak for the job for CLAIM_SECONDS; return the generation, 0 where another's claim is in force."""
        ...

    def renew(self, key: Key, node: str, generation: int) -> bool:
        """Renew a claim; return whether it is still in force."""
        ...

    def mark(self, key: Key, generation: int, kind: Kind, data: bytes) -> bool:
        """Note what was told, or the job's verdict, in the name of a claim; return False where a later one is in force.
        Generation 0, of who told alone: only where nothing is noted yet."""
        ...

    def report(self, key: Key) -> Published:
        """Return the job's verdict as it stands there."""
        ...

    def close(self, key: Key) -> None:
        """The incident is over: who joins from now on opens the next."""
        ...

    def post(self, name: str, data: bytes, seconds: float, *, anew: bool) -> None:
        """Post something for all nodes under a name, for a time, in place of what stood there; where it is not `anew`,
        only if nothing does. Raise PlaceProblem when there are MOST_ORDERS."""
        ...

    def posted(self, known: str) -> tuple[str, list[Standing] | None]:
        """Return the revision of what is posted, and all of it; None where the revision is the known one. What stands
        before its colon is another when everything was lost; "": nothing was ever posted."""
        ...

    def leave(self, key: Key, node: str) -> None:
        """This node looks on no more, and what it said goes; the last one closes it."""
        ...

    def greet(self, node: str, word: bytes, about: str = "") -> list[Guest]:
        """Note that this node is here with the key of this place ("": note nothing), in place of what it said before
        with this key or another; return who is here: of its own key MOST_ALIKE, without their words, of others
        MOST_GUESTS in all; of the node itself, or of `about`, with the word that stood there before. All else in a
        place is of one key: who signs with another sees none of it."""
        ...

    def hang_up(self) -> None:
        """Hang up; the next call connects anew."""
        ...


def is_of_another(life: Life | None, opened_seconds: float | None, *, attended: bool) -> bool:
    """Whether an incident, opened so long ago (None: not known), is of a job before. `attended`: somebody looks on."""
    if life is None or opened_seconds is None or opened_seconds <= life.seconds + LIFE_SECONDS:
        return False
    return life.begun or not attended


def step_by_step(place: MeetingPlace, key: Key, node: str, turn: Turn) -> Turned:
    """A turn by single calls, in the order in which it is safe: what was told is noted before anything else."""
    told_noted = bool(turn.told) and place.mark(key, turn.generation, "told", turn.told)
    generation = turn.generation if turn.generation and place.renew(key, node, turn.generation) else 0
    if turn.summary:
        place.put(key, node, turn.summary)
    if turn.claims and not generation:
        generation = place.claim(key, node)
        if generation:
            place.renew(key, node, generation)
    report_noted = bool(turn.report and generation) and place.mark(key, generation, "report", turn.report)
    if turn.closes:
        place.close(key)
    board = place.look(key, node, whole=turn.whole or bool(generation))
    known = board.report_revision in (0, turn.known_report) or generation
    return Turned(told_noted, generation, report_noted, board, b"" if known else place.report(key).data)
