"""How many looks say the same thing once: a rank that fell behind for a while is seen so at each look of that while.

A host that runs ahead of its device and loses a second is last until it has caught up; so is one that evaluates. Chance
draws such a spell once, however many looks fall into it, and evidence that counts each of them is too sure. How long
spells are is read off their number: of looks that are independent of each other, those in which the rank waits less
make about so many runs among the others (Wald and Wolfowitz); of a state that comes and goes they make fewer.
"""

from collections.abc import Sequence
from itertools import pairwise

_PART = 0.5  # of the mean: a look that shows so much of it is of a spell


def looks_of_a_draw(less: Sequence[float]) -> float:
    """Given by how much less a rank waits than its peers, look by look, return for how many looks one draw stands, 1.0
    or more: the factor by which their mean varies more than that of as many independent ones (of a chain of two states
    it follows from the number of runs). A rank that is behind at every look has no spells: that is 1.0."""
    if not less:
        return 1.0
    limit = _PART * sum(less) / len(less)
    within = [one > limit for one in less]
    if True not in within:
        return 1.0
    within = within[within.index(True) :]  # a window may begin before the rank became slow: that is no gap
    if not within[-1]:  # nor is a step in progress, in which nobody waits yet: the looks without it said the same
        within = within[:-1]
    many = sum(within)
    runs = 1 + sum(after and not before for before, after in pairwise(within))
    expected = many * (len(within) - many + 1) / len(within)
    # One more of either: of two runs in ten looks nobody can say much.
    return max(1.0, 2.0 * (expected + 1) / (runs + 1) - 1.0)
