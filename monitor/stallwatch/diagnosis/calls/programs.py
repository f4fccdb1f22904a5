"""Each rank's calls in host order over all groups, in words that its peers share; and which ranks run one program.

Places are comparable across ranks because a collective carries its number in its group: what most ranks call after
number 17 of "dp" is the program.
"""

from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.job.groups import Group, family, place_among_twins
from stallwatch.diagnosis.recorder import signature
from stallwatch.diagnosis.recorder.transfer_counts import ends_in_name
from stallwatch.model.summary import ANY, Call

_BEGINNING = 16  # calls by which ranks of one program are known
_SHORTEST = 4  # fewer make no beginning


class Token(NamedTuple):
    """A call as peers would make it: their groups differ in number, not in kind."""

    group: tuple[Hashable, ...]  # its kind and its usual size
    operation: str  # and whereto a transfer goes
    elements: int | None
    dtype: str
    site: str


class ProgramCall(NamedTuple):
    """One call of a program, in the words that peers share."""

    call: Call
    token: Token  # what is called, in words that peers share
    key: Hashable  # the same with its number: the place in the program
    seq: int  # in its group; 0 for transfers


def calls_of(case: Case, rank: int) -> list[Call]:
    """Calls of the rank's training lane in order of recording, point-to-point included."""
    summary = case.summaries.get(rank)
    if summary is None or not summary.program:
        return []
    return [summary.calls[value] for value in array("H", summary.program[0]) if value < len(summary.calls)]


def place_of(case: Case, rank: int, group: int, seq: int) -> int | None:
    """Where in `calls_of` the rank's collective of this number in a group stands; None where that was not recorded."""
    member = case.streams[group].get(rank)
    if member is None or seq > member.stream.last_seq:
        return None
    after = member.stream.last_seq - seq
    places = [
        place
        for place, call in enumerate(calls_of(case, rank))
        if case.group_of[rank, call.stream] == group and not signature.is_transfer(call.operation)
    ]
    return places[-1 - after] if after < len(places) else None


class Programs(NamedTuple):
    """What each rank called, and who calls the same things."""

    steps: dict[int, list[ProgramCall]]
    mates: list[list[int]]  # ranks that run one program: at one place of a pipeline, around a ring


def read_programs(case: Case, ranks: Iterable[int]) -> Programs:
    """Given ranks, return what each of them called, and which of them run one program."""
    rings = _rings(case)
    whole = all(summary.whole for summary in case.summaries.values())
    steps = {rank: _steps(case, rank, rings, whole) for rank in sorted(ranks)}
    begun = {i: [_from_first(case, r, steps.get(r, ()), i, whole) for r in case.groups[i].ranks] for i in rings}
    shared = {i: of_group if whole else _from_shared(of_group) for i, of_group in begun.items()}
    alike = {i: None if one is None else _begin_alike(one) for i, one in shared.items()}
    turns = _as_sisters_are(case, alike)
    stages = _stages(case, steps)
    roles: dict[Hashable, list[int]] = {}
    for rank, own in steps.items():
        if own:
            roles.setdefault((_role(case, rank, turns), stages.get(rank)), []).append(rank)
    return Programs(steps, list(roles.values()))


def _steps(case: Case, rank: int, rings: frozenset[int], whole: bool) -> list[ProgramCall]:
    """The rank's calls with their places. `whole`: no ring has lost its beginning, and transfers count from there; else
    they are since the last collective, whose number all members share."""
    calls = calls_of(case, rank)
    summary = case.summaries.get(rank)
    if summary is None:
        return []
    remaining = Counter(call.stream for call in calls if not signature.is_transfer(call.operation))
    transfers: Counter[Hashable] = Counter()
    since: Hashable = None if whole else rank  # before the first collective that a wrapped ring holds nothing is shared
    tokens: dict[int, Token] = {}  # a call is made thousands of times, and is one object of the summary's table
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
        steps.append(ProgramCall(call, token, (token, place), seq))
    return steps


