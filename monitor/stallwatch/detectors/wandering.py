"""Whether differences such as one that is seen come and go in this job by design: experts, lengths of sequences.

Steps that follow each other are alike where a design gives a rank more work for a while, so that a difference over
many of them is no more than a few draws. How much the means of such whiles differ is learned from the ranks that are
not suspected: what a job does to all its ranks in turn is no news of one. (Of a rank that was slow before, and is so
again, its own past says nothing else.)
"""

from collections.abc import Sequence
from math import sqrt

from stallwatch.detectors.waiting import Column, leads_of_looks

# A difference is news when it is so many standard errors of a mean over as many steps, by what is usual in this job.
# Few blocks tell little of what is usual: it is more than the 5 or so of a normal distribution.
_ERRORS = 5.0
_BLOCKS = (4, 8, 16, 32, 64, 128)  # looks; the longest of which there are enough show how long a while may be
_LEAST_BLOCKS = 3  # of a rank


def is_usual(columns: Sequence[tuple[int, Column]], ranks: Sequence[int], window: int, difference: float) -> bool:
    """Given (rank, column) of peers, of all looks that are kept, and the ranks that wait less by so much in the last
    `window` of them, return whether differences as large come by what is usual in this job."""
    # The others among themselves: what the suspected ones do now changes the leads of all.
    rest = [column for rank, column in columns if rank not in ranks]
    usual = leads_of_looks(rest if len(rest) > 1 else [column[:-window] for _, column in columns])
    variance = max(_variance_of_mean(usual, block, window) for block in _BLOCKS)
    return difference < _ERRORS * sqrt(variance)


def _variance_of_mean(series: Sequence[Sequence[float]], block: int, window: int) -> float:
    """Of a mean over `window` looks, if blocks of so many are independent of each other; 0.0: too few to say."""
    squares, freedom = 0.0, 0
    for leads in series:
        means = [sum(leads[end - block : end]) / block for end in range(len(leads), block - 1, -block)]
        if len(means) >= _LEAST_BLOCKS:
            middle = sum(means) / len(means)
            squares += sum((mean - middle) ** 2 for mean in means)
            freedom += len(means) - 1
    return squares / freedom * block / max(window, block) if freedom else 0.0
