"""What a daemon before this one left unsent of incidents that other nodes see too: pure.

While it was down another node may have told of it. So it waits until the nodes have said whose it is to tell; not for
ever, since a message that nobody sends costs more than one that is sent twice.
"""

from collections.abc import Iterable, Sequence

from stallwatch.model.incident import Incident
from stallwatch.outputs.spool import Message

# Longer than a meeting place that does not answer is waited for, and than what nodes see is gathered (fleet.member).
_LONGEST_SECONDS = 20.0


class LeftMessages:
    """Which messages wait for the word of other nodes."""

    def __init__(self, queue: Sequence[Message] = (), now_ns: int = 0) -> None:
        """`queue`: what was left, as it was loaded."""
        self._incidents = {message.incident_id for message in queue if message.shared}
        self.until_ns = now_ns + int(_LONGEST_SECONDS * 1e9) if self._incidents else 0

    def note(self, incidents: Iterable[Incident]) -> None:
        """Take in how incidents stand: what is this node's to tell waits no more."""
        self._incidents -= {one.incident_id for one in incidents if not one.told_elsewhere}

    def ready(self, queue: Sequence[Message], now_ns: int) -> tuple[Message, ...]:
        """Given all that is to be sent, return what may go now."""
        if now_ns >= self.until_ns:
            self._incidents = set()
        return tuple(message for message in queue if message.incident_id not in self._incidents)
