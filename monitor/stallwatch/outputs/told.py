"""What this node's outputs have told of an incident, for the nodes that share it."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from stallwatch.model.incident import Delivered, Told
from stallwatch.outputs.output import Output


@runtime_checkable
class Remembers(Protocol):
    """An output that knows what has left."""

    name: str

    def delivered(self, incident_id: str) -> Delivered:
        """What was delivered of an incident."""


def told_by(outputs: Sequence[Output], incident_id: str) -> Told:
    """Given outputs and an incident's id on this node, return what they have delivered of it."""
    said = {output.name: output.delivered(incident_id) for output in outputs if isinstance(output, Remembers)}
    return Told({name: one for name, one in said.items() if one.steps})
