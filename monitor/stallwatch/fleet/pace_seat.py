"""What this node asks of the meeting place about the pace of one job: its own is put every ten seconds, one node judges
all of them, every node hears what was found. Where the place does not answer nothing is found. Pure: time is given.

The job while it moves is incident 0 of the job: incidents that stop it begin with 1.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from stallwatch.clock import SECOND_NS, since_boot_ns
from stallwatch.encoding import json_of
from stallwatch.fleet.pace_verdict import PaceVerdict
from stallwatch.fleet.place import CLAIM_SECONDS, LIFE_SECONDS, Key, MeetingPlace
from stallwatch.fleet.seal import SealBroken, seal, unseal

PUT_SECONDS: Final = 10.0
SILENT_SECONDS: Final = 2.5 * PUT_SECONDS  # a node that has put nothing for so long is down, or cut off
_RENEW_SECONDS: Final = 4.0
_JUDGE_SECONDS: Final = 10.0  # from one judgement to the next; longer where it takes long
_REST: Final = 5  # times what the last one took
_BELIEVED_SECONDS: Final = 60.0  # after the last answer
ORDINAL: Final = 0


class PaceWish(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node gives and asks about a job's pace."""

    job: str
    node: str
    pace: bytes = b""
    generation: int = 0
    verdict: bytes = b""
    known: int = 0
    began_ns: int = 0  # as JobPace


class PaceSeen(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the meeting place showed of it."""

    generation: int = 0
    verdict: bytes = b""
    revision: int = 0
    noted: bool = False
    caveat: str = ""


class JobPace(NamedTuple):
    """What this node says of a job now."""

    job: str  # as the meeting place calls it
    pace: bytes  # fleet.pace_verdict.encode_pace
    world_size: int
    began_ns: int = 0  # CLOCK_BOOTTIME when the youngest of its processes here began; 0: not known


_VERDICT = msgspec.json.Decoder(PaceVerdict)


def exchange_pace(
    place: MeetingPlace, secret: bytes, wish: PaceWish, since_boot_ns: Callable[[], int] = since_boot_ns
) -> PaceSeen:
    """Put, claim or renew, note the verdict where it is ours, read it where it is another's. Raise StallwatchError."""
    key = Key(wish.job, ORDINAL)
    if wish.pace:
        place.put(key, wish.node, seal(wish.pace, secret, "pace", key, wish.node))
    generation = wish.generation if wish.generation and place.renew(key, wish.node, wish.generation) else 0
    if not generation:
        generation = place.claim(key, wish.node)
        if generation:
            place.renew(key, wish.node, generation)
    if generation and wish.verdict:
        noted = place.mark(key, generation, "report", seal(wish.verdict, secret, "pace verdict", key, ""))
        return PaceSeen(generation, noted=noted)
    board = place.look(key, wish.node, whole=False)
    if board.report_revision in (0, wish.known):
        return PaceSeen(generation, revision=board.report_revision)
    revision, sealed, seconds = place.report(key)
    if wish.began_ns and seconds > (since_boot_ns() - wish.began_ns) / SECOND_NS + LIFE_SECONDS:
        return PaceSeen(generation, revision=revision)  # of a job before this one, at the same address
    try:
        return PaceSeen(generation, unseal(sealed, secret, "pace verdict", key, ""), revision)
    except SealBroken as error:
        return PaceSeen(generation, revision=revision, caveat=f"who holds a job back is not believed: {error}")


class PaceSeat:
    """A node's part in a job's pace."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._generation = 0
        self._until_ns = 0
        self._asked_ns: int | None = None
        self._put_ns: int | None = None
        self._answered_ns = 0
        self._verdict = PaceVerdict()
        self._known = 0
        self._unnoted = b""
        self._judged_ns: int | None = None
        self._judge_from_ns = 0

    @property
    def verdict(self) -> PaceVerdict:
        """Who holds the job back, as last judged."""
        return self._verdict

    def wish(self, now_ns: int, job: JobPace) -> PaceWish | None:
        """Return what is to be asked, where it is time to. `heard` or nothing follows."""
        since_ns = None if self._asked_ns is None else now_ns - self._asked_ns
        puts = self._put_ns is None or now_ns - self._put_ns >= PUT_SECONDS * SECOND_NS
        often = _RENEW_SECONDS if self._generation else PUT_SECONDS
        if since_ns is not None and since_ns < often * SECOND_NS and not (self._unnoted and since_ns > SECOND_NS):
            return None
        self._asked_ns = now_ns
        if puts:
            self._put_ns = now_ns
        pace = job.pace if puts else b""
        return PaceWish(job.job, self._node, pace, self._generation, self._unnoted, self._known, job.began_ns)

    def heard(self, wish: PaceWish, seen: PaceSeen, now_ns: int) -> None:
        """Take what the meeting place showed."""
        self._answered_ns = now_ns
        self._generation = seen.generation
        self._until_ns = now_ns + int((CLAIM_SECONDS - 1) * SECOND_NS)
        if not seen.generation or (seen.noted and wish.verdict == self._unnoted):
            self._unnoted = b""
        if seen.verdict:
            self._known = seen.revision
            try:
                self._verdict = _VERDICT.decode(seen.verdict)
            except msgspec.MsgspecError:
                self._verdict = PaceVerdict()

    def wants_verdict(self, now_ns: int) -> bool:
        """Whether this node is the one that judges, and it is time to."""
        return bool(self._generation) and now_ns < self._until_ns and now_ns >= self._judge_from_ns

    def judging(self, now_ns: int) -> None:
        """Note that it is being judged now."""
        self._judged_ns = now_ns
        self._judge_from_ns = now_ns + int(_JUDGE_SECONDS * SECOND_NS)

    def judged(self, verdict: PaceVerdict | None, now_ns: int) -> None:
        """Take in what was found; None: it could not be judged."""
        took_ns = now_ns - (self._judged_ns or now_ns)
        self._judge_from_ns = now_ns + max(int(_JUDGE_SECONDS * SECOND_NS) - took_ns, _REST * took_ns, SECOND_NS)
        if verdict is not None:
            if verdict.ranks or self._verdict.ranks or verdict.waited_for != self._verdict.waited_for:
                self._unnoted = json_of(verdict)
            self._verdict = verdict

    def found(self, now_ns: int) -> PaceVerdict | None:
        """Return who holds the job back as far as is known now."""
        is_fresh = now_ns - self._answered_ns < _BELIEVED_SECONDS * SECOND_NS
        return self._verdict if self._verdict.ranks and is_fresh else None