def _rings(case: Case) -> frozenset[int]:
    """Groups whose members exchange with those at the same distances around them, but for one at most: what any of
    them does there, all do. Two that exchange are a pipeline as much as a ring: how they begin tells which."""
    around: dict[int, dict[int, set[tuple[bool, int]]]] = {}
    for rank, summary in case.summaries.items():
        for pair in summary.pairs:
            group = case.groups[case.group_of[rank, pair.stream]]
            ends = case.transfers.global_ends(group, rank, pair.source, pair.destination, pair.outgoing)
            way = _distance(group, rank, ends[ends[0] == rank])
            if way is not None:
                around.setdefault(group.index, {}).setdefault(rank, set()).add((ends[0] == rank, way))
    alike = {}
    for index, members in around.items():
        size = len(case.groups[index].ranks)
        most = Counter(frozenset(ways) for ways in members.values()).most_common(1)[0][1]
        alike[index] = most >= _most_of(size)
    return _as_sisters_are(case, alike)


def _as_sisters_are(case: Case, holds: Mapping[int, bool | None]) -> frozenset[int]:
    """Groups of which something holds; of those that left not all dumps, or not enough (None), that of which it holds
    for most sisters."""
    votes: dict[Hashable, Counter[bool]] = {}
    seen = {
        index: own
        for index, own in holds.items()
        if own is not None and all(case.recorded(rank) for rank in case.groups[index].ranks)
    }
    kinds = {index: (family(case.groups[index].description), len(case.groups[index].ranks)) for index in holds}
    for index, own in seen.items():
        votes.setdefault(kinds[index], Counter())[own] += 1
    found = set()
    for index, holds_here in holds.items():
        told = votes.get(kinds[index]) if index not in seen else None
        if (told[True] > told[False]) if told else holds_here:
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


def _from_first(case: Case, rank: int, steps: Sequence[ProgramCall], group: int, whole: bool) -> Sequence[ProgramCall]:
    """A rank's calls from its first transfer in the group on, where its ring holds that: of a group that was made anew
    whatever came before is of another."""
    if not whole:
        return steps
    ours = (case.group_of[rank, step.call.stream] == group for step in steps)
    transfers = (signature.is_transfer(step.call.operation) for step in steps)
    first = next((place for place, both in enumerate(zip(ours, transfers, strict=True)) if all(both)), 0)
    return steps[first:]


def _from_shared(steps: Sequence[Sequence[ProgramCall]]) -> list[Sequence[ProgramCall]] | None:
    """Given members' calls, of which each ring may have lost another beginning, return those from the first collective
    on that all of them hold: who went on less has lost less. None: too few are left, one of which may be its last."""
    held = [{step.key for step in of_one if step.seq} for of_one in steps if of_one]
    shared = set[Hashable].intersection(*held) if held else set()
    first = [next((place for place, step in enumerate(of_one) if step.key in shared), 0) for of_one in steps]
    left = [of_one[place:] for of_one, place in zip(steps, first, strict=True)]
    return left if min(map(len, left), default=0) > _SHORTEST else None


