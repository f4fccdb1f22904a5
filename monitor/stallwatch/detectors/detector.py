"""What every detector is: a pure function of its state and of what was seen."""

from typing import Protocol, TypeVar

from stallwatch.detectors.history import NodeHistory
from stallwatch.model.finding import Finding

State = TypeVar("State")


class Detector(Protocol[State]):
    """Finds one kind of symptom. It does no I/O, keeps nothing outside its frozen state, and may not name a cause.

    A finding is repeated at every tick as long as its symptom lasts; the life of an incident is made of that.
    """

    name: str

    def start(self) -> State:
        """Return the state before the first snapshot."""
        ...

    def step(self, state: State, seen: NodeHistory) -> tuple[State, tuple[Finding, ...]]:
        """Given what is known at this tick, return the next state and the symptoms that exist now."""
        ...
