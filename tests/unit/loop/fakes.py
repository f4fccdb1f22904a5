"""A node, children and people for the loop: they satisfy its protocols and do nothing outside themselves."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from stallwatch.captures.capture_run import CaptureState
from stallwatch.config import Config
from stallwatch.daemon import Daemon
from stallwatch.incidents.store import IncidentStore
from stallwatch.loop.judging import JudgeState
from stallwatch.loop.notify import ServiceManager
from stallwatch.loop.protocols import Capturing, Judging
from stallwatch.loop.renewal import Renewal
from stallwatch.model.gpu import Gpu
from stallwatch.model.incident import Incident, NodeReport
from stallwatch.model.snapshot import NodeSnapshot, RankSample
from stallwatch.model.verdict import Report
from tests.builders.clock import FakeClock
from tests.builders.heartbeat import START_NS
from tests.unit.incidents.stories import report as report_of


def node_clock() -> FakeClock:
    """Return a clock at the moment at which a node's first snapshot is taken."""
    return FakeClock(START_NS, wall_ns=1_700_000_000_000_000_000 + START_NS)


class FakePanel:
    """Shows the given snapshots one after the other, then the last for ever; a name in `raises` breaks that tick."""

    def __init__(self, snapshots: Sequence[NodeSnapshot], clock: FakeClock, raises: Sequence[int] = ()) -> None:
        self.snapshots = list(snapshots)
        self.clock = clock
        self.raises = raises
        self.closed = False

    def look(self, tick: int) -> NodeSnapshot:
        if tick in self.raises:
            raise OSError("the sensors' children cannot be started")
        shot = self.snapshots[min(tick, len(self.snapshots) - 1)]
        self.clock.now_ns = max(self.clock.now_ns, shot.at_ns)
        return shot

    def news_descriptors(self) -> Sequence[int]:
        return ()

    def news(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


class FakeCapture:
    def __init__(self, state: CaptureState) -> None:
        self.state = state
        self.cancelled = False

    def poll(self) -> CaptureState:
        return self.state

    def cancel(self) -> None:
        self.cancelled = True


class FakeJudgement:
    def __init__(self, state: JudgeState | None) -> None:
        self.state = state
        self.cancelled = False

    def poll(self) -> JudgeState | None:
        return self.state

    def cancel(self) -> None:
        self.cancelled = True


class FakeStarter:
    """Looks are done at once and judged as told; `broken` cannot start a process."""

    def __init__(self, report: Report | None = None, *, broken: bool = False, hangs: bool = False) -> None:
        self.report = report or report_of("not_entered")
        self.broken = broken
        self.hangs = hangs
        self.captured: list[tuple[str, int, tuple[int, ...]]] = []
        self.captures: list[FakeCapture] = []
        self.judgements: list[FakeJudgement] = []
        self.configured: Config | None = None
        self.readied = 0
        self.never_judges = False

    def capture(
        self, incident: Incident, look: int, targets: Sequence[RankSample], gpus: Sequence[tuple[Gpu, ...]]
    ) -> Capturing:
        if self.broken:
            raise OSError(11, "Resource temporarily unavailable")
        self.captured.append((incident.incident_id, look, tuple(rank.rank for rank in targets)))
        self.captures.append(FakeCapture(CaptureState(done=not self.hangs, evidence_complete=not self.hangs)))
        return self.captures[-1]

    def be_ready(self) -> None:
        self.readied += 1

    def configure(self, config: Config) -> None:
        self.configured = config

    def judge(self, incident: Incident) -> Judging:
        self.judgements.append(FakeJudgement(None if self.never_judges else JudgeState(self.report)))
        return self.judgements[-1]

    def close(self) -> None:
        pass


class FakeOutput:
    def __init__(self, name: str = "fake", *, broken: bool = False) -> None:
        self.name = name
        self.broken = broken
        self.reports: list[NodeReport] = []
        self.closed = False

    def start(self) -> None:
        pass

    def publish(self, report: NodeReport) -> None:
        self.reports.append(report)
        if self.broken:
            raise RuntimeError("cannot publish")

    def problem(self) -> str | None:
        return None

    def close(self, seconds: float) -> None:
        self.closed = True


class Bench:
    """A daemon on a fake node, advanced tick by tick."""

    def __init__(
        self,
        folder: Path,
        snapshots: Sequence[NodeSnapshot],
        *,
        starter: FakeStarter | None = None,
        outputs: Sequence[FakeOutput] | None = None,
        raises: Sequence[int] = (),
        config: Config | None = None,
        reload: Callable[[], Config] | None = None,
        store: IncidentStore | None = None,
        renewal: Renewal | None = None,
        spare: IncidentStore | None = None,
    ) -> None:
        base = config or Config()
        daemon = msgspec.structs.replace(base.daemon, state_directory=str(folder))
        self.config = msgspec.structs.replace(base, daemon=daemon)
        self.clock = node_clock()
        self.clock.now_ns = snapshots[0].at_ns
        self.panel = FakePanel(snapshots, self.clock, raises)
        self.starter = starter or FakeStarter()
        self.outputs = list(outputs) if outputs is not None else [FakeOutput()]
        self.store = store or IncidentStore(folder)
        self.store.prepare()
        self.daemon = Daemon(
            self.config,
            self.clock,
            self.panel,
            self.starter,
            self.store,
            ServiceManager({}),
            reload=reload,
            renewal=renewal,
            spare=spare,
        )
        self.daemon.open(self.outputs)
        self.ticks = 0

    def run(self, ticks: int | None = None) -> "Bench":
        """Tick through all snapshots (or so many), with three chances between ticks for children and people."""
        for _ in range(len(self.panel.snapshots) if ticks is None else ticks):
            self.daemon.tick(self.ticks, 0.0)
            self.ticks += 1
            for _ in range(3):
                self.clock.advance(0.1)
                self.daemon.between_ticks()
        return self

    @property
    def latest(self) -> NodeReport:
        return self.outputs[0].reports[-1]