def _begin_alike(steps: Sequence[Sequence[ProgramCall]]) -> bool:
    """All but one at most, in the first half of what each of them has called: stages of an interleaved pipeline
    exchange round and round as well, and begin each in its own way."""
    length = min(_BEGINNING, max(min(map(len, steps), default=0) // 2, _SHORTEST))
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


def _stages(case: Case, steps: Mapping[int, Sequence[ProgramCall]]) -> dict[int, Hashable]:
    """Where no transfer is recorded, which ranks go one way between two calls of the whole world: stages of a pipeline
    do, each in another way than the next. Whose way is nobody else's, or has not come to its end yet, is of those with
    whom it went the longest; a rank that is left out might be of any."""
    if any(summary.pairs for summary in case.summaries.values()):
        return {}
    ways = _ways_between(case, steps)
    seen = Counter(way for way, ended in ways.values() if ended)
    # Who still waits on a way shares it with the one that has come to its end, where it leads to no other.
    for way, ended in ways.values():
        ahead = [] if ended else [other for other in seen if _goes_on(way, other)]
        seen.update(ahead if len(ahead) == 1 else ())
    shared = [way for way, count in seen.items() if count > 1]
    if len(shared) < 2:
        return {}
    begun = Counter(way for way, ended in ways.values() if not ended and not any(_goes_on(way, o) for o in shared))
    stage_of = {way: _stage(way, begun, shared) for way in {way for way, _ in ways.values()}}
    return {rank: rank if (stage := stage_of[way]) is None else stage for rank, (way, _) in ways.items()}


def _stage(
    way: tuple[Token, ...], begun: Mapping[tuple[Token, ...], int], shared: Sequence[tuple[Token, ...]]
) -> Hashable:
    """The way by which a stage is known; None where it might be of several. `begun`: ways that have not come to their
    end and begin none of the shared ones, with how many ranks have come so far on each."""
    mates = [other for other in begun if _goes_on(way, other) or _goes_on(other, way)] if way in begun else []
    if sum(begun[other] for other in mates) > 1:
        return min(mates, key=len)  # a stage of which none has come to its end
    alike = [_alike(way, other) for other in shared]
    nearest = [other for other, length in zip(shared, alike, strict=True) if length == max(alike)]
    return nearest[0] if len(nearest) == 1 else None


def _ways_between(case: Case, steps: Mapping[int, Sequence[ProgramCall]]) -> dict[int, tuple[tuple[Token, ...], bool]]:
    """What each rank called from the start, or from the first call of the whole world that all rings hold, to the next
    such call, and whether it came to that. Where the rings hold one such call and nobody has come to the next, what
    each called before that one: from it backwards, as far as all rings hold it."""
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
    if not whole and not any(ended for _, ended in ways.values()):
        return _ways_back(steps, meetings, max(firsts))
    return ways


def _ways_back(
    steps: Mapping[int, Sequence[ProgramCall]], meetings: Mapping[int, Sequence[int]], seq: int
) -> dict[int, tuple[tuple[Token, ...], bool]]:
    """What each rank that has come to a call of the whole world called before it, the last first, as far as the
    shortest of their rings holds it; of the others nothing."""
    ends = {rank: next((p for p in meetings[rank] if own[p].seq == seq), None) for rank, own in steps.items()}
    length = min((end for end in ends.values() if end is not None), default=0)
    ways = {}
    for rank, own in steps.items():
        end = ends[rank]
        back = () if end is None else tuple(step.token for step in reversed(own[end - length : end]))
        ways[rank] = (back, end is not None)
    return ways


def _goes_on(way: Sequence[Hashable], other: Sequence[Hashable]) -> bool:
    """Whether the other way begins with this one."""
    return other[: len(way)] == way


def _alike(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """How many calls two ways have in common from their start; equal ways one more."""
    same = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    return min(len(one), len(other)) + (one == other) if same is None else same


def _peer_token(case: Case, rank: int, call: Call, rings: frozenset[int]) -> Token:
    group = case.groups[case.group_of[rank, call.stream]]
    operation, _, _ = call.operation.partition(" ")
    way = _way(case, group, rank, call.operation, rings) if signature.is_transfer(call.operation) else ""
    kind = (family(group.description), place_among_twins(case.groups, group), case.usual_size(group))
    return Token(kind, operation + way, call.elements, call.dtype, call.site)


def _way(case: Case, group: Group, rank: int, operation: str, rings: frozenset[int]) -> str:
    """To which place in the group a transfer goes, around a ring how far, where its members are known; else only in
    which direction."""
    source, destination = ends_in_name(operation)
    if ANY in (source, destination):
        return ""
    outgoing = operation.startswith("send")
    peer = case.transfers.global_ends(group, rank, source, destination, outgoing)[outgoing]
    distance = _distance(group, rank, peer)
    if distance is None:
        return "+" if (source < destination) == outgoing else "-"
    return f" {distance} on" if group.index in rings else f" {group.ranks.index(peer)}"
