"""What the loop needs of its parts: roles, so that tests bring their own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from stallwatch.captures.run import CaptureRun, CaptureState
from stallwatch.clock import Clock
from stallwatch.config import Config
from stallwatch.loop.judging import JudgeRun, JudgeState
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import GpuSample, NodeSnapshot, RankSample


class Looks(Protocol):
    """The node's sensors: sensors.panel.Panel."""

    def look(self, tick: int) -> NodeSnapshot: ...

    def close(self) -> None: ...


class Capturing(Protocol):
    """A look under way: captures.run.CaptureRun."""

    def poll(self) -> CaptureState: ...

    def cancel(self) -> None: ...


class Judging(Protocol):
    """A verdict under way: loop.judging.JudgeRun."""

    def poll(self) -> JudgeState | None: ...

    def cancel(self) -> None: ...


class Starter(Protocol):
    """Starts the children that look and judge. Raise OSError when no process can be started."""

    def capture(
        self, incident: Incident, look: int, targets: Sequence[RankSample], gpus: Sequence[tuple[GpuSample, ...]]
    ) -> Capturing: ...

    def judge(self, incident: Incident) -> Judging: ...


class RealStarter:
    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock

    def capture(
        self, incident: Incident, look: int, targets: Sequence[RankSample], gpus: Sequence[tuple[GpuSample, ...]]
    ) -> Capturing:
        return CaptureRun(Path(incident.bundle), targets, look, self._config, node=incident.node, gpus=gpus)

    def judge(self, incident: Incident) -> Judging:
        return JudgeRun(Path(incident.bundle), self._config.diagnosis, self._clock)
