"""How an output does, read from whatever it offers, for metrics and readyz."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from stallwatch.outputs.metric_samples import OutputHealth
from stallwatch.outputs.output import Output


@runtime_checkable
class Delivers(Protocol):
    """An output that sends messages and counts what became of them."""

    def deliveries(self) -> Mapping[str, int]:
        """Messages so far by result."""
        ...

    def queued(self) -> int:
        """Messages that wait."""
        ...


def health(output: Output) -> OutputHealth:
    if isinstance(output, Delivers):
        return OutputHealth(output.name, output.problem(), output.deliveries(), output.queued())
    return OutputHealth(output.name, output.problem())
