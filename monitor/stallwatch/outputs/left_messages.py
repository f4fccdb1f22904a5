"""What a daemon before this one left unsent of incidents that other nodes see too: pure.

While it was down another node may have told of it. So it waits until the nodes have said whose it is to tell; not for
ever, since a message that nobody sends costs more than one that is sent twice.
"""

from collections.abc import Iterable, Sequence

from stallwatch.model.incident import Incident
from stallwatch.outputs.spool import Message

# Longer than a meeting place that does not answer is waited for, and than another node takes to tell once the claim of
# who died has run out: 26 s (fleet.member).
_LONGEST_SECONDS = 40.0


class LeftMessages:
    """Which messages wait for the word of other nodes."""

    def __init__(self, queue: Sequence[Message] = (), now_ns: int = 0) -> None:
        """`queue`: what was left, as it was loaded."""
        self._incidents = {message.incident_id for message in queue if message.shared}
        self.until_ns = now_ns + int(_LONGEST_SECONDS * 1e9) if self._incidents else 0

    def note(self, incidents: Iterable[Incident]) -> None:
        """Take in how incidents stand: what is this node's to tell waits no more, nor what is well again, of which no
        other begins to tell."""
        self._incidents -= {one.incident_id for one in incidents if not one.told_elsewhere or one.state == "resolved"}

    def ready(self, queue: Sequence[Message], now_ns: int) -> tuple[Message, ...]:
        """Given all that is to be sent, return what may go now."""
        if now_ns >= self.until_ns:
            self._incidents = set()
        return tuple(message for message in queue if message.incident_id not in self._incidents)
