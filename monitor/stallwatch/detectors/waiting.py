"""Who waits least: in synchronous training the rank that others wait for, and that itself hardly ever waits."""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from operator import truediv
from statistics import median, stdev
from typing import TypeVar

import msgspec

from stallwatch.detectors.spells import looks_of_a_draw
from stallwatch.model.verdict import Slowness
from stallwatch.progress.job_progress import SURE_ERRORS, minorities, stand_apart

# Looks; a large effect shows in few, a small one needs many: +10 % of a step some minutes.
LEAST_LOOKS = 8
# Each a sixth longer than the one before, where it matters: of a window that began before the rank became slow the
# first part says nothing.
WINDOWS = (10, 12, 14, 16, 18, 20, 23, 26, 30, 34, 39, 45, 52, 60, 70, 80, 96, 120, 150, 192, 256, 384, 768)
SPAN_NS = 6_000_000_000  # what is shorter is no state of a rank: one collection of garbage, one file that came late
# Evidence in nats: chance alone makes this with a probability below e^-nats in one test. A thousand job-hours make some
# 10^8 tests (ranks × windows × looks, mostly of the same looks): at 16 nats two of them were fooled. A suspicion is
# only a reason to look at arrival times in the recorders, which show every step: seven looks of four ranks, 13 of two,
# give 9 nats.
SUSPECT_NATS = 9.0
CONFIRM_NATS = 20.0
_BLOCKS = 4  # the effect must be there in each part of the window: what came and went is no state
_OF_WHOLE = 0.35  # as much of it in each part, at least

_EARLIER_LOOKS = 16  # that show what was before
_SOME_LOOKS = 4  # the same, if they differ so much
_ALWAYS = 0.5  # of the difference now
_MOST_AT_ONCE = 0.6  # of the looks: of fewer those that are of one moment would be no fair sample
_GROWS = 0.5  # of what it was: less comes by other batches, or by looks of a busy machine
_GROWS_ERRORS = 4.0  # standard errors: it is asked again at every look

_Of = TypeVar("_Of", int, float)

Column = tuple[tuple[int, int], ...]  # one rank: (ticks, of these waiting) of each look, oldest first


class Least(msgspec.Struct, frozen=True):
    """The one rank, or the few, for which the others wait."""

    ranks: tuple[int, ...]
    nats: float
    looks: int
    since_ns: int
    share: float  # of its time in which it stood in a collective
    peers_share: float
    sure: bool = True  # False: only if the counts of its peers have no constant distance


