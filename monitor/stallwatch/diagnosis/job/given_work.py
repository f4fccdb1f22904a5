"""How much each rank is given to work on, by the exchanges in which ranks give each other unequal parts."""

from collections.abc import Sequence
from math import prod
from statistics import median

from stallwatch.model.evidence import RankEvidence

_UNEQUAL = ("all_to_all", "alltoall")
_FEWEST = 8  # exchanges that two ranks have recorded both
_Given = dict[tuple[str, int], int]  # elements received, by group and number of the call


def given_times(slow: Sequence[RankEvidence], peers: Sequence[RankEvidence]) -> float | None:
    """Return how many times as much as its peers' median each of these ranks received in all-to-all exchanges, the
    least of them: a router sends most tokens to one expert. None where too few are recorded."""
    theirs = [_given(rank) for rank in peers]
    found = [_times(_given(rank), theirs) for rank in slow]
    known = [times for times in found if times is not None]
    return min(known) if known and len(known) == len(found) else None


def _times(mine: _Given, theirs: Sequence[_Given]) -> float | None:
    both = [(mine.keys() & given.keys(), given) for given in theirs]
    shares = [
        sum(mine[call] for call in common) / received
        for common, given in both
        if len(common) >= _FEWEST and (received := sum(given[call] for call in common))
    ]
    return median(shares) if shares else None


def _given(rank: RankEvidence) -> _Given:
    return {
        (operation.group_description, operation.collective_seq_id): sum(map(prod, operation.output_sizes))
        for recorder in rank.recorders
        for operation in recorder.operations
        if operation.name.startswith(_UNEQUAL) and operation.output_sizes
    }
