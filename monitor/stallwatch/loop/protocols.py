"""What the loop needs of its parts: roles, so that tests bring their own."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from stallwatch.captures.capture_run import CaptureState
from stallwatch.config import Config
from stallwatch.detectors.job_facts import JobFacts
from stallwatch.detectors.node_pace import NodePace
from stallwatch.incidents.life import IncidentTable
from stallwatch.incidents.messages import Event
from stallwatch.incidents.store import Left
from stallwatch.loop.judging import JudgeState
from stallwatch.model.finding import Finding
from stallwatch.model.gpu import Gpu
from stallwatch.model.incident import Gathering, Incident
from stallwatch.model.snapshot import JobKey, NodeSnapshot, RankSample, SensorStatus


class SensorPanel(Protocol):
    """The node's sensors: sensors.panel.Panel."""

    def look(self, tick: int) -> NodeSnapshot:
        """Read every sensor for this tick and return the snapshot; no sensor is waited for."""

    def news_descriptors(self) -> Sequence[int]:
        """What becomes readable when there may be news before the next tick."""
        ...

    def news(self) -> bool:
        """Whether something happened since the last look that should not wait for the next tick: a death, a stop."""
        ...

    def close(self) -> None:
        """End the sensors' children."""


class Capturing(Protocol):
    """A look under way: captures.capture_run.CaptureRun."""

    def poll(self) -> CaptureState:
        """How far it has come; never waits."""

    def cancel(self) -> None:
        """End it; what it has written stays."""


class Judging(Protocol):
    """A verdict under way: loop.judging.JudgeRun."""

    def poll(self) -> JudgeState | None:
        """The verdict or why there is none; None while it works. Never waits."""

    def cancel(self) -> None:
        """End it."""


class Store(Protocol):
    """Incidents on disk: incidents.far_store.FarStore. Everything may raise OSError, and DiskHangs in time."""

    @property
    def folder(self) -> Path:
        """Where bundles lie, each in a folder of its incident's id."""
        ...

    def save(self, incident: Incident) -> None:
        """Keep the state of an incident, atomically."""

    def write(self, path: Path, data: bytes) -> None:
        """Write a file of an incident's bundle."""
        ...

    def append(self, path: Path, data: bytes) -> None:
        """Add to a file of an incident's bundle that is there."""
        ...

    def load(self, incident_id: str) -> Incident | None:
        """The incident of that id; None where none is kept."""

    def newest(self, limit: int) -> tuple[Incident, ...]:
        """The incidents that began last, at most so many, newest first."""

    def left(self, past: int) -> Left:
        """What an earlier daemon left: open incidents, and so many past ones."""

    def discard(self, incident_id: str) -> None:
        """Remove an incident with its bundle."""

    def take_in(self, bundle: Path) -> None:
        """Copy a bundle that was kept elsewhere to its place here."""
        ...

    def retain(self, keep_bytes: int, oldest_wall_ns: int, keep: Collection[str]) -> tuple[str, ...]:
        """Remove what is older or beyond the size, but `keep`; return the ids that went."""

    def problem(self) -> str:
        """A sentence while the disk does not answer; does not wait."""
        ...

    def be_ready(self) -> None:
        """Called while there are ranks: the next call is not to wait for the start of whoever answers it."""
        ...

    def rest(self) -> None:
        """Called while there are none: who answers may be ended until the next call."""
        ...


class SharedIncidents(Protocol):
    """Incidents that other nodes see too: loop.shared_incidents.Fleet. Nothing waits."""

    @property
    def busy(self) -> bool:
        """An answer is on its way: come again soon."""
        ...

    def step(self, lives: IncidentTable, events: Sequence[Event], jobs: Sequence[JobFacts], at_ns: int) -> list[Event]:
        """Given the incidents, and what was just judged or asked for by people, return what the other nodes say."""
        ...

    def moves(
        self,
        paces: Callable[[], Mapping[JobKey, NodePace]],
        jobs: Sequence[JobFacts],
        findings: Sequence[Finding],
        at_ns: int,
    ) -> list[Finding]:
        """Given this node's part of the pace of its jobs, and what it found by itself, return what all nodes found of
        its ranks."""
        ...

    def meetings(self, at_ns: int) -> tuple[Gathering, ...] | None:
        """Who stands where incidents of other nodes do; None where no output asks."""
        ...

    def status(self) -> SensorStatus:
        """How the meeting place does."""
        ...

    @property
    def nodes(self) -> tuple[str, ...]:
        """All other nodes at the meeting place; () where they are not known, or too many."""
        ...

    @property
    def strangers(self) -> int | None:
        """How many nodes sign with another key; None: not known."""
        ...

    def close(self) -> None:
        """Leave the meeting place."""


class Starter(Protocol):
    """Starts the children that look and judge. Raise OSError when no process can be started."""

    def capture(
        self, incident: Incident, look: int, targets: Sequence[RankSample], gpus: Sequence[tuple[Gpu, ...]]
    ) -> Capturing:
        """Begin a look at these ranks for an incident."""

    def judge(self, incident: Incident) -> Judging:
        """Begin to judge the bundle of an incident."""

    def be_ready(self) -> None:
        """Called while there are ranks: have that started which takes long to start."""
        ...

    def configure(self, config: Config) -> None:
        """Use this from the next start on."""
        ...

    def close(self) -> None:
        """End what waits to be used."""
        ...
