"""Every detector over every snapshot: the list of them, the step of all, the guard around each, and ranks as people see
them (state, ages, the limit in force with its reason)."""

from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Any, Protocol, TypeVar

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.config import Config
from stallwatch.config_sections import StallSection
from stallwatch.detectors.drift import DriftDetector
from stallwatch.detectors.exit import DeathsState, ExitDetector, describe, end_of
from stallwatch.detectors.hardware import HardwareDetector
from stallwatch.detectors.health import HealthDetector
from stallwatch.detectors.history import NodeHistory, RankHistory, advance
from stallwatch.detectors.init import InitDetector
from stallwatch.detectors.job_facts import JobFacts, job_facts
from stallwatch.detectors.job_pace import JobPaceDetector
from stallwatch.detectors.quiet import QuietDetector
from stallwatch.detectors.rank_limit import job_limits, rank_limit
from stallwatch.detectors.shares import Shares
from stallwatch.detectors.slow import SlowDetector, SlowState
from stallwatch.detectors.stall import StallDetector
from stallwatch.detectors.stopped import StoppedDetector
from stallwatch.detectors.xids import XidState, count, totals
from stallwatch.model.finding import Finding, RankState
from stallwatch.model.gpu import Gpu
from stallwatch.model.incident import RankView, XidCount
from stallwatch.model.process import STOPPED
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import JobKey, NodeSnapshot

State = TypeVar("State")
# Of a rank without a word, instead of its limit. Where no rank of its job was seen to work, `patience` tells nobody
# that it stands.
_WORDLESS = "no hook and no recorder: nothing to watch but the process"
NOT_SEEN_TO_WORK = ", which was not seen to work yet"


class Detector(Protocol[State]):
    """Finds one kind of symptom. It does no I/O, keeps nothing outside its frozen state, and may not name a cause.

    A finding is repeated at every tick as long as its symptom lasts; the life of an incident is made of that.
    """

    name: str

    def start(self) -> State:
        """Return the state before the first snapshot."""
        ...

    def step(self, state: State, seen: NodeHistory) -> tuple[State, tuple[Finding, ...]]:
        """Given what is known at this tick, return the next state and the symptoms that exist now."""
        ...


Detectors = tuple[Detector[Any], ...]

_WAITING_NS = 2 * SECOND_NS  # an operation pending for longer is worth showing


def detectors(config: Config) -> Detectors:
    """The detectors in force, in the order in which their findings are listed."""
    return (
        ExitDetector(config.tell),
        HardwareDetector(),
        StoppedDetector(),
        InitDetector(config.stall),
        StallDetector(config.stall),
        QuietDetector(config.stall),
        SlowDetector(config.slow),
        JobPaceDetector(),
        HealthDetector(),
        DriftDetector(),
    )


class DetectionState(msgspec.Struct, frozen=True):
    """All that detection remembers from one snapshot to the next."""

    history: NodeHistory | None = None
    of_detectors: tuple[tuple[str, Any], ...] = ()
    xids: XidState = XidState()


class DetectorError(msgspec.Struct, frozen=True):
    """A detector that failed at this tick, and why."""

    detector: str
    error: str


class Detected(msgspec.Struct, frozen=True):
    """What detection says of a tick: findings, ranks and jobs as people see them."""

    findings: tuple[Finding, ...]
    ranks: tuple[RankView, ...]
    jobs: tuple[JobFacts, ...]
    errors: tuple[DetectorError, ...] = ()
    xid_counts: tuple[XidCount, ...] = ()
    due_ns: int | None = None  # CLOCK_MONOTONIC of the look that would change something, if it comes before the next


class Detection:
    """Pure but for its configuration: the same snapshots give the same findings, live and from a timeline."""

    def __init__(self, config: Config, parts: Detectors | None = None) -> None:
        self._stall = config.stall
        self._parts = detectors(config) if parts is None else parts

    def step(self, state: DetectionState, snapshot: NodeSnapshot) -> tuple[DetectionState, Detected]:
        """Given what is remembered and a new snapshot, return what to remember and what was found.

        A bug in one detector costs its findings of this tick and is reported; the others go on.
        """
        seen = advance(state.history, snapshot)
        states = dict(state.of_detectors)
        findings: list[Finding] = []
        errors: list[DetectorError] = []
        for part in self._parts:
            before = states.get(part.name)
            try:
                states[part.name], found = part.step(part.start() if before is None else before, seen)
            except Exception as error:  # noqa: BLE001  the daemon's per-stage guard
                states[part.name] = part.start()
                errors.append(DetectorError(part.name, f"{type(error).__name__}: {error}"))
                continue
            findings += found
        found_all = tuple(findings)
        slow = states.get(SlowDetector.name)
        shares = slow.shares() if isinstance(slow, SlowState) else {}
        deaths = states.get(ExitDetector.name)
        jobs = job_facts(seen, dict(deaths.passed) if isinstance(deaths, DeathsState) else {})
        views = rank_views(seen, found_all, self._stall, shares, {facts.job for facts in jobs if facts.ending})
        xids = count(state.xids, snapshot)
        due_ns = next_due(found_all, seen, self._stall)
        return (
            DetectionState(seen, tuple(states.items()), xids),
            Detected(found_all, views, jobs, tuple(errors), totals(xids), due_ns),
        )


