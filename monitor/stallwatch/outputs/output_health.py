"""How an output does, read from whatever it offers, for metrics and readyz."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

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


def health(output: Output) -> OutputHealth:
    """Given an output, return whether it delivers, what it counts, and what waits; of one that sends nothing, its
    problem alone."""
    if isinstance(output, Delivers):
        return OutputHealth(
            output.name, output.problem(), output.deliveries(), output.queued(), output.tells_people, output.held()
        )
    return OutputHealth(output.name, output.problem())
