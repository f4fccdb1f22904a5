"""What usually follows what: training repeats itself, so the last calls foretell the next one."""

from collections.abc import Hashable, Sequence

_LONGEST_CONTEXT = 12
_LONGEST_PART = 512  # bounds the time; steps of more calls than these are rare


class Followers:
    """Learns from sequences that end where a prediction is wanted; `expects`: has this call followed before?"""

    def __init__(self, histories: Sequence[Sequence[Hashable]]) -> None:
        self._known: set[Hashable] = set()
        for history in histories:
            self._known |= _after_longest(history)

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


def _after_longest(history: Sequence[Hashable]) -> set[Hashable]:
    """What has followed the longest part that the end of the sequence repeats: a step holds loops of its own, and only
    a part that reaches beyond the last of them tells its first round from its last."""
    end = len(history)
    longest, found = 0, set[Hashable]()
    for place in range(1, end):
        length = 0
        while length < min(place, _LONGEST_PART) and history[place - 1 - length] == history[end - 1 - length]:
            length += 1
        if length > longest:
            longest, found = length, {history[place]}
        elif length and length == longest:
            found.add(history[place])
    return found
