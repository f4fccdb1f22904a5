"""Starts what the loop hands to children: looks at ranks, samples, and judgements, of which some wait to be asked."""

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from stallwatch.captures.capture_run import CaptureRun
from stallwatch.captures.spec import Sampling
from stallwatch.clock import Clock
from stallwatch.config import Config
from stallwatch.config_sections import DiagnosisSection
from stallwatch.incidents import looking, slowness
from stallwatch.loop.judging import JudgeRun
from stallwatch.loop.protocols import Capturing, Judging
from stallwatch.model.gpu import Gpu
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import RankSample
from stallwatch.model.summary import SampleMemory
from stallwatch.node.privileged_client import Privileged

_LATELY_NS = 60_000_000_000
# A look and its judge side by side are two; on fewer than so many cores one judge waits. Apart, for a load that varies.
_CROWDED_CORES, _FREE_CORES = 4.0, 8.0
_CROWD_NS = 10_000_000_000


def free_cores() -> float:
    """How many of the cores that we may use nobody uses, over the last minute."""
    return len(os.sched_getaffinity(0)) - os.getloadavg()[0]


class ChildStarter:
    """While there are ranks a child waits that has imported all it needs to judge: on a busy node the imports took most
    of the time between a stop and its verdict (started with the look on two cores at load 14, verdicts came 1 to 2 s
    later). Where cores are free it is started with the look and imports meanwhile; it would hold 17 MiB for nothing.
    Once one has been used another waits beside it for a while: whose incidents are many leaves the last one to the
    others."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        side: Privileged,
        start: Callable[[DiagnosisSection, Clock], JudgeRun] = JudgeRun,
        free_cores: Callable[[], float] = free_cores,
    ) -> None:
        self._config = config
        self._side = side
        self._clock = clock
        self._start = start
        self._warm: list[JudgeRun] = []  # the longest there first
        self._judged: dict[str, int] = {}  # when an incident of this owner was judged, if lately
        self._looked_ns: int | None = None  # when a look was begun last, if lately
        self._free_cores = free_cores
        self._is_crowded = True
        self._crowd_ns = 0  # when that is asked again

    def capture(
        self, incident: Incident, look: int, targets: Sequence[RankSample], gpus: Sequence[tuple[Gpu, ...]]
    ) -> Capturing:
        """Begin a look of an incident at these ranks, who is suspected first. Raise OSError where no process can be
        started."""
        bundle = Path(incident.bundle)
        # Who is suspected comes first: of many ranks not all are profiled.
        suspected = {rank for finding in incident.findings for rank in finding.ranks}
        under_way = CaptureRun(
            bundle,
            sorted(targets, key=lambda target: target.rank not in suspected),
            look,
            self._config,
            node=incident.node,
            gpus=gpus,
            side=self._side,
            profile_seconds=slowness.profile_seconds(incident, look),
            call_sites=looking.is_known_to_stand(incident, self._clock.monotonic_ns()),
        )
        self.expect()
        return under_way

    def expect(self) -> None:
        """Something is looked at: it will be judged."""
        self._looked_ns = self._clock.monotonic_ns()
        with contextlib.suppress(OSError):  # who judges tries again, and says so
            self.be_ready()
        for judge in self._warm:
            judge.expect()

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
        """Keep as many judges warm as may be asked for next: one, unless cores are free and nothing was looked at
        lately, and a second for another user. Raise OSError."""
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._crowd_ns:
            self._crowd_ns = now_ns + _CROWD_NS
            self._is_crowded = self._free_cores() < (_FREE_CORES if self._is_crowded else _CROWDED_CORES)
        self._tidy()
        if len(self._warm) < self._wanted():
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
        if self._looked_ns is not None and now_ns - self._looked_ns >= _LATELY_NS:
            self._looked_ns = None
        while len(self._warm) > self._wanted():
            self._warm.pop().cancel()

    def _wanted(self) -> int:
        is_awaited = self._is_crowded or self._looked_ns is not None or bool(self._judged)
        return is_awaited + bool(self._judged)