def is_due(window: int, before: int, looks: int) -> bool:
    """A long window says little that it did not say a look ago: it is judged each time that a part of it is new."""
    part = max(1, window // 6)
    return looks // part != before // part


class Peers:
    """Given (rank, column) of peers over the same looks: what windows of the last of them say. Several are judged at
    one look, so that what they ask of each look is computed once."""

    def __init__(self, columns: Sequence[tuple[int, Column]]) -> None:
        self._columns = dict(columns)
        self._shares = {rank: _shares(column) for rank, column in columns}
        # By ranks, newest look first, as far as it was asked.
        self._extremes: dict[frozenset[int], list[tuple[int, int, int]]] = {}
        self._middles: dict[frozenset[int], list[float]] = {}

    def shares(self, window: int) -> dict[int, float]:
        """`waited_share` of each rank in the last looks, which are as many at least."""
        return {rank: sum(shares[-window:]) / window for rank, shares in self._shares.items()}

    def each(self, rank: int, window: int) -> list[float]:
        """One rank's share of each of the last looks."""
        return self._shares[rank][-window:]

    def column(self, rank: int, window: int) -> Column:
        """One rank's last looks."""
        return self._columns[rank][-window:]

    def extremes(self, ranks: Sequence[int], window: int) -> list[tuple[int, int, int]]:
        """Of each of the last looks, oldest first, the least and the most that these ranks waited, and how many of them
        waited the least."""
        found = self._extremes.setdefault(frozenset(ranks), [])
        columns = [[waited for _, waited in self._columns[rank][-window : -len(found) or None]] for rank in ranks]
        found += [(low := min(look), max(look), look.count(low)) for look in _newest_first(columns)]
        return found[window - 1 :: -1]

    def less(self, rank: int, others: Sequence[int], window: int) -> list[float]:
        """`differences` of one rank in the last looks: by which share of each it waits less than the others' median."""
        found = self._middles.setdefault(frozenset(others), [])
        columns = [self._shares[other][-window : -len(found) or None] for other in others]
        found += map(_middle, _newest_first(columns))
        return [middle - own for middle, own in zip(found[window - 1 :: -1], self._shares[rank][-window:], strict=True)]


def _shares(column: Column) -> list[float]:
    """By look."""
    ticks, waits = zip(*column, strict=True) if column else ((), ())
    return list(map(truediv, waits, ticks))


def _newest_first(columns: Sequence[Sequence[_Of]]) -> list[tuple[_Of, ...]]:
    """Look by look what columns of one length hold."""
    return list(zip(*columns, strict=True))[::-1]


def who_waits_least(
    peers: Peers,
    window: int,
    minimum_share: float,
    before: Callable[[], Sequence[tuple[int, Column]]],
    since_ns: int = 0,
    at_most: int | None = None,
) -> Least | None:
    """Return those that wait least in the last `window` looks if that is no chance: one of the peers, or a minority of
    them alike. `before` gives (rank, column) of earlier looks, `since_ns`: when the first of the looks was made;
    `at_most`: of how many ranks this is asked at most, where there are thousands.

    The looks of peers are of the same moments: what the job as a whole does is the same for all of them, and only
    those in which some wait and others do not say anything.
    """
    share = peers.shares(window)
    if not is_spread(share.values(), minimum_share):
        return None
    for slow, rest in minorities(sorted(share, key=lambda rank: (share[rank], rank)), at_most):
        most, typical = share[slow[-1]], share[rest[len(rest) // 2]]
        apart = partial(stand_apart, len(slow), len(rest), typical - most, share[rest[0]] - most, minimum_share)
        # Earlier looks are asked last, and only where they decide: that costs the most.
        began = len(slow) == len(rest) and not apart() and apart(began=True) and _began(before(), slow, typical - most)
        if not apart(began=began):
            continue
        ranks, extremes = tuple(sorted(slow)), peers.extremes(rest, window)
        columns = [peers.column(rank, window) for rank in ranks]
        evidence = [_evidence(column, extremes, len(rest) + 1, minimum_share) for column in columns]
        # A spell makes it less: what is too little without it is so with it.
        if min(evidence) < SUSPECT_NATS:
            continue
        spells = [looks_of_a_draw(peers.less(rank, rest, window)) for rank in ranks]
        nats = min(one / spell for one, spell in zip(evidence, spells, strict=True))
        if nats >= SUSPECT_NATS and _lasts(
            [peers.each(rank, window) for rank in ranks], [peers.each(rank, window) for rank in rest]
        ):
            return Least(ranks, nats, window, since_ns, most, typical)
    return None


def is_spread(shares: Collection[float], minimum_share: float) -> bool:
    """Given how much each of some peers waits, return whether one may stand apart; most windows of most jobs say no."""
    return max(shares) - min(shares) >= minimum_share


def _began(before: Sequence[tuple[int, Column]], slow: Sequence[int], less: float) -> bool:
    """Whether these ranks were seen not to wait less than the others by so much, earlier."""
    enough = all(len(column) >= _EARLIER_LOOKS for _, column in before) and bool(before)
    return enough and _mean(differences(before, slow)) < _OF_WHOLE * less


def leads(columns: Sequence[tuple[int, Column]]) -> dict[int, float]:
    """Given (rank, column) of peers, return for each the `difference` of it alone: its share of the time in which they
    wait and it does not, by the median of the others in each look."""
    ranks = [rank for rank, _ in columns]
    if len(columns) < 2 or not columns[0][1]:
        return {}
    of_looks = leads_of_looks([column for _, column in columns])
    return {rank: _mean(series) for rank, series in zip(ranks, of_looks, strict=True)}


def leads_of_looks(columns: Sequence[Column]) -> list[list[float]]:
    """Given the columns of two peers or more, return for each the same look by look."""
    return [list(series) for series in zip(*map(leads_of_look, zip(*columns, strict=True)), strict=True)]


# Looks are of few kinds, and most of them were there when this was asked last: of hundreds of looks, at each tick at
# which a rank waits less than its peers.
@lru_cache(maxsize=4096)
def leads_of_look(look: tuple[tuple[int, int], ...]) -> tuple[float, ...]:
    """Given (ticks, of these waiting) of two peers or more, return the same of one look."""
    shares = [waited / ticks for ticks, waited in look]
    ordered = sorted(shares)
    return tuple(_median_without(ordered, share) - share for share in shares)


def _median_without(ordered: Sequence[float], one: float) -> float:
    """The median of sorted numbers once one of them is left out."""
    rest = len(ordered) - 1
    left_out = bisect_left(ordered, one)
    low, high = ((rest - 1) // 2, rest // 2)
    return (ordered[low + (low >= left_out)] + ordered[high + (high >= left_out)]) / 2


def waited_share(column: Column) -> float:
    """Each step counts the same: one that stood for long is one."""
    return sum(_shares(column)) / len(column)


def difference(columns: Sequence[tuple[int, Column]], ranks: Sequence[int]) -> tuple[float, float]:
    """Given (rank, column) of peers and those among them that are slow, return by which share of the time these wait
    less than the others, and its standard error over the looks."""
    each = differences(columns, ranks)
    middle = _mean(each)
    return middle, stdev(each) / math.sqrt(len(each)) if len(each) > 1 else abs(middle)


def becomes_more(columns: Sequence[tuple[int, Column]], ranks: Sequence[int]) -> bool:
    """Given (rank, column) of peers and those among them that are slow, return whether these wait less than the others
    by surely more in the later half of the looks than in the earlier."""
    each = differences(columns, ranks)
    half = len(each) // 2
    if half < _EARLIER_LOOKS:
        return False
    earlier, later = each[:half], each[-half:]
    more = _mean(later) - _mean(earlier)
    error = math.sqrt((stdev(earlier) ** 2 + stdev(later) ** 2) / half)
    return more > max(_GROWS_ERRORS * error, _GROWS * _mean(earlier))


def lost(
    columns: Sequence[tuple[int, Column]], ranks: Sequence[int], at_once: Sequence[bool]
) -> tuple[float, float] | None:
    """Given (rank, column) of peers, those that are slow, and which looks saw all peers at one moment, return by which
    share of the time all the others wait and not all of these, more than they do for one of them in its turn (somebody
    comes last in every step), with its standard error: that is what they cost the job, where a difference counts, too,
    what it would wait for another rank. None where too few looks are of one moment.

    A rank that waits does so until the step is over: in as many moments as the last of some waits, all of them do.
    """
    slow = [column for rank, column in columns if rank in ranks]
    rest = [column for rank, column in columns if rank not in ranks]
    if not slow or not rest or sum(at_once) < _MOST_AT_ONCE * len(at_once):
        return None
    each = map(_lost_in_look, zip(*slow, strict=True), zip(*rest, strict=True))
    moments = [one for one, seen in zip(each, at_once, strict=True) if seen]
    # Of all moments, not of all looks: a long step is one look and costs as long as it lasts.
    all_ticks = sum(ticks for _, ticks in moments)
    share = sum(waited for waited, _ in moments) / all_ticks
    error = math.sqrt(sum((waited - share * ticks) ** 2 for waited, ticks in moments)) / all_ticks
    by_chance = len(slow) * median(_waited_for_each(slow, rest, at_once)) / all_ticks
    return max(0.0, share - by_chance), error if len(moments) > 1 else share


@lru_cache(maxsize=4096)  # as of the leads
def _lost_in_look(own: tuple[tuple[int, int], ...], others: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """(moments in which all the others wait and not all of these, of how many)."""
    least = min([waited for _, waited in own])
    return max(0, min([waited for _, waited in others]) - least), own[0][0]


def _waited_for_each(slow: Sequence[Column], rest: Sequence[Column], at_once: Sequence[bool]) -> list[int]:
    """How long everybody waited for each of the rest alone."""
    waited_for = [0] * len(rest)
    for seen, *waits in zip(at_once, *([waited for _, waited in column] for column in (*rest, *slow)), strict=True):
        least, next_least = sorted(waits)[:2]
        if seen and next_least > least and (place := waits.index(least)) < len(rest):
            waited_for[place] += next_least - least
    return waited_for


def differences(columns: Sequence[tuple[int, Column]], ranks: Sequence[int]) -> list[float]:
    """Given (rank, column) of peers and those among them that are slow, return look by look by which share of the time
    these wait less than the median of the others."""
    slow = [column for rank, column in columns if rank in ranks]
    rest = [column for rank, column in columns if rank not in ranks]
    if not slow or not rest:
        return []
    return list(map(_less_of_look, zip(*slow, strict=True), zip(*rest, strict=True)))


@lru_cache(maxsize=4096)  # as of the leads
def _less_of_look(own: tuple[tuple[int, int], ...], others: tuple[tuple[int, int], ...]) -> float:
    least = sum([waited / ticks for ticks, waited in own]) / len(own)
    return median([waited / ticks for ticks, waited in others]) - least


@lru_cache(maxsize=4096)
def _middle(shares: tuple[float, ...]) -> float:
    return median(shares)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def was_so(earlier: Sequence[tuple[int, Column]], least: Least) -> bool | None:
    """Given (rank, column) of the looks before those of `least`, return whether its ranks waited less then too; None
    where the looks are too few to say: some are enough where they surely show that it was not so."""
    each = differences(earlier, least.ranks)
    part = _ALWAYS * (least.peers_share - least.share)
    if len(each) >= _EARLIER_LOOKS:
        return _mean(each) >= part
    if len(each) < _SOME_LOOKS:
        return None
    return False if _mean(each) + stdev(each) / math.sqrt(len(each)) < part else None


def cost(share: float, error: float, step_seconds: float, looks: int, seconds: float) -> Slowness | None:
    """Given by which share of the time the others wait for some (`difference`), over how many looks and seconds, and a
    step's length, return what that costs; None where no step is known."""
    if not step_seconds:
        return None
    low, high = share - SURE_ERRORS * error, share + SURE_ERRORS * error
    return Slowness(
        max(share, 0.0) * step_seconds,
        max(low, 0.0) * step_seconds,
        min(high, 1.0) * step_seconds,
        step_seconds,
        looks,
        seconds,
    )


def _lasts(slow: Sequence[Sequence[float]], rest: Sequence[Sequence[float]]) -> bool:
    """Whether each of the slow ones waits less than the others in every part, by their shares of the looks."""
    looks = len(slow[0])
    size = looks // _BLOCKS
    whole = _typical(rest, 0, looks)
    least = [_OF_WHOLE * (whole - sum(each) / looks) for each in slow]
    for first in range(0, _BLOCKS * size, size):
        typical = _typical(rest, first, size)
        if any(
            typical - sum(each[first : first + size]) / size <= part for each, part in zip(slow, least, strict=True)
        ):
            return False
    return True


def _typical(rest: Sequence[Sequence[float]], first: int, looks: int) -> float:
    """How much the median one of them waits."""
    return sorted([sum(each[first : first + looks]) / looks for each in rest])[len(rest) // 2]


def _evidence(mine: Column, others: Sequence[tuple[int, int, int]], ranks: int, minimum_share: float) -> float:
    """How unlikely it is that peers who are alike make one of them the least so often (Chernoff's bound, in nats).
    `others`: `Peers.extremes`; `ranks`: how many they are with this one.

    In a look with k of n at the least, each of the n is among them with a probability of k/n, whatever the job does.
    """
    looks, times, expected = 0, 0, 0.0
    for (ticks, waited), (low, high, least) in zip(mine, others, strict=True):
        apart = (high if high > waited else waited) - (low if low < waited else waited)
        if apart < 1 or apart < minimum_share * ticks:
            continue
        looks += 1
        times += waited <= low
        expected += ((waited <= low) + (least if low <= waited else 0)) / ranks
    if not looks or times <= expected:
        return 0.0
    return looks * divergence(times / looks, expected / looks)


def divergence(share: float, typical: float) -> float:
    """Return the Kullback-Leibler divergence of two Bernoulli shares, in nats."""
    p, q = min(max(share, 1e-9), 1 - 1e-9), min(max(typical, 1e-9), 1 - 1e-9)
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
