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
# The part of the difference that must be left without them.
_LEFT = 0.15


def is_seldom(differences: Sequence[float], steps: Sequence[float]) -> bool:
    """Given by how much less some ranks wait at each look, and for how many of their steps it stands (the fewer the
    longer they were; 0.0: not known), return whether a few long steps make that difference."""
    usual = median([many for many in steps if many]) if any(steps) else 0.0
    # Of a host that makes up for a long step some are short, and its peers still wait for it.
    known = sorted((min(many, usual), less) for many, less in zip(steps, differences, strict=True) if many)
    counted, parts = sum(many for many, _ in known), [many * less for many, less in known]
    left_out = _SELDOM * counted + _ERRORS * sqrt(_SELDOM * counted)
    first = bisect_right([*accumulate(many for many, _ in known)], left_out)
    rest = parts[first:]
    # What is left must be more than the steps' own jitter makes.
    error = stdev(rest) * sqrt(len(rest)) if len(rest) > 1 else sum(rest)
    return bool(known) and sum(rest) - _ERRORS * error < _LEFT * sum(parts)
