"""What the loop needs of its parts: roles, so that tests bring their own."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from stallwatch.captures.capture_run import CaptureRun, CaptureState
from stallwatch.captures.spec import Sampling
from stallwatch.clock import Clock
from stallwatch.config import Config
from stallwatch.config_sections import DiagnosisSection
from stallwatch.detectors.job_facts import JobFacts
from stallwatch.detectors.pace import NodePace
from stallwatch.incidents import looking, slowness
from stallwatch.incidents.life import IncidentTable
from stallwatch.incidents.messages import Event
from stallwatch.incidents.store import Left
from stallwatch.loop.judging import JudgeRun, JudgeState
from stallwatch.model.finding import Finding
from stallwatch.model.gpu import Gpu
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import JobKey, NodeSnapshot, RankSample, SensorStatus
from stallwatch.model.summary import SampleMemory
from stallwatch.node.privileged_client import Privileged


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

    def status(self) -> SensorStatus:
        """How the meeting place does."""
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


_LATELY_NS = 60_000_000_000


class RealStarter:
    """While there are ranks a child waits that has imported all it needs to judge: on a busy node the imports took most
    of the time between a stop and its verdict. Once one has been used another waits beside it for a while: whose
    incidents are many leaves the last one to the others."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        side: Privileged,
        start: Callable[[DiagnosisSection, Clock], JudgeRun] = JudgeRun,
    ) -> None:
        self._config = config
        self._side = side
        self._clock = clock
        self._start = start
        self._warm: list[JudgeRun] = []  # the longest there first
        self._judged: dict[str, int] = {}  # when an incident of this owner was judged, if lately

    def capture(
        self, incident: Incident, look: int, targets: Sequence[RankSample], gpus: Sequence[tuple[Gpu, ...]]
    ) -> Capturing:
        """Begin a look of an incident at these ranks, who is suspected first. Raise OSError where no process can be
        started."""
        bundle = Path(incident.bundle)
        # Who is suspected comes first: of many ranks not all are profiled.
        suspected = {rank for finding in incident.findings for rank in finding.ranks}
        return CaptureRun(
            bundle,
            sorted(targets, key=lambda target: target.rank not in suspected),
            look,
            self._config,
            node=incident.node,
            gpus=gpus,
            side=self._side,
            profile_seconds=slowness.profile_seconds(incident, look),
            call_sites=looking.is_known_to_stand(incident),
        )

    def sample(self, targets: Sequence[RankSample], at_ns: int, before: SampleMemory) -> Capturing:
        """Have ranks of a job that moves dump at `at_ns` (CLOCK_MONOTONIC), and compare them. Raise OSError."""
        sampling = Sampling(at_ns, targets[0].world_size, before)
        return CaptureRun(None, targets, 1, self._config, node="", side=self._side, sampling=sampling)

    def judge(self, incident: Incident) -> Judging:
        """Return a judge of this bundle, one that is warm where there is one. Raise OSError."""
        self._tidy()
        if incident.job.owner not in self._judged and self._warm:
            judge = self._warm.pop(0)
        elif len(self._warm) > 1:
            judge = self._warm.pop()
        else:
            judge = self._start(self._config.diagnosis, self._clock)
        self._judged[incident.job.owner] = self._clock.monotonic_ns()
        judge.begin(Path(incident.bundle))
        return judge

    def be_ready(self) -> None:
        """Keep as many judges warm as may be asked for next: one, and a second for another user."""
        self._tidy()
        if len(self._warm) < (2 if self._judged else 1):
            self._warm.append(self._start(self._config.diagnosis, self._clock))

    def configure(self, config: Config) -> None:
        """Take new limits; judges that are warm were started with the old ones and go."""
        self._config = config
        self.close()  # they were started with the old limits

    def close(self) -> None:
        """End the judges that are warm."""
        while self._warm:
            self._warm.pop().cancel()

    def _tidy(self) -> None:
        now_ns = self._clock.monotonic_ns()
        self._judged = {owner: at_ns for owner, at_ns in self._judged.items() if now_ns - at_ns < _LATELY_NS}
        for dead in [one for one in self._warm if not one.alive]:
            self._warm.remove(dead)
            dead.cancel()
        if not self._judged:
            while len(self._warm) > 1:
                self._warm.pop().cancel()
