"""Who left the program: each rank's calls in host order over all groups, against its peers and its own earlier steps.

In a cycle of waits everybody waits; only the order of calls tells who started it. Places are comparable across ranks
because a collective carries its number in its group: what most ranks call after number 17 of "dp" is the program.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from stallwatch.diagnosis.calls.programs import ProgramCall, Token, read_programs
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.job.groups import key
from stallwatch.diagnosis.recorder import signature
from stallwatch.model.summary import Call

_MIN_HISTORY = 3
_WAY = 4  # calls that make a way: long enough to tell the end of a loop from its middle
_ROUND = 16  # calls of a round that goes round again: a batch's members, and what a stage does of one microbatch
_SHORT, _LONG = 12, 512  # calls of a context; a long one is a habit where it was there more than once


class SequenceBreak(msgspec.Struct, frozen=True):
    """A call where peers, or the rank itself in earlier steps, called something else."""

    rank: int
    place: int  # index in the rank's program
    seq: int  # of the call in its group; 0 for transfers
    found: Call
    expected: tuple[Call, ...]  # what peers called there, as the rank itself would have


def find_departures(case: Case, ranks: Iterable[int]) -> tuple[SequenceBreak, ...]:
    """Given ranks, return the first place where each left the program, if it did."""
    programs = read_programs(case, ranks)
    found: list[SequenceBreak] = []
    everywhere: dict[Hashable, Counter[Token]] = {}
    for steps in programs.steps.values():
        for here, after in pairwise(steps):
            everywhere.setdefault(here.key, Counter())[after.token] += 1
    for mates in programs.mates:
        nexts: dict[Hashable, dict[Token, Call]] = {}
        votes: dict[Hashable, Counter[Token]] = {}
        for rank in mates:
            for here, after in pairwise(programs.steps[rank]):
                votes.setdefault(here.key, Counter())[after.token] += 1
                nexts.setdefault(here.key, {})[after.token] = after.call
        for rank in mates:
            steps = programs.steps[rank]
            others = Others(case, rank, frozenset(mates), votes, everywhere)
            departure = _first_departure(rank, steps, votes, nexts, others, _met_all(case, rank, steps))
            if departure is not None:
                found.append(departure)
    return tuple(sorted(found, key=lambda departure: departure.rank))


def transfers_apart(case: Case, ranks: Iterable[int], group: int) -> dict[int, SequenceBreak | None]:
    """Given ranks and a group in which they exchange, return of each that has mates, at its place of another pipeline
    or around a ring, the first place where none of them goes its way and where it, or they, exchange in a group of
    that kind; None where they all go alike."""
    programs = read_programs(case, case.summaries)
    found = {}
    for rank in ranks:
        mates = next((mates for mates in programs.mates if rank in mates), [rank])
        others = [programs.steps[mate] for mate in mates if mate != rank]
        if others:
            found[rank] = _first_apart(case, rank, programs.steps[rank], others, group)
    return found


def _first_apart(
    case: Case, rank: int, steps: Sequence[ProgramCall], others: Sequence[Sequence[ProgramCall]], group: int
) -> SequenceBreak | None:
    whole = all(summary.whole for summary in case.summaries.values())
    theirs: dict[Hashable, dict[Token, Call]] = {}
    for other in others:
        for before, here in _pairs(other, whole):
            theirs.setdefault(before, {})[here.token] = here.call
    for before, here in _pairs(steps, whole):
        usual = theirs.get(before)
        if not usual or here.token in usual:
            continue
        own = case.group_of[rank, here.call.stream] == group and signature.is_transfer(here.call.operation)
        if own or any(signature.is_transfer(call.operation) for call in usual.values()):
            return SequenceBreak(rank, steps.index(here), here.seq, here.call, _as_own(steps, here, usual))
    return None


def _pairs(steps: Sequence[ProgramCall], whole: bool) -> Iterator[tuple[Hashable, ProgramCall]]:
    """Each call with the place of the one before it; of a program that is held from its beginning the first, too."""
    if whole and steps:
        yield None, steps[0]
    for before, here in pairwise(steps):
        yield before.key, here


def _first_departure(
    rank: int,
    steps: Sequence[ProgramCall],
    votes: Mapping[Hashable, Counter[Token]],
    nexts: Mapping[Hashable, Mapping[Token, Call]],
    others: "Others",
    met: int,
) -> SequenceBreak | None:
    calls = [step.call for step in steps]
    text = _as_text(calls)
    for place in range(1, len(steps)):
        before, here = steps[place - 1], steps[place]
        counts = votes[before.key]
        total = sum(counts.values())
        usual = max(counts, key=lambda token: (counts[token], str(token)))
        if counts[here.token] == total and total > 1:
            continue  # its peers do the same
        if 2 * counts[usual] > total:
            if usual != here.token and total > 1 and not _recurs(calls, place):
                due = {usual: nexts[before.key][usual]}
                return SequenceBreak(rank, place, here.seq, here.call, _as_own(steps, here, due))
            if total > 1:
                continue
        # Of what it has not called before it may be the peer that left it out: in the first step nothing tells.
        is_again = here.token != steps[0].token and here.call in calls[:place]
        goes_round = total > 1 and is_again and steps[0].token in counts
        if goes_round and place >= met and _is_start(calls, place) and not _recurs(calls, place):
            due = {steps[0].token: steps[0].call}
            return SequenceBreak(rank, place, here.seq, here.call, _as_own(steps, here, due))
        if signature.is_barrier(here.call.operation) and here.call not in calls[:place]:
            loop = {token: call for token, call in nexts[before.key].items() if token != here.token}
            if _goes_round(steps[:place], _run(calls, place), loop):  # it waits at the end, its peers go round again
                return SequenceBreak(rank, place, here.seq, here.call, _as_own(steps, here, loop))
        if place < max(_MIN_HISTORY, met):
            continue
        if here.call not in calls[:place] and others.come_to_it(steps, place, met):
            continue  # what a first round comes to, as do ranks that may run another program: habits do not tell of it
        followers = _followers(text, place)
        own = {calls[after] for after in followers}
        if total > 1 and not any(steps[after].token in counts for after in followers):
            continue  # what it did before none of its peers does here: all have come to something new
        if own and here.call not in own and not _recurs(calls, place):
            return SequenceBreak(rank, place, here.seq, here.call, tuple(sorted(own, key=_order)))
    return None


class Others(NamedTuple):
    """What ranks call that are not mates of one: they may run another program."""

    case: Case
    rank: int
    mates: frozenset[int]
    votes: Mapping[Hashable, Counter[Token]]  # by place, of the mates what comes next
    everywhere: Mapping[Hashable, Counter[Token]]  # of all

    def come_to_it(self, steps: Sequence[ProgramCall], place: int, met: int) -> bool:
        """Whether they call the same there, so that it may be where a first round has come to.

        Before a whole round (`met`) that is any collective that others of its group have made under that number: who
        stands at another place of a pipeline comes to it from messages of its own. After one, a transfer that as many
        of them have made at that place of a round before, where the rank itself went another way, is theirs: to whom
        each sends is its own, and rank 3 that sends to 1 for once does not do so because rank 0 always has.
        """
        before, here = steps[place - 1], steps[place]
        now = self._after(before.key, here.token)
        if not met:
            return now > 0 or self._have_called(here)
        if not now or not signature.is_transfer(here.call.operation):
            return now > 0
        return not any(
            step.token == before.token and self._after(step.key, here.token) >= now for step in steps[: place - 1]
        )

    def _after(self, key: Hashable, token: Token) -> int:
        return self.everywhere[key][token] - self.votes[key][token]

    def _have_called(self, here: ProgramCall) -> bool:
        members = self.case.streams[self.case.group_of[self.rank, here.call.stream]]
        calls = (member.call_at(here.seq) for rank, member in members.items() if rank not in self.mates)
        return here.seq > 0 and any(call is not None and key(call) == key(here.call) for call in calls)


def _goes_round(steps: Sequence[ProgramCall], run: int, loop: Collection[Token]) -> bool:
    """Given a rank's calls, and where the run of equal rounds begins that its last one ends, return whether one of
    `loop` has followed such a call before, or is the first of all, and nothing has followed such a one yet. What was
    called before in another place may be one call too many as well; within a run another of its rounds follows."""
    last = steps[-1].token
    followers = {after.token for here, after in pairwise(steps[:run]) if here.token == last} or {steps[0].token}
    return not followers.isdisjoint(loop)


def _as_own(steps: Sequence[ProgramCall], here: ProgramCall, due: Mapping[Token, Call]) -> tuple[Call, ...]:
    """Calls of peers as the rank itself makes them: in groups of its own. Of a kind of group that it has never
    used it has none; then what it called instead says where."""
    own = {step.token: step.call for step in steps}
    streams = {step.token.group: step.call.stream for step in steps}
    calls = (
        own.get(token) or msgspec.structs.replace(call, stream=streams.get(token.group, here.call.stream))
        for token, call in due.items()
    )
    return tuple(sorted(calls, key=_order))


def _as_text(calls: Sequence[Call]) -> str:
    """One character a call, equal for equal calls: strings are searched as fast as memory is read."""
    numbers: dict[Call, int] = {}
    return "".join(chr(numbers.setdefault(call, len(numbers))) for call in calls)


def _followers(text: str, place: int) -> set[int]:
    """Given a rank's calls and a place among them, return where what has followed the longest context that occurred
    before stands: calls of a short context, or of a long one that occurred more than once. Rounds that look alike fill
    a short one, and only a long one tells the first of them from the last."""

    def times(length: int, wanted: int) -> bool:
        context, end = text[place - length : place], place - 1  # what follows lies before the place
        for _ in range(wanted):
            end = text.rfind(context, 0, end) + length - 1
            if end < length - 1:
                return False
        return True

    low, high = 0, min(_LONG, place)  # the longest that was there twice
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if times(middle, 2) else (low, middle - 1)
    if low < _SHORT:
        low = next((length for length in range(min(_SHORT, place), low, -1) if times(length, 1)), low)
    context, found = text[place - low : place], set[int]()
    at = text.find(context) if low else -1
    while at >= 0 and at + low < place:
        found.add(at + low)
        at = text.find(context, at + 1)
    return found


def _met_all(case: Case, rank: int, steps: Sequence[ProgramCall]) -> int:
    """The place of the newest call in which the rank met the whole world, and which has ended: had its own way been
    another one before, it would not have come there. A habit that is broken once looks broken in earlier steps, too."""
    summary = case.summaries[rank]
    for place in range(len(steps) - 1, 0, -1):
        call, stream = steps[place].call, summary.streams[steps[place].call.stream]
        group = case.groups[case.group_of[rank, call.stream]]
        ended = 0 < steps[place].seq <= stream.completed and signature.is_synchronising(call.operation)
        if ended and group.members_known and len(group.ranks) == len(case.world):
            return place
    return 0


def _is_start(calls: Sequence[Call], place: int) -> bool:
    """True where a loop would go round again: what comes next, by a peer, is what the rank itself began with, and its
    own call before has never been followed by anything."""
    return calls[place - 1] not in calls[: place - 1]


def _recurs(calls: Sequence[Call], place: int) -> bool:
    """True when the rank goes this way more than once: then it is its own program, not a departure from it.

    A way that ends a run of equal rounds, of one call or several, holds the whole run: one round fewer is another way.
    """
    start = min(max(place - _WAY + 1, 0), max(_run(calls, place) - 1, 0))
    way = list(calls[start : place + 1])
    last = calls[place]
    found = 0
    for end in range(len(way) - 1, len(calls)):
        if calls[end] == last and list(calls[end - len(way) + 1 : end + 1]) == way:
            found += 1
            if found > 1:
                return True
    return False


def _run(calls: Sequence[Call], place: int) -> int:
    """Where the longest run of equal rounds that ends before the place begins."""
    first = place - 1
    for length in range(1, min(_ROUND, place // 2) + 1):
        run = place - length
        while run > 0 and calls[run - 1] == calls[run - 1 + length]:
            run -= 1
        if place - run >= 2 * length:
            first = min(first, run)
    return first


def _order(call: Call) -> tuple[str, str, int]:
    return call.operation, call.site, call.stream
