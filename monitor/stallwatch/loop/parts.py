"""What the loop needs of its parts: roles, so that tests bring their own."""

from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from stallwatch.captures.run import CaptureRun, CaptureState
from stallwatch.clock import Clock
from stallwatch.config import Config
from stallwatch.incidents import slowness
from stallwatch.incidents.store import Left
from stallwatch.loop.judging import JudgeRun, JudgeState
from stallwatch.model.gpu import Gpu
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import NodeSnapshot, RankSample
from stallwatch.node.privileged_client import Privileged


class Looks(Protocol):
    """The node's sensors: sensors.panel.Panel."""

    def look(self, tick: int) -> NodeSnapshot: ...

    def news_descriptors(self) -> Sequence[int]:
        """What becomes readable when there may be news before the next tick."""
        ...

    def news(self) -> bool:
        """Whether something happened since the last look that should not wait for the next tick: a death, a stop."""
        ...

    def close(self) -> None: ...


class Capturing(Protocol):
    """A look under way: captures.run.CaptureRun."""

    def poll(self) -> CaptureState: ...

    def cancel(self) -> None: ...


class Judging(Protocol):
    """A verdict under way: loop.judging.JudgeRun."""

    def poll(self) -> JudgeState | None: ...

    def cancel(self) -> None: ...


class Store(Protocol):
    """Incidents on disk: incidents.far_store.FarStore. Everything may raise OSError, and DiskHangs in time."""

    @property
    def folder(self) -> Path:
        """Where bundles lie, each in a folder of its incident's id."""
        ...

    def save(self, incident: Incident) -> None: ...

    def write(self, path: Path, data: bytes) -> None:
        """Write a file of an incident's bundle."""
        ...

    def load(self, incident_id: str) -> Incident | None: ...

    def newest(self, limit: int) -> tuple[Incident, ...]: ...

    def left(self, past: int) -> Left: ...

    def discard(self, incident_id: str) -> None: ...

    def take_in(self, bundle: Path) -> None:
        """Copy a bundle that was kept elsewhere to its place here."""
        ...

    def retain(self, keep_bytes: int, oldest_wall_ns: int, keep: Collection[str]) -> tuple[str, ...]: ...

    def problem(self) -> str:
        """A sentence while the disk does not answer; does not wait."""
        ...


class Starter(Protocol):
    """Starts the children that look and judge. Raise OSError when no process can be started."""

    def capture(
        self, incident: Incident, look: int, targets: Sequence[RankSample], gpus: Sequence[tuple[Gpu, ...]]
    ) -> Capturing: ...

    def judge(self, incident: Incident) -> Judging: ...

    def be_ready(self) -> None:
        """Called while there are ranks: have that started which takes long to start."""
        ...

    def configure(self, config: Config) -> None:
        """Use this from the next start on."""
        ...

    def close(self) -> None:
        """End what waits to be used."""
        ...


_MOST_WARM = 4
_WARM_NS = 10_000_000_000


class RealStarter:
    """While there are ranks a child waits that has imported all it needs to judge: on a busy node the imports took most
    of the time between a stop and its verdict."""

    def __init__(self, config: Config, clock: Clock, side: Privileged) -> None:
        self._config = config
        self._side = side
        self._clock = clock
        self._warm: JudgeRun | None = None
        self._taken: deque[tuple[str, int]] = deque(maxlen=_MOST_WARM)  # who took a warm one, and when

    def capture(
        self, incident: Incident, look: int, targets: Sequence[RankSample], gpus: Sequence[tuple[Gpu, ...]]
    ) -> Capturing:
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
            profile_seconds=slowness.profile_seconds(incident),
        )

    def judge(self, incident: Incident) -> Judging:
        owner, now_ns = incident.job.owner, self._clock.monotonic_ns()
        recent = [taken for taken in self._taken if taken[0] == owner and now_ns - taken[1] < _WARM_NS]
        if len(recent) < _MOST_WARM:
            judge, self._warm = self._warm_up(), None
            self._taken.append((owner, now_ns))
        else:  # one user's many incidents leave it to the others
            judge = JudgeRun(self._config.diagnosis, self._clock)
        judge.begin(Path(incident.bundle))
        return judge

    def be_ready(self) -> None:
        self._warm_up()

    def configure(self, config: Config) -> None:
        self._config = config
        self._drop()  # it was started with the old limits

    def close(self) -> None:
        self._drop()

    def _warm_up(self) -> JudgeRun:
        if self._warm is None or not self._warm.alive:
            self._drop()
            self._warm = JudgeRun(self._config.diagnosis, self._clock)
        return self._warm

    def _drop(self) -> None:
        if self._warm is not None:
            self._warm.cancel()
        self._warm = None
