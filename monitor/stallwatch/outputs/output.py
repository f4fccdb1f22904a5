"""What every output is, and what people may ask of the daemon."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from stallwatch.model.incident import Incident, Judgement, Mode, NodeReport, OutputTold, StandsAt, Told


class Output(Protocol):
    """Shows the node to somebody. `publish` is called once a tick from the daemon's loop and must return at once:
    whatever can block goes through the output's own worker with a deadline. It may raise; the loop counts it."""

    name: str

    def start(self) -> None:
        """Open what is needed. Raise UsageError with advice when that cannot work (a port in use)."""
        ...

    def publish(self, report: NodeReport) -> None:
        """Take the report of a tick; comes back at once."""

    def problem(self) -> str | None:
        """A sentence when this output does not deliver, for readyz, metrics and log."""
        ...

    def close(self, seconds: float) -> None:
        """Finish what is under way within `seconds`, then drop it."""
        ...


class Control(Protocol):
    """What the command line and the page may ask of the daemon; called from other threads than the loop's."""

    def incident(self, incident_id: str) -> Incident | None:
        """An incident in memory or in the store on disk."""
        ...

    def past_incidents(self, limit: int) -> tuple[Incident, ...]:
        """Incidents of the store, newest first."""
        ...

    def capture(self, training_job: str | None, owner: str | None = None) -> str:
        """Start a capture on demand and return the incident id at once. Raise UsageError for an unknown job, and where
        several users have one of that name and `owner` does not say whose."""
        ...

    def mute(self, training_job: str, seconds: float, owner: str | None = None, by: str = "") -> str:
        """Tell nobody about this user's job for a time; 0 ends the silence. Return whose it is: `owner`, else who has
        one of that name here, else `by`, who asks. Raise UsageError where several have one."""
        ...

    def mode(self, mode: Mode, seconds: float, by: str) -> str:
        """Set the mode for a time; 0: as configured again. Return a clause that says on which nodes."""
        ...

    def maintenance(self, node: str, seconds: float, by: str, why: str) -> str:
        """Tell nobody of a node ("": this one) and its jobs for a time; 0 ends it. Return as `mode`."""
        ...

    def acknowledge(self, incident_id: str, by: str) -> None:
        """Note that somebody is on an open incident: it is not escalated to people again. Raise UsageError for one
        that is not open here."""
        ...

    def judge(self, incident_id: str, judgement: Judgement, by: str) -> None:
        """Note whether an incident's verdict was right. Raise UsageError for one without a verdict."""
        ...

    def notify_test(self) -> tuple[str, ...]:
        """Send a test alert through every notifying output; a line per output with what happened."""
        ...


@runtime_checkable
class Notifies(Protocol):
    """An output that tells people who are not looking."""

    name: str

    def notify_test(self, seconds: float) -> str:
        """Send a test message now, not through the queue, and say within `seconds` what happened."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """An output that knows what has left."""

    name: str

    def delivered(self, incident_id: str) -> OutputTold:
        """What was delivered of an incident."""


@runtime_checkable
class TellsOnce(Protocol):
    """An output that may tell people of jobs of several nodes in one message."""

    tells_people: bool

    def stands(self, incidents: Sequence[Incident]) -> tuple[StandsAt, ...]:
        """Which of these stand where incidents of other nodes may, and which wait for their turn to be told."""


def stands_by(outputs: Sequence[Output], incidents: Sequence[Incident]) -> tuple[StandsAt, ...] | None:
    """What the one that tells people says of these to other nodes; None where none asks what others say."""
    asking = [output for output in outputs if isinstance(output, TellsOnce) and output.tells_people]
    return asking[0].stands(incidents) if asking else None


def told_by(outputs: Sequence[Output], incident_id: str) -> Told:
    """Given outputs and an incident's id on this node, return what they have delivered of it."""
    said = {output.name: output.delivered(incident_id) for output in outputs if isinstance(output, Remembers)}
    return Told({name: one for name, one in said.items() if one.steps})
