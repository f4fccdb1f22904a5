"""What slow ranks cost their job, in seconds of each step: the part of the time in which the others wait for them, of a
step's mean length, both since they are slow. A few long steps cost as much as many that are a little longer."""

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean, median

from stallwatch.detectors.history import RankHistory
from stallwatch.detectors.limits import SECOND_NS
from stallwatch.detectors.looks import Looks
from stallwatch.detectors.waiting import LEAST_LOOKS, Column, cost, difference, differences, lost
from stallwatch.model.verdict import Slowness

_AT_ONCE = 0.05  # of a step: samples that lie less apart are of one moment


def slow_cost(
    looks: Looks, peers: Sequence[tuple[int, Column]], ranks: Sequence[int], alive: Sequence[RankHistory]
) -> Slowness | None:
    """Given (rank, column) of peers over the last looks, return what the slow ones among them cost; None where no step
    is known."""
    window = since_when(differences(peers, ranks))
    if not window:
        return None
    columns = [(rank, column[-window:]) for rank, column in peers]
    span_ns = looks.looks[-1].at_ns - looks.since_ns(window)
    step_seconds = (looks.step_ns(window) or _median_ns(alive)) / SECOND_NS
    at_once = [apart_ns <= _AT_ONCE * step_seconds * SECOND_NS for apart_ns in looks.apart_ns(window)]
    share, error = lost(columns, ranks, at_once) or difference(columns, ranks)
    return cost(share, error, step_seconds, looks.steps_within(window), span_ns / SECOND_NS)


def since_when(less: Sequence[float]) -> int:
    """Given by how much less some ranks wait at each look, oldest first, return how many of the newest looks are of the
    time since they do: a window that found it begins before that, and what was before costs nothing."""
    if len(less) <= LEAST_LOOKS:
        return len(less)
    half = fmean(less) / 2
    sums = [*accumulate(one - half for one in reversed(less))]
    return max(range(LEAST_LOOKS, len(less) + 1), key=lambda count: (sums[count - 1], count))


def _median_ns(alive: Sequence[RankHistory]) -> float:
    """Of the steps that the records still have."""
    durations = [duration for rank in alive if rank.heartbeat for duration in rank.heartbeat.step_durations_ns]
    return median(durations) if durations else 0.0
