"""How an output does, read from whatever it offers, for metrics and readyz."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from stallwatch.outputs.documents import HeldBack
from stallwatch.outputs.metric_samples import OutputHealth
from stallwatch.outputs.output import Output


@runtime_checkable
class Delivers(Protocol):
    """An output that sends messages and counts what became of them."""

    tells_people: bool  # a chat; False: a program, which does with it what it likes

    def deliveries(self) -> Mapping[str, int]:
        """Messages so far by result."""
        ...

    def queued(self) -> int:
        """Messages that wait."""
        ...

    def held(self) -> tuple[HeldBack, ...]:
        """Those of them that wait for room in their user's budget."""
        ...


def health(output: Output) -> OutputHealth:
    if isinstance(output, Delivers):
        return OutputHealth(
            output.name, output.problem(), output.deliveries(), output.queued(), output.tells_people, output.held()
        )
    return OutputHealth(output.name, output.problem())
