"""What the loop tells the engine (events) and what the engine wants done (actions), as values."""

import msgspec

from stallwatch.model.incident import Incident, Judgement, Mode, Together
from stallwatch.model.snapshot import JobKey
from stallwatch.model.verdict import Report


class Captured(msgspec.Struct, frozen=True):
    """A look made headway: `complete` when a verdict needs no more, `done` when nothing more will come."""

    incident_id: str
    look: int
    complete: bool
    done: bool
    missing: tuple[str, ...] = ()
    problem: str = ""


class Judged(msgspec.Struct, frozen=True):
    """The judging child is back: a report, or the reason why there is none."""

    incident_id: str
    look: int
    report: Report | None
    problem: str = ""
    summary: bytes = b""  # for other nodes, where there are any


class FleetSaid(msgspec.Struct, frozen=True):
    """Where this node stands among those of the job, and the verdict over all of them."""

    incident_id: str
    together: Together
    report: Report | None = None  # None: none yet, or the same as before


class MuteWanted(msgspec.Struct, frozen=True):
    """Somebody wants silence about a job."""

    training_job: str
    until_ns: int  # CLOCK_MONOTONIC; in the past: the silence ends
    owner: str = ""  # whose job
    by: str = ""


class ModeWanted(msgspec.Struct, frozen=True):
    """On this node, and on those that it meets: instead of fleet.mode."""

    mode: Mode
    until_ns: int  # CLOCK_MONOTONIC; in the past: as configured again
    by: str = ""


class MaintenanceWanted(msgspec.Struct, frozen=True):
    """A node is worked on: nobody is told of it, nor of the jobs that run there."""

    node: str
    until_ns: int  # CLOCK_MONOTONIC; in the past: it is over
    by: str = ""
    why: str = ""
    jobs: tuple[tuple[str, str], ...] = ()  # JobKey.name of those that run there, as far as that node has said


class Acknowledged(msgspec.Struct, frozen=True):
    """A person has said that somebody is on this incident."""

    incident_id: str
    by: str


class VerdictJudged(msgspec.Struct, frozen=True):
    """Somebody who knows says whether the verdict was right."""

    incident_id: str
    judgement: Judgement
    by: str
    incident: Incident  # as it was known when it was said: of an old one nothing is in memory


class BundleMoved(msgspec.Struct, frozen=True):
    """The evidence lies elsewhere from now on."""

    incident_id: str
    bundle: str
    why: str


class CaptureWanted(msgspec.Struct, frozen=True):
    """Somebody wants evidence of a job now."""

    job: JobKey


Event = (
    Captured
    | Judged
    | FleetSaid
    | BundleMoved
    | MuteWanted
    | ModeWanted
    | MaintenanceWanted
    | Acknowledged
    | VerdictJudged
    | CaptureWanted
)


class StartCapture(msgspec.Struct, frozen=True):
    """Begin look number `look` at the ranks of this incident."""

    incident: Incident
    look: int


class CancelCapture(msgspec.Struct, frozen=True):
    """End the look of an incident."""

    incident_id: str


class Judge(msgspec.Struct, frozen=True):
    """Judge the bundle of an incident."""

    incident: Incident
    look: int


class Save(msgspec.Struct, frozen=True):
    """Something about it changed that must survive a restart of the daemon."""

    incident: Incident


class Discard(msgspec.Struct, frozen=True):
    """A suspicion that came to nothing: its bundle goes."""

    incident: Incident


class Note(msgspec.Struct, frozen=True):
    """A line for the log; the incident carries the same among its events."""

    incident_id: str
    what: str


Action = StartCapture | CancelCapture | Judge | Save | Discard | Note
