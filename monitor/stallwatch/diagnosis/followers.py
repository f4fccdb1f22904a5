"""What usually follows what: training repeats itself, so the last calls foretell the next one."""

from collections.abc import Hashable, Sequence

_LONGEST_CONTEXT = 12


class Followers:
    """Learns from sequences that end where a prediction is wanted; `expects`: has this call followed before?"""

    def __init__(self, histories: Sequence[Sequence[Hashable]]) -> None:
        self._known: set[Hashable] = set()
        for history in histories:
            self._known |= followers(history, len(history))

    def expects(self, what: Hashable) -> bool:
        return what in self._known


def followers(history: Sequence[Hashable], place: int) -> set[Hashable]:
    """Given a sequence and a place in it, return what has followed the longest context that occurred before."""
    for length in range(min(_LONGEST_CONTEXT, place), 0, -1):
        context = list(history[place - length : place])
        last = context[-1]
        found = {
            history[end]
            for end in range(length, place)
            if history[end - 1] == last and list(history[end - length : end]) == context
        }
        if found:
            return found
    return set()
