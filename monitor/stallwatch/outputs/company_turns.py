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
# Jobs of one place become critical within seconds of each other: who was named in the message of one gives it this long
# to become critical, too, and to say so to other nodes (seen live: by 1.2 s two messages).
_TELLER_SECONDS: Final = 10.0


class CompanyTurns:
    """Since when which incidents wait."""

    def __init__(self, readers: Callable[[Incident], str]) -> None:
        """`readers`: the channel that is told of an incident."""
        self._readers = readers
        self._waiting: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._wanting: set[str] = set()  # who of them has it when it is this node's turn
        self._at_ns = 0

    def begin(self, at_ns: int) -> None:
        """A tick begins; who does not wait in it any more is forgotten."""
        self._before, self._waiting, self._at_ns = self._waiting, {}, at_ns
        self._wanting = set()

    def waits(self, incident: Incident, step: Step, spool: Spool, now: Around) -> bool:
        """Whether this step is not to be told yet."""
        known = incident.incident_id
        waited_ns = self._at_ns - self._before.get(known, self._at_ns)
        is_patient = step == "escalated" and known in spool.company and waited_ns <= _TELLER_SECONDS * 1e9
        if not (is_patient or waits_its_turn(incident, step, spool, self._readers(incident), now)):
            return False
        self._waiting[known] = self._at_ns - waited_ns
        self._wanting |= set() if is_patient else {known}
        return waited_ns <= _TURN_SECONDS * 1e9

    def stands(self, incidents: Sequence[Incident], spool: Spool) -> tuple[StandsAt, ...]:
        """What other nodes are told of these."""
        each = (stands_at(one, spool, self._readers(one), wants=one.incident_id in self._wanting) for one in incidents)
        return tuple(one for one in each if one is not None)
