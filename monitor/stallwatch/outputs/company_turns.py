"""Which messages wait until it is this node's turn to tell of a place where jobs of other nodes stand, too."""

from collections.abc import Callable, Sequence
from typing import Final

from stallwatch.incidents.delivery_steps import Step
from stallwatch.model.incident import Incident, StandsAt
from stallwatch.outputs.company import Around, stands_at, waits_its_turn
from stallwatch.outputs.spool import Spool

# That a message waits at most: where nodes cannot meet, each tells. A turn takes a claim (fleet.place.CLAIM_SECONDS,
# 10 s, until that of the one before has run out) and an exchange or two.
_TURN_SECONDS: Final = 25.0


class CompanyTurns:
    """Since when which incidents wait."""

    def __init__(self, readers: Callable[[Incident], str]) -> None:
        """`readers`: the channel that is told of an incident."""
        self._readers = readers
        self._waiting: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._at_ns = 0

    def begin(self, at_ns: int) -> None:
        """A tick begins; who does not wait in it any more is forgotten."""
        self._before, self._waiting, self._at_ns = self._waiting, {}, at_ns

    def waits(self, incident: Incident, step: Step, spool: Spool, now: Around) -> bool:
        """Whether this step is not to be told yet."""
        since_ns = self._before.get(incident.incident_id, self._at_ns)
        if not waits_its_turn(incident, step, spool, self._readers(incident), now):
            return False
        self._waiting[incident.incident_id] = since_ns
        return self._at_ns - since_ns <= _TURN_SECONDS * 1e9

    def stands(self, incidents: Sequence[Incident], spool: Spool) -> tuple[StandsAt, ...]:
        """What other nodes are told of these."""
        each = (stands_at(one, spool, self._readers(one), wants=one.incident_id in self._waiting) for one in incidents)
        return tuple(one for one in each if one is not None)