def rank_views(
    seen: NodeHistory,
    findings: tuple[Finding, ...],
    stall: StallSection,
    shares: Mapping[tuple[JobKey, int, int], Shares],
    ending: Collection[JobKey],
) -> tuple[RankView, ...]:
    """Given what is known and what was found (`shares`: detectors.slow), and the jobs that are ending, return one view
    per rank's process."""
    gpus = seen.gpus
    views = []
    for job, ranks in seen.jobs():
        for rank in ranks:
            state = _state(rank, seen.at_ns, findings, job in ending)
            of_rank = shares.get((rank.sample.job, rank.sample.rank, rank.sample.pid))
            views.append(_view(rank, seen.at_ns, state, gpus, stall, of_rank))
    return tuple(views)


def _view(
    rank: RankHistory,
    at_ns: int,
    state: RankState,
    gpus: tuple[Gpu, ...],
    stall: StallSection,
    shares: Shares | None,
) -> RankView:
    sample, heartbeat = rank.sample, rank.heartbeat
    limit = rank_limit(rank, stall)
    return RankView(
        job=sample.job,
        rank=sample.rank,
        local_rank=sample.local_rank,
        world_size=sample.world_size,
        pid=sample.pid,
        state=state,
        step=heartbeat.step if heartbeat else None,
        step_seconds=median(heartbeat.step_durations_ns) / SECOND_NS
        if heartbeat and heartbeat.step_durations_ns
        else None,
        beat_age_seconds=(at_ns - rank.ticks.step_since_ns) / SECOND_NS if rank.counts_steps else None,
        pulse_age_seconds=(at_ns - rank.ticks.pulse_since_ns) / SECOND_NS if heartbeat else None,
        phase=rank.phase,
        limit_seconds=limit.seconds if limit.learned else None,
        limit_reason=limit.reason if rank.has_words else _wordless(rank),
        gpu_uuid=next((gpu.uuid for gpu in gpus if sample.pid in (gpu.compute_pids or ())), None),
        communication_share=shares.communication if shares else None,
        slow_share=shares.slow if shares else None,
        ended="" if rank.alive else describe(end_of(rank)),
    )


def _wordless(rank: RankHistory) -> str:
    return _WORDLESS if rank.begun or rank.heartbeat is not None else _WORDLESS + NOT_SEEN_TO_WORK


def _state(rank: RankHistory, at_ns: int, findings: tuple[Finding, ...], ending: bool) -> RankState:
    process = rank.sample.process
    if not rank.alive:
        return "gone"
    if isinstance(process, Known) and process.value.state in STOPPED:
        return "stopped"
    if not rank.readable:
        return "unknown"
    if any(f.job == rank.sample.job and rank.sample.rank in f.ranks and f.family == "hang" for f in findings):
        return "waiting" if rank.pending else "suspect"  # who waits is not who holds up
    if ending:
        return "ending"
    if rank.phase:
        return "phase"
    if not rank.begun:
        return "starting"
    if rank.pending and at_ns - rank.progress_since_ns > _WAITING_NS:
        return "waiting"
    return "stepping"


# When the next look at the node would change a finding: the loop comes then, not up to a whole tick later.


def next_due(findings: Sequence[Finding], seen: NodeHistory, stall: StallSection) -> int | None:
    """Return the earliest moment (CLOCK_MONOTONIC) at which a suspicion is confirmed or a limit passed."""
    moments = [finding.due_ns for finding in findings if finding.stage == "suspect"]
    standing = {finding.job for finding in findings if finding.detector in ("stall", "init")}
    for job, ranks in seen.jobs():
        if job not in standing and (passes_ns := _limit_passes(ranks, seen.at_ns, stall)) is not None:
            moments.append(passes_ns)
    return min((moment for moment in moments if moment > seen.at_ns), default=None)


def _limit_passes(ranks: tuple[RankHistory, ...], at_ns: int, stall: StallSection) -> int | None:
    watched = [rank for rank in ranks if rank.alive and rank.readable and rank.has_words]
    if not watched or any(at_ns - rank.progress_since_ns < SECOND_NS for rank in watched):
        return None  # it moves: nothing is near
    limits = job_limits(watched, stall)
    return max(r.progress_since_ns + int(limit.seconds * SECOND_NS) for r, limit in zip(watched, limits, strict=True))
