"""Who left the program: each rank's calls in host order over all groups, against its peers and its own earlier steps.

In a cycle of waits everybody waits; only the order of calls tells who started it. Places are comparable across ranks
because a collective carries its number in its group: what most ranks call after number 17 of "dp" is the program.
"""

from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.job.groups import Group, family, place_among_twins
from stallwatch.diagnosis.recorder import signature
from stallwatch.diagnosis.recorder.reduce import transfer_ends
from stallwatch.model.summary import ANY, Call

_MIN_HISTORY = 3
_WAY = 4  # calls that make a way: long enough to tell the end of a loop from its middle
_ROUND = 16  # calls of a round that goes round again: a batch's members, and what a stage does of one microbatch
_BEGINNING = 16  # calls by which ranks of one program are known
_SHORT, _LONG = 12, 512  # calls of a context; a long one is a habit where it was there more than once


class SequenceBreak(msgspec.Struct, frozen=True):
    """A call where peers, or the rank itself in earlier steps, called something else."""

    rank: int
    place: int  # index in the rank's program
    seq: int  # of the call in its group; 0 for transfers
    found: Call
    expected: tuple[Call, ...]


class _Step(NamedTuple):
    call: Call
    token: Hashable  # what is called, in words that peers share
    key: Hashable  # the same with its number: the place in the program
    seq: int  # in its group; 0 for transfers


def calls_of(case: Case, rank: int) -> list[Call]:
    """Calls of the rank's training lane in order of recording, point-to-point included."""
    summary = case.summaries.get(rank)
    if summary is None or not summary.program:
        return []
    return [summary.calls[value] for value in array("H", summary.program[0]) if value < len(summary.calls)]


def find_departures(case: Case, ranks: Iterable[int]) -> tuple[SequenceBreak, ...]:
    """Given ranks, return the first place where each left the program, if it did."""
    roles: dict[Hashable, list[int]] = {}
    rings = _rings(case)
    whole = all(summary.whole for summary in case.summaries.values())
    steps = {rank: _steps(case, rank, rings, whole) for rank in sorted(ranks)}
    alike = {i: _begin_alike([steps.get(r, []) for r in case.groups[i].ranks]) for i in rings}
    turns = _as_sisters_are(case, alike)
    stages = _stages(case, steps)
    for rank, own in steps.items():
        if own:
            roles.setdefault((_role(case, rank, turns), stages.get(rank)), []).append(rank)
    found: list[SequenceBreak] = []
    for mates in roles.values():
        nexts: dict[Hashable, dict[Hashable, Call]] = {}
        votes: dict[Hashable, Counter[Hashable]] = {}
        for rank in mates:
            for here, after in zip(steps[rank], steps[rank][1:], strict=False):
                votes.setdefault(here.key, Counter())[after.token] += 1
                nexts.setdefault(here.key, {})[after.token] = after.call
        for rank in mates:
            departure = _first_departure(rank, steps[rank], votes, nexts, _met_all(case, rank, steps[rank]))
            if departure is not None:
                found.append(departure)
    return tuple(sorted(found, key=lambda departure: departure.rank))


