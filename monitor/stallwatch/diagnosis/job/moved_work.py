"""Whether work has moved from the other ranks to those that come late now: experts and dynamic batches share one amount
of work among the ranks, so that one gets what others lose. A fault adds to one rank and takes nothing from the others.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import sqrt
from statistics import median, stdev
from typing import NamedTuple

_LEAST_CALLS = 8  # of a kind, before and since
_SELDOM = 0.5  # a step: what is called once in a while is not what a step holds
_OF_THE_RISE = 0.5  # what the others have lost is at least this part of what the late ones have got
_ERRORS = 2.0  # and surely more than none
_OF_MEDIAN = 1.25  # times the standard error of a mean


class Met(NamedTuple):
    """One call of a group: what it was, and when each rank came to it, in nanoseconds."""

    kind: str
    arrivals: Mapping[int, int]


def eased_ns(calls: Sequence[Met], late: Sequence[int], since_ns: int, steps: int) -> float:
    """Given all calls of a group, oldest first, the ranks that come late since a moment, and how many steps there have
    been since, return by how much all others together have less to do in each step since then; 0.0 where that is not
    clearly about what the late ones have more."""
    before, since = _own_times(calls, 0, since_ns), _own_times(calls, since_ns, None)
    change: dict[int, float] = defaultdict(float)
    variance = 0.0
    for kind, ranks in since.items():
        earlier = before.get(kind, {})
        each = len(next(iter(ranks.values()))) / max(steps, 1)
        if each < _SELDOM:
            continue
        for rank, times in ranks.items():
            if min(len(times), len(earlier.get(rank, ()))) < _LEAST_CALLS:
                return 0.0
            change[rank] += each * (median(times) - median(earlier[rank]))
            variance += 0.0 if rank in late else each**2 * (_variance(times) + _variance(earlier[rank]))
    rise = max((change[rank] for rank in late if rank in change), default=0.0)
    eased = -sum(less for rank, less in change.items() if rank not in late)
    return eased if rise > 0 and eased >= max(_OF_THE_RISE * rise, _ERRORS * sqrt(variance)) else 0.0


def _own_times(calls: Sequence[Met], from_ns: int, to_ns: int | None) -> dict[str, dict[int, list[int]]]:
    """By kind of call and rank: from the last arrival at one call, when all could go on, to its own at the next; of
    calls that ended in a span of time."""
    own: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for one, after in pairwise(calls):
        began, ended = max(one.arrivals.values()), max(after.arrivals.values())
        if began < from_ns or (to_ns is not None and ended >= to_ns):
            continue
        for rank, at in after.arrivals.items():
            own[after.kind][rank].append(at - began)
    return own


def _variance(times: Sequence[int]) -> float:
    """Of their median."""
    return (_OF_MEDIAN * stdev(times)) ** 2 / len(times)
