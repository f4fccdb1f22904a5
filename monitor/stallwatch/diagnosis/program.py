"""Who left the program: each rank's calls in host order, over all groups, against what it did in earlier steps and
what its peers do. In a cycle of waits everybody waits; only the order of calls tells who started it."""

from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

import msgspec

from stallwatch.diagnosis.align import family
from stallwatch.diagnosis.case import Case
from stallwatch.diagnosis.followers import followers
from stallwatch.model.summary import Call

_TAIL = 160  # calls looked at, newest last; older ones are history to learn from
_MIN_HISTORY = 4


class Departure(msgspec.Struct, frozen=True):
    """A call that had never followed what went before it on this rank, though something else had."""

    rank: int
    place: int  # index in the rank's program
    found: Call
    expected: tuple[Call, ...]


def program(case: Case, rank: int) -> list[Call]:
    """Calls of the rank's training lane in order of recording, point-to-point included."""
    summary = case.summaries.get(rank)
    if summary is None or not summary.program:
        return []
    return [summary.calls[value] for value in array("H", summary.program[0]) if value < len(summary.calls)]


def find_departures(case: Case, ranks: Iterable[int]) -> tuple[Departure, ...]:
    """Given ranks, return where each left its own habit; a departure that its peers make too is a new phase."""
    by_rank = {rank: _departures(rank, program(case, rank)) for rank in sorted(ranks)}
    mates: dict[Hashable, list[int]] = {}
    for rank in by_rank:
        mates.setdefault(_role(case, rank), []).append(rank)
    found: list[Departure] = []
    for peers in mates.values():
        kinds = Counter(kind for rank in peers for kind in {_kind(case, d) for d in by_rank[rank]})
        for rank in peers:
            own = [d for d in by_rank[rank] if 2 * kinds[_kind(case, d)] <= len(peers) or len(peers) == 1]
            found += own[:1]
    return tuple(sorted(found, key=lambda d: d.rank))


def _role(case: Case, rank: int) -> Hashable:
    """Ranks of one role run one program: same kinds of groups, same neighbours in the pipeline."""
    parts = set()
    for call in case.summaries[rank].calls:
        group = case.groups[case.group_of[rank, call.stream]]
        direction, _, ends = call.operation.partition(" ")
        parts.add((family(group.description), len(group.ranks), direction + _offset(ends) if ends else ""))
    return frozenset(parts)


def _offset(ends: str) -> str:
    numbers = [int(part) for part in ends.replace("<-", " ").replace("->", " ").split() if part.isdigit()]
    return "" if len(numbers) != 2 else ("+" if numbers[1] > numbers[0] else "-")


def _kind(case: Case, departure: Departure) -> Hashable:
    return peer_token(case, departure.rank, departure.found)


def _departures(rank: int, calls: Sequence[Call]) -> list[Departure]:
    found = []
    for place in range(max(len(calls) - _TAIL, _MIN_HISTORY), len(calls)):
        usual = followers(calls, place)
        if usual and calls[place] not in usual:
            seen = {call for call in usual if isinstance(call, Call)}
            ordered = tuple(sorted(seen, key=lambda c: (c.operation, c.site, c.stream)))
            found.append(Departure(rank, place, calls[place], ordered))
    return found


def peer_token(case: Case, rank: int, call: Call) -> Hashable:
    """A call as peers would make it: their groups differ in number, not in kind."""
    group = case.groups[case.group_of[rank, call.stream]]
    operation = call.operation.partition(" ")[0]  # "send 0->1": who is whose neighbour differs
    return family(group.description), len(group.ranks), operation, call.elements, call.dtype, call.site


def find_outsiders(case: Case, ranks: Iterable[int]) -> tuple[int, ...]:
    """Given ranks that should run one program, return those that part from the others' common sequence first.

    For the first step, where no rank has a history: a strict majority at the first difference decides.
    """
    sequences = {rank: [peer_token(case, rank, call) for call in program(case, rank)] for rank in sorted(ranks)}
    sequences = {rank: sequence for rank, sequence in sequences.items() if sequence}
    if len(sequences) < 3 or not all(case.summaries[rank].whole for rank in sequences):
        return ()
    for place in range(max(len(sequence) for sequence in sequences.values())):
        tokens = Counter(sequence[place] for sequence in sequences.values() if place < len(sequence))
        if len(tokens) <= 1:
            continue
        usual, count = max(tokens.items(), key=lambda item: (item[1], str(item[0])))
        if 2 * count <= sum(tokens.values()):
            return ()
        return tuple(rank for rank, sequence in sequences.items() if place < len(sequence) and sequence[place] != usual)
    return ()