def _first_departure(
    rank: int,
    steps: Sequence[_Step],
    votes: Mapping[Hashable, Counter[Hashable]],
    nexts: Mapping[Hashable, Mapping[Hashable, Call]],
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
                return SequenceBreak(rank, place, here.seq, here.call, (nexts[before.key][usual],))
            if total > 1:
                continue
        # Of what it has not called before it may be the peer that left it out: in the first step nothing tells.
        is_again = here.token != steps[0].token and here.call in calls[:place]
        goes_round = total > 1 and is_again and steps[0].token in counts
        if goes_round and place >= met and _is_start(calls, place) and not _recurs(calls, place):
            return SequenceBreak(rank, place, here.seq, here.call, (nexts[before.key][steps[0].token],))
        if signature.is_barrier(here.call.operation) and here.call not in calls[:place]:
            loop = [call for token, call in nexts[before.key].items() if token != here.token]
            tokens = {step.token for step in steps[:place]}
            if loop and any(token in tokens for token in nexts[before.key] if token != here.token):
                return SequenceBreak(
                    rank, place, here.seq, here.call, tuple(loop)
                )  # it waits at the end, its peers go round again
        if place < max(_MIN_HISTORY, met):
            continue
        followers = _followers(text, place)
        own = {calls[after] for after in followers}
        if total > 1 and not any(steps[after].token in counts for after in followers):
            continue  # what it did before none of its peers does here: all have come to something new
        if own and here.call not in own and not _recurs(calls, place):
            return SequenceBreak(rank, place, here.seq, here.call, tuple(sorted(own, key=_order)))
    return None


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


def _met_all(case: Case, rank: int, steps: Sequence[_Step]) -> int:
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


def _steps(case: Case, rank: int, rings: frozenset[int], whole: bool) -> list[_Step]:
    """The rank's calls with their places. `whole`: no ring has lost its beginning, and transfers count from there; else
    they are since the last collective, whose number all members share."""
    calls = calls_of(case, rank)
    summary = case.summaries.get(rank)
    if summary is None:
        return []
    remaining = Counter(call.stream for call in calls if not signature.is_transfer(call.operation))
    transfers: Counter[Hashable] = Counter()
    since: Hashable = None if whole else rank  # before the first collective that a wrapped ring holds nothing is shared
    tokens: dict[int, Hashable] = {}  # a call is made thousands of times, and is one object of the summary's table
    steps = []
    for call in calls:
        token = tokens.get(id(call))
        if token is None:
            token = tokens[id(call)] = _peer_token(case, rank, call, rings)
        stream = summary.streams[call.stream]
        if signature.is_transfer(call.operation):
            transfers[token] += 1
            place: Hashable = (since, transfers[token])
            seq = 0
        else:
            # Numbered from the end: the ring may have lost the beginning.
            place = seq = stream.last_seq - remaining[call.stream] + 1
            remaining[call.stream] -= 1
            if not whole:
                since = token, seq
                transfers.clear()
        steps.append(_Step(call, token, (token, place), seq))
    return steps


def _rings(case: Case) -> frozenset[int]:
    """Groups whose members exchange with those at the same distances around them, but for one at most: what any of
    them does there, all do. Two that exchange are a pipeline as much as a ring: how they begin tells which."""
    around: dict[int, dict[int, set[tuple[bool, int]]]] = {}
    for rank, summary in case.summaries.items():
        for pair in summary.pairs:
            group = case.groups[case.group_of[rank, pair.stream]]
            ends = case.global_ends(group, rank, pair.source, pair.destination, pair.outgoing)
            way = _distance(group, rank, ends[ends[0] == rank])
            if way is not None:
                around.setdefault(group.index, {}).setdefault(rank, set()).add((ends[0] == rank, way))
    alike = {}
    for index, members in around.items():
        size = len(case.groups[index].ranks)
        most = Counter(frozenset(ways) for ways in members.values()).most_common(1)[0][1]
        alike[index] = most >= _most_of(size)
    return _as_sisters_are(case, alike)


def _as_sisters_are(case: Case, holds: Mapping[int, bool]) -> frozenset[int]:
    """Groups of which something holds; of those that left not all dumps, that of which it holds for most sisters."""
    votes: dict[Hashable, Counter[bool]] = {}
    seen = {index for index in holds if all(case.recorded(rank) for rank in case.groups[index].ranks)}
    kinds = {index: (family(case.groups[index].description), len(case.groups[index].ranks)) for index in holds}
    for index in seen:
        votes.setdefault(kinds[index], Counter())[holds[index]] += 1
    found = set()
    for index, own in holds.items():
        told = votes.get(kinds[index]) if index not in seen else None
        if (told[True] > told[False]) if told else own:
            found.add(index)
    return frozenset(found)


def _most_of(members: int) -> int:
    """All but one at most; of two both."""
    return max(members - 1, 2)


def _distance(group: Group, rank: int, peer: int) -> int | None:
    """How many places on in a group a rank's peer stands, round and round; None where its members are not known."""
    if not group.members_known or rank not in group.ranks or peer not in group.ranks:
        return None
    return (group.ranks.index(peer) - group.ranks.index(rank)) % len(group.ranks)


def _begin_alike(steps: Sequence[Sequence[_Step]]) -> bool:
    """All but one at most, in the first half of what each of them has called: stages of an interleaved pipeline
    exchange round and round as well, and begin each in its own way."""
    length = min(_BEGINNING, max(min(map(len, steps), default=0) // 2, _WAY))
    alike = Counter(tuple(step.token for step in of_one[:length]) for of_one in steps)
    return alike.most_common(1)[0][1] >= _most_of(len(steps))


def _role(case: Case, rank: int, rings: frozenset[int]) -> Hashable:
    """Ranks at one place of a pipeline run one program: their place in the groups that carry transfers, and the kinds
    of groups that they use at all (tied embeddings are reduced by the first and the last stage alone)."""
    summary = case.summaries[rank]
    used = [case.groups[case.group_of[rank, index]] for index in range(len(summary.streams))]
    places: set[Hashable] = {family(group.description) for group in used if not group.is_default}
    for pair in summary.pairs:
        group = case.groups[case.group_of[rank, pair.stream]]
        if not group.members_known or rank not in group.ranks:
            continue
        place = -1 if group.index in rings else group.ranks.index(rank)
        places.add((family(group.description), len(group.ranks), place))
    return frozenset(places)


def _stages(case: Case, steps: Mapping[int, Sequence[_Step]]) -> dict[int, Hashable]:
    """Where no transfer is recorded, which ranks go one way between two calls of the whole world: stages of a pipeline
    do, each in another way than the next. Whose way is nobody else's, or has not come to its end yet, is of those with
    whom it went the longest; a rank that is left out might be of any."""
    if any(summary.pairs for summary in case.summaries.values()):
        return {}
    ways = _ways_between(case, steps)
    shared = [way for way, count in Counter(way for way, ended in ways.values() if ended).items() if count > 1]
    if len(shared) < 2:
        return {}
    begun = Counter(way for way, ended in ways.values() if not ended and not any(_goes_on(way, o) for o in shared))
    stage_of = {way: _stage(way, begun, shared) for way in {way for way, _ in ways.values()}}
    return {rank: rank if (stage := stage_of[way]) is None else stage for rank, (way, _) in ways.items()}


def _stage(
    way: tuple[Hashable, ...], begun: Mapping[tuple[Hashable, ...], int], shared: Sequence[tuple[Hashable, ...]]
) -> Hashable:
    """The way by which a stage is known; None where it might be of several. `begun`: ways that have not come to their
    end and begin none of the shared ones, with how many ranks have come so far on each."""
    mates = [other for other in begun if _goes_on(way, other) or _goes_on(other, way)] if way in begun else []
    if sum(begun[other] for other in mates) > 1:
        return min(mates, key=len)  # a stage of which none has come to its end
    alike = [_alike(way, other) for other in shared]
    nearest = [other for other, length in zip(shared, alike, strict=True) if length == max(alike)]
    return nearest[0] if len(nearest) == 1 else None


def _ways_between(case: Case, steps: Mapping[int, Sequence[_Step]]) -> dict[int, tuple[tuple[Hashable, ...], bool]]:
    """What each rank called from the start, or from the first call of the whole world that all rings hold, to the next
    such call, and whether it came to that."""
    everywhere = {g.index for g in case.groups if g.members_known and len(g.ranks) == len(case.world)}
    meetings = {
        rank: [place for place, step in enumerate(own) if case.group_of[rank, step.call.stream] in everywhere]
        for rank, own in steps.items()
    }
    whole = all(case.summaries[rank].whole for rank in steps)
    if sum(map(bool, meetings.values())) < 2:
        # They never met: half of what all of them have called lies before whatever one of them did otherwise.
        shortest = min(map(len, steps.values()), default=0) // 2 if whole else 0
        return {rank: (tuple(step.token for step in own[:shortest]), True) for rank, own in steps.items()}
    firsts = [steps[rank][places[0]].seq for rank, places in meetings.items() if places]
    ways = {}
    for rank, own in steps.items():
        places = meetings[rank]
        start = 0
        if not whole:
            held = [place for place in places if own[place].seq >= max(firsts)]
            start, places = (held[0] + 1, held[1:]) if held else (len(own), [])
        end = places[0] if places else len(own)
        ways[rank] = (tuple(step.token for step in own[start:end]), bool(places))
    return ways


def _goes_on(way: Sequence[Hashable], other: Sequence[Hashable]) -> bool:
    """Whether the other way begins with this one."""
    return other[: len(way)] == way


def _alike(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """How many calls two ways have in common from their start; equal ways one more."""
    same = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    return min(len(one), len(other)) + (one == other) if same is None else same


def _peer_token(case: Case, rank: int, call: Call, rings: frozenset[int]) -> Hashable:
    """A call as peers would make it: their groups differ in number, not in kind."""
    group = case.groups[case.group_of[rank, call.stream]]
    operation, _, _ = call.operation.partition(" ")
    way = _way(case, group, rank, call.operation, rings) if signature.is_transfer(call.operation) else ""
    kind = (family(group.description), place_among_twins(case.groups, group))
    return kind, case.usual_size(group), operation + way, call.elements, call.dtype, call.site


def _way(case: Case, group: Group, rank: int, operation: str, rings: frozenset[int]) -> str:
    """To which place in the group a transfer goes, around a ring how far, where its members are known; else only in
    which direction."""
    source, destination = transfer_ends(operation)
    if ANY in (source, destination):
        return ""
    outgoing = operation.startswith("send")
    peer = case.global_ends(group, rank, source, destination, outgoing)[outgoing]
    distance = _distance(group, rank, peer)
    if distance is None:
        return "+" if (source < destination) == outgoing else "-"
    return f" {distance} on" if group.index in rings else f" {group.ranks.index(peer)}"
