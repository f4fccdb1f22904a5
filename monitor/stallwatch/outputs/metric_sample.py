"""One value of one series."""

from typing import NamedTuple

Labels = tuple[str, ...]


class Sample(NamedTuple):
    name: str
    labels: Labels  # values, in the order of the family's labels
    value: float
