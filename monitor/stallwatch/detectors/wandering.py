"""Whether differences such as one that is seen come and go in this job by design: experts, lengths of sequences.

Steps that follow each other are alike where a design gives a rank more work for a while, so that a difference over
many of them is no more than a few draws. How much the means of such whiles differ is learned from the ranks that are
not suspected: what a job does to all its ranks in turn is no news of one. (Of a rank that was slow before, and is so
again, its own past says nothing else.)
"""

from collections.abc import Sequence
from itertools import accumulate
from math import inf, log, sqrt

from stallwatch.detectors.waiting import Column, leads_of_looks

# A difference is news when it is so many standard errors of a mean over as many steps, by what is usual in this job.
# Few blocks tell little of what is usual: it is more than the 5 or so of a normal distribution.
_ERRORS = 5.0
# What single looks make by chance is no while, and is judged by how often a rank is the least: nine nats, by which it
# is suspected, are about as many. Of steps of 50 ms a look is one moment of one step in five, and five of these made a
# rank of a job without any whiles wait for its suspicion for twice as long.
_CHANCE_ERRORS = 4.0
_SURELY = 2.0  # standard errors of a variance: by so much more than single looks' make blocks of a length show whiles
_BLOCKS = (4, 8, 16, 32, 64, 128)  # looks; the longest of which there are enough show how long a while may be
_LEAST_BLOCKS = 3  # of a rank
# A while lies across two blocks as often as in one, and is half as large in each then: blocks are laid at so many
# places over a rank's looks, and all of them are asked.
_PLACES = 4
# Whiles are drawn: where others had such differences, nearly as large, in a part of all blocks, a row of them is one
# draw after another. Nats: five whiles of one of eight ranks, a state of which others had none is news at once.
_NATS = 10.0
_AS_LARGE = 0.6  # of it
_AS_BEFORE = 0.35  # of a difference: that is another one

_Blocks = list[tuple[int, list[float]]]  # of each rank: how many lie beside each other, and the means of all


def is_usual(columns: Sequence[tuple[int, Column]], ranks: Sequence[int], window: int, difference: float) -> bool:
    """Given (rank, column) of peers, of all looks that are kept, and the ranks that wait less by so much in the last
    `window` of them, return whether differences as large come by what is usual in this job."""
    # The others among themselves: what the suspected ones do now changes the leads of all.
    rest = [column for rank, column in columns if rank not in ranks]
    usual = leads_of_looks(rest if len(rest) > 1 else [column[:-window] for _, column in columns])
    sums = [_sums(leads) for leads in usual]
    # By block, of each of them that has enough of those: asked at each tick while a rank waits less than its peers.
    means = {
        block: [((len(of) - 1) // block, _means(of, block, _PLACES)) for of in sums if len(of) > _LEAST_BLOCKS * block]
        for block in _BLOCKS
    }
    variances = {block: _variance_of_blocks(of, block) for block, of in means.items()}
    if not any(freedom for _, freedom in variances.values()):
        return False
    of_looks = _variance_of_look(usual)
    chance = of_looks / window
    whiles = max(variance / max(window, block) for block, (variance, _) in variances.items()) - chance
    if difference < sqrt(_CHANCE_ERRORS**2 * chance + _ERRORS**2 * max(0.0, whiles)):
        return True
    shown = [block for block, (variance, freedom) in variances.items() if _shows_whiles(variance, freedom, of_looks)]
    least = _AS_LARGE * difference
    return any(_nats(means[block], block, window, least) < _NATS for block in shown)


def is_new(earlier: Sequence[Column], looks: int, difference: float) -> bool:
    """Given the columns of peers before a difference that shows for so many looks, return whether none of them has
    waited less, or more, by nearly as much for as long."""
    means = [mean for leads in leads_of_looks(earlier) for mean in _means(_sums(leads), looks)]
    return bool(means) and max(map(abs, means)) < _AS_BEFORE * difference


def _nats(series: _Blocks, block: int, window: int, least: float) -> float:
    """How unlikely it is that every block of a window has so large a mean, by how many of the others' have it."""
    means = [mean for _, of_rank in series for mean in of_rank]
    as_large = sum([mean >= least for mean in means])
    if not as_large:
        return inf
    blocks = sum(count for count, _ in series)
    return window / block * log((blocks + 1) / (blocks * as_large / len(means) + 1))


def _sums(leads: Sequence[float]) -> list[float]:
    """Of the first 0, 1, 2, … looks."""
    return [0.0, *accumulate(leads)]


def _means(sums: Sequence[float], block: int, places: int = 1) -> list[float]:
    """Of blocks of so many looks, the newest first; `places`: in how many ways they are laid over the looks."""
    apart = max(1, block // places)
    return [(sums[end] - sums[end - block]) / block for end in range(len(sums) - 1, block - 1, -apart)]


def _variance_of_look(series: Sequence[Sequence[float]]) -> float:
    """Of single looks about each rank's mean."""
    squares = [sum([lead * lead for lead in leads]) - sum(leads) ** 2 / len(leads) for leads in series if leads]
    return sum(squares) / max(1, sum(map(len, series)) - len(series))


def _variance_of_blocks(series: _Blocks, block: int) -> tuple[float, float]:
    """Of single looks if blocks of so many are independent of each other, and of how many degrees of freedom; none: too
    few to say."""
    squares, freedom = 0.0, 0.0
    for blocks, means in series:
        middle = sum(means) / len(means)
        squares += sum([(mean - middle) ** 2 for mean in means]) * blocks / len(means)
        freedom += blocks - 1
    return (squares / freedom * block, freedom) if freedom else (0.0, 0.0)


def _shows_whiles(variance: float, freedom: float, of_looks: float) -> bool:
    """Whether blocks vary by surely more than as many looks do that are independent of each other."""
    return freedom > 0 and variance > of_looks * (1.0 + _SURELY * sqrt(2.0 / freedom))
