"""How much each rank is given to work on, by the exchanges in which ranks give each other unequal parts."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import prod
from statistics import median
from typing import NamedTuple

from stallwatch.model.evidence import RankEvidence

_UNEQUAL = ("all_to_all", "alltoall")
_FEWEST = 8  # exchanges that two ranks have recorded both
_Exchanges = dict[int, tuple[tuple[int, ...], ...]]  # sizes of what a rank receives, by number of the call in its group


class _Given(NamedTuple):
    """What a rank received in exchanges of a group that all of its ranks recorded."""

    exchanges: int
    elements: int


def given_times(slow: Sequence[RankEvidence], peers: Sequence[RankEvidence]) -> float | None:
    """Return how many times as much as its peers' median each of these ranks received in all-to-all exchanges, the
    least of them: a router sends most tokens to one expert. None where too few are recorded."""
    mine = [_exchanges(rank) for rank in slow]
    if not mine or any(sum(map(len, one.values())) < _FEWEST for one in mine):
        return None  # most jobs have none: the peers, a thousand of them, are not asked
    given = _given([*mine, *(_exchanges(rank) for rank in peers)])
    found = [_times(one, given[len(mine) :]) for one in given[: len(mine)]]
    known = [times for times in found if times is not None]
    return min(known) if len(known) == len(found) else None


def _times(mine: Mapping[str, _Given], theirs: Sequence[Mapping[str, _Given]]) -> float | None:
    shares = []
    for peer in theirs:
        both = mine.keys() & peer.keys()
        received = sum(peer[group].elements for group in both)
        if received and sum(peer[group].exchanges for group in both) >= _FEWEST:
            shares.append(sum(mine[group].elements for group in both) / received)
    return median(shares) if shares else None


def _given(ranks: Sequence[Mapping[str, _Exchanges]]) -> list[dict[str, _Given]]:
    """Return what each rank received, by group. Summed once a rank, over what all of a group recorded: sums for each
    pair of ranks took more than a minute of a thousand ranks with 64 slow ones."""
    given: list[dict[str, _Given]] = [{} for _ in ranks]
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(ranks):
        for group in one:
            groups[group].append(place)
    for group, places in groups.items():
        common = _common([ranks[place][group].keys() for place in places])
        for place in places:
            sizes = ranks[place][group]
            if common and common <= sizes.keys():
                given[place][group] = _Given(len(common), sum(sum(map(prod, sizes[call])) for call in common))
    return given


def _common(recorded: Sequence[AbstractSet[int]]) -> set[int]:
    """Given the calls that each rank of a group has recorded, return those that all have, but for ranks whose record
    is another time's or far shorter: of calls that most ranks know they have less than half."""
    times = Counter(call for calls in recorded for call in calls)
    known = {call for call, ranks in times.items() if 2 * ranks > len(recorded)}
    shared = [both for calls in recorded if 2 * len(both := known & calls) > len(known)]
    return known.intersection(*shared)


def _exchanges(rank: RankEvidence) -> dict[str, _Exchanges]:
    """By group, what a rank received in exchanges of unequal parts."""
    found: defaultdict[str, _Exchanges] = defaultdict(dict)
    for recorder in rank.recorders:
        for operation in recorder.operations:
            if operation.name.startswith(_UNEQUAL) and operation.output_sizes:
                found[operation.group_description][operation.collective_seq_id] = operation.output_sizes
    return found
