"""How an output does, read from whatever it offers, for metrics and readyz."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, cast, runtime_checkable

from stallwatch.outputs.documents import HeldMessages
from stallwatch.outputs.output import Output


class OutputHealth(NamedTuple):
    """How an output does; `deliveries` and `queued` are None for one that delivers no messages."""

    name: str
    problem: str | None
    deliveries: Mapping[str, int] | None = None
    queued: int | None = None
    tells_people: bool = False
    held: tuple[HeldMessages, ...] = ()


@runtime_checkable
class Delivers(Protocol):
    """An output that sends messages and counts what became of them."""

    tells_people: bool  # a chat; False: a program, which does with it what it likes

    def deliveries(self) -> Mapping[str, int]:
        """Messages so far by result."""
        ...

    def queued(self) -> int:
        """How many messages wait to be sent."""
        ...

    def held(self) -> tuple[HeldMessages, ...]:
        """Those of them that wait for room in their user's budget."""
        ...


_DELIVERS: dict[type, bool] = {}  # asked of the same few each second, and such a question is some 40 µs


def _delivering(output: Output) -> Delivers | None:
    kind = type(output)
    if kind not in _DELIVERS:
        _DELIVERS[kind] = isinstance(output, Delivers)
    return cast("Delivers", output) if _DELIVERS[kind] else None


def health(output: Output) -> OutputHealth:
    """Given an output, return whether it delivers, what it counts, and what waits; of one that sends nothing, its
    problem alone."""
    one = _delivering(output)
    if one is not None:
        return OutputHealth(output.name, output.problem(), one.deliveries(), one.queued(), one.tells_people, one.held())
    return OutputHealth(output.name, output.problem())
