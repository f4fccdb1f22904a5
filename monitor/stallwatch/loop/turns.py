"""Whose look or judgement begins when: one user's incidents, in any number, cost the verdicts of others no core."""

import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import Literal

# Of each user at a time. Looks over some seconds (at slow ranks) are counted apart: one at a hang waits for none.
_MOST_AT_A_TIME = 2
# And in a while: each is a start of Python or two, and a user can have as many deaths as he likes.
_MOST_IN_A_WHILE = 12
_WHILE_NS = 30_000_000_000
# Who has had so many in a while comes after others, and has one at a time where cores are few: two starts of Python
# beside each of theirs made a verdict of 1 s one of 3 on two cores.
_MANY = 4
_FEW_CORES = 4
# Nobody waits for ever for one that takes long, nor for others who come one after the other.
_YIELDS_NS = 5_000_000_000
_WAITS_NS = 10_000_000_000

Kind = Literal["look", "judgement"]


class Turns:
    """Whose work begins next where processors are few: no owner's jobs take them from others."""

    def __init__(self, monotonic_ns: Callable[[], int], cores: int | None = None) -> None:
        """`cores` of this node, where tests say."""
        self._now_ns = monotonic_ns
        self._cores = cores or os.cpu_count() or 1
        self._begun: dict[tuple[Kind, str], deque[int]] = {}  # by owner, the latest last

    def begin(self, kind: Kind, owner: str) -> None:
        """Note that work of this kind begins for an owner."""
        now_ns = self._now_ns()
        self._begun = {one: begun for one, begun in self._begun.items() if now_ns - begun[-1] < _WHILE_NS}
        self._begun.setdefault((kind, owner), deque(maxlen=_MOST_IN_A_WHILE)).append(now_ns)

    def may_begin(self, kind: Kind, owner: str, own: int, others: Iterable[tuple[str, int]]) -> bool:
        """Given how many of this kind the owner has under way, and owner and beginning (monotonic, ns) of all looks
        and judgements that are under way of anybody, return whether one more of his begins now."""
        now_ns = self._now_ns()
        lately = self._lately(kind, owner)
        if len(lately) >= _MOST_IN_A_WHILE:
            return False
        has_had_many = self._has_had_many(owner)
        if own >= (1 if has_had_many and self._cores <= _FEW_CORES else _MOST_AT_A_TIME):
            return False
        if not has_had_many:
            return True
        is_theirs = any(
            other != owner and now_ns - began_ns < _YIELDS_NS and not self._has_had_many(other)
            for other, began_ns in others
        )
        return not is_theirs or bool(lately and now_ns - lately[-1] >= _WAITS_NS)

    def _has_had_many(self, owner: str) -> bool:
        return any(len(self._lately(kind, owner)) >= _MANY for kind in ("look", "judgement"))

    def _lately(self, kind: Kind, owner: str) -> list[int]:
        now_ns = self._now_ns()
        return [at_ns for at_ns in self._begun.get((kind, owner), ()) if now_ns - at_ns < _WHILE_NS]
