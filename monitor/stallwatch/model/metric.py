"""What a metric is called and where its samples come from.

A file of its own: sensors' rows, GPUs' and the table of all metrics are made of it."""

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

Labels = tuple[str, ...]


class Family(NamedTuple):
    """A metric: its name, labels and help, and how its samples come of a reading."""

    name: str  # as exported; a counter ends in _total
    kind: Literal["gauge", "counter"]
    labels: Labels
    help: str
    # Of a sensor's metric: its samples, given what the sensor read; nothing for what is not known.
    read: Callable[[Any], Iterable[tuple[Labels, float]]] | None = None
    no_panel: str = ""  # why no dashboard and no rule shows it
