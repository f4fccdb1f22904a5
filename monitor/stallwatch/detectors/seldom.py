"""Whether a rank is late in all its steps, or in a few long ones: what it does now and then, as rank 0 evaluates, saves
or logs every so many steps. Its median step is as long as its peers' then: that is the program's, and no slow rank.

A look is a moment, and a long step is seen by more moments than a short one: steps are counted, not looks.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import sqrt
from statistics import median, stdev

# Steps that may be left out, the longest first, and as many more as chance makes of so few: by so much a window may
# show more of them than there are. A loader whose every tenth batch is late keeps its rank from being so.
_SELDOM = 0.05
_ERRORS = 2.0
# Where those that are left out make so many times the part of what looks show that they are of the steps, there are
# long ones, and the rest is to show more than chance: it is asked at every look, for days (by two errors 2 of 111
# simulated job-hours were fooled). Of a job in which it is new, two will do.
_STAND_OUT = 3.0
_SURE_ERRORS = 4.0
# The part of the difference that must be left without them.
_LEFT = 0.15


def is_seldom(
    differences: Sequence[float], steps: Sequence[float], chance: Sequence[float] = (), *, new: bool = False
) -> bool:
    """Given by how much less some ranks wait at each look, and for how many of their steps it stands (the fewer the
    longer they were; 0.0: not known), return whether a few long steps make that difference. `chance`: the variance that
    peers' differences have at each of these looks, where they are enough to say; `new`: the job was seen without it for
    several times as long."""
    usual = median([many for many in steps if many]) if any(steps) else 0.0
    variances = chance or [0.0] * len(steps)
    # Of a host that makes up for a long step some are short, and its peers still wait for it.
    known = sorted((min(many, usual), *of) for many, *of in zip(steps, differences, variances, strict=True) if many)
    counted, parts = sum(many for many, *_ in known), [many * less for many, less, _ in known]
    left_out = _SELDOM * counted + _ERRORS * sqrt(_SELDOM * counted)
    first = bisect_right([*accumulate(many for many, *_ in known)], left_out)
    rest, whole = parts[first:], sum(parts)
    stand_out = sum(less for _, less, _ in known[:first]) * counted > _STAND_OUT * left_out * sum(differences)
    # What is left must be more than the steps' own jitter makes.
    needed = _ERRORS * (stdev(rest) * sqrt(len(rest)) if len(rest) > 1 else sum(rest))
    if stand_out and not new:
        # By the peers, where they say it: of long steps that are left the rank's own jitter is too much.
        by_peers = _SURE_ERRORS * sqrt(sum(many**2 * variance for many, _, variance in known[first:]))
        needed = by_peers or _SURE_ERRORS / _ERRORS * needed
    return bool(known) and sum(rest) - needed < _LEFT * whole
