"""Why a job of ours stands still, by the very means of the daemon: its sensors, its captures, and `analyze`."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from stallwatch.bundle.writer import BundleWriter
from stallwatch.captures.capture_run import CaptureRun
from stallwatch.clock import SystemClock
from stallwatch.config import Config
from stallwatch.errors import StallwatchError
from stallwatch.loop.judging import JudgeRun, JudgeState
from stallwatch.loop.privileged import own_side
from stallwatch.model.gpu import Gpu
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import JobKey, NodeSnapshot, RankSample
from stallwatch.model.verdict import Report
from stallwatch.node.procfs import ProcessDirectory
from stallwatch.sensors.panel import SensorSet

_SEE_SECONDS = 4.0  # until the sensors' children have started and seen every rank
_TICK_SECONDS, _POLL_SECONDS = 0.5, 0.05


class WhyStuck(msgspec.Struct, frozen=True):
    """What the daemon's own means made of ranks that stand still: the report, None where none was made, and which
    evidence is missing."""

    report: Report | None
    missing: tuple[str, ...] = ()


class Investigation:
    """Two looks at the ranks with the given pids, then the verdict: some ten seconds; every part has a deadline."""

    def __init__(self, bundle: Path, rank_directory: Path, config: Config | None = None) -> None:
        config = config or Config()
        daemon = msgspec.structs.replace(config.daemon, rank_directory=str(rank_directory))
        sensors = msgspec.structs.replace(config.sensors, host=False, discover_seconds=1.0)
        self._config = msgspec.structs.replace(config, daemon=daemon, sensors=sensors)
        self._bundle = bundle
        self._clock = SystemClock()
        self._snapshots: list[NodeSnapshot] = []

    def judge(self, pids: Mapping[int, int]) -> WhyStuck:
        """Given the process of each rank, look at them and judge. Raise StallwatchError or OSError."""
        side = own_side(self._config)
        panel = SensorSet(self._config, self._clock, side)
        try:
            targets = self._see(panel, pids, _SEE_SECONDS)
            if not targets:
                return WhyStuck(None, ("no rank lives any more",))
            writer = BundleWriter(self._bundle, self._snapshots[-1].node)
            writer.write_config(self._config)
            missing = self._look(writer, targets, 1)
            self._wait(self._config.stall.second_look_seconds)
            missing = self._look(writer, self._see(panel, pids, _TICK_SECONDS) or targets, 2) or missing
            writer.write_timeline(self._snapshots)
        finally:
            panel.close()
            side.close()
        state = self._verdict()
        if state.report is not None:
            writer.write_verdict(state.report)
        return WhyStuck(state.report, (*missing, *((state.problem,) if state.problem else ())))

    def _see(self, panel: SensorSet, pids: Mapping[int, int], seconds: float) -> tuple[RankSample, ...]:
        """These ranks, as soon as the sensors see all or the time is over; one that they do not see, since it has not
        loaded torch yet, is a rank all the same."""
        until = time.monotonic() + seconds
        while True:
            snapshot = panel.look(len(self._snapshots))
            self._snapshots.append(snapshot)
            seen = {rank.pid: rank for rank in snapshot.ranks if rank.pid in pids.values()}
            if len(seen) == len(pids) or time.monotonic() > until:
                break
            self._wait(_TICK_SECONDS)
        job = next((rank.job for rank in seen.values()), JobKey("selftest", ""))
        unseen = (_unseen(job, rank, pid, len(pids)) for rank, pid in pids.items() if pid not in seen)
        return (*seen.values(), *filter(None, unseen))

    def _look(self, writer: BundleWriter, targets: Sequence[RankSample], look: int) -> tuple[str, ...]:
        writer.write_description(targets, incident_id="selftest", wall_ns=self._clock.wall_ns())
        side = own_side(self._config, targets)  # it knows those too that no sensor takes for ranks yet
        try:
            capture = CaptureRun(
                self._bundle, targets, look, self._config, node=self._snapshots[-1].node, side=side, gpus=self._gpus()
            )
            try:
                _until(lambda: capture.poll().done, self._config.capture.seconds + 10)
            finally:
                capture.cancel()
        finally:
            side.close()
        state = capture.poll()
        return (*state.missing, *((state.problem,) if state.problem else ()))

    def _verdict(self) -> JudgeState:
        judging = JudgeRun(self._config.diagnosis, self._clock)
        judging.begin(self._bundle)
        state: JudgeState | None = None
        try:
            while state is None:
                state = judging.poll()
                self._wait(_POLL_SECONDS)
        except BaseException:
            judging.cancel()
            raise
        return state

    def _gpus(self) -> tuple[tuple[Gpu, ...], ...]:
        return tuple(s.gpus.value for s in self._snapshots if isinstance(s.gpus, Known) and s.gpus.value)

    @staticmethod
    def _wait(seconds: float) -> None:
        time.sleep(seconds)


def _unseen(job: JobKey, rank: int, pid: int, world_size: int) -> RankSample | None:
    try:
        with ProcessDirectory(pid) as directory:
            start_ticks = directory.stat().start_ticks
    except (OSError, ValueError):
        return None
    unknown = Unavailable("it has not attached stallwatch's hook yet", time.monotonic_ns())
    return RankSample(job, rank, rank, world_size, pid, start_ticks, heartbeat=unknown, process=unknown)


def _until(done: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            raise StallwatchError(f"a look did not end within {seconds:.0f} s")
        time.sleep(_POLL_SECONDS)
