"""A job that moved and stands still, or a rank that stands still while the rest of its job moves on."""

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.config_sections import StallSection
from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.detectors.limits import Limit
from stallwatch.detectors.rank_limit import job_limits
from stallwatch.detectors.suspicion import Suspicion, due_of, stage_of
from stallwatch.model.finding import Finding
from stallwatch.model.snapshot import JobKey


class StallState(msgspec.Struct, frozen=True):
    """The standstills that are suspect."""

    suspicions: tuple[Suspicion, ...] = ()


class _Standing(msgspec.Struct, frozen=True):
    rank: RankHistory
    age_seconds: float
    limit_seconds: float
    why: str


class StallDetector:
    """Suspects at the limit, confirms when nothing has moved `second_look_seconds` later."""

    name = "stall"

    def __init__(self, stall: StallSection) -> None:
        self._stall = stall

    def start(self) -> StallState:
        """The state before the first tick: no stall is suspected."""
        return StallState()

    def step(self, state: StallState, seen: NodeHistory) -> tuple[StallState, tuple[Finding, ...]]:
        """Given ages of steps, calls and phases, return a finding for each job with a rank beyond its limit."""
        if not self._stall.enabled:
            return state, ()
        suspicions, findings = [], []
        for job, ranks in seen.jobs():
            before = next((s for s in state.suspicions if s.job == job), None)
            standing, whole = self._standing(ranks, seen.at_ns, before)
            if not standing:
                continue
            suspicion = before or Suspicion(job, seen.at_ns, whole)
            suspicions.append(suspicion)
            findings.append(self._finding(job, standing, suspicion, whole, seen.at_ns))
        return StallState(tuple(suspicions)), tuple(findings)

    def _standing(
        self, ranks: tuple[RankHistory, ...], at_ns: int, before: Suspicion | None
    ) -> tuple[tuple[_Standing, ...], bool]:
        """Return the ranks that stand still beyond their limits, and whether they are all that we can judge. `before`:
        the suspicion that there is already."""
        suspected = before is not None
        # That we cannot see a rank for a moment is no word of it: what was suspected stays so.
        watched = [rank for rank in ranks if rank.alive and (rank.readable or suspected) and rank.has_words]
        if not any(rank.begun for rank in watched):
            return (), False  # a job at its start is the init detector's
        if not suspected and any(rank.heartbeat and rank.heartbeat.dump_started_ns is not None for rank in watched):
            return (), False  # a dump holds the GIL for up to seconds: our own doing is no symptom
        limits = job_limits(watched, self._stall)
        if before is not None and before.whole:
            limits = [self._while_suspected(*one, before) for one in zip(watched, limits, strict=True)]
        pairs = zip(watched, limits, strict=True)
        standing = tuple(one for rank, limit in pairs if (one := _standing_still(rank, limit, at_ns)))
        if len(standing) == len(watched):
            return standing, True
        if standing and all(_steps_stand(rank, limit, at_ns) for rank, limit in zip(watched, limits, strict=True)):
            return standing, True  # what else counts there may be a second thread's, or a loop's that leads nowhere
        behind = tuple(s for s in standing if s.age_seconds >= self._stall.left_behind_seconds and s.rank.begun)
        return behind, False

    def _while_suspected(self, rank: RankHistory, limit: Limit, before: Suspicion) -> Limit:
        """Only motion ends a suspicion. The limit of the moment is another where a rank can be read again, or a pause
        was learned: at load a suspicion was dropped by that, with what had been seen, and the job still stood."""
        if rank.phase or rank.progress_since_ns > before.since_ns or limit.seconds <= self._stall.floor_seconds:
            return limit
        why = "the floor, for it is suspected; " + limit.why
        return Limit(self._stall.floor_seconds, why, limit.of, limit.learned)

    def _finding(
        self, job: JobKey, standing: tuple[_Standing, ...], suspicion: Suspicion, whole: bool, at_ns: int
    ) -> Finding:
        last = min(standing, key=lambda one: one.age_seconds)
        rank, heartbeat = last.rank.sample.rank, last.rank.heartbeat
        where = f" at step {heartbeat.step}" if heartbeat and heartbeat.step is not None else ""
        where += f" in phase {heartbeat.phase}" if heartbeat and heartbeat.phase else ""
        who = "no rank here moves" if whole else "some ranks stand still while others move"
        return Finding(
            detector=self.name,
            stage=stage_of(suspicion, self._stall.second_look_seconds, at_ns),
            job=job,
            ranks=tuple(one.rank.sample.rank for one in standing),
            since_ns=last.rank.progress_since_ns,
            limit_seconds=last.limit_seconds,
            step=heartbeat.step if heartbeat else None,
            due_ns=due_of(suspicion, self._stall.second_look_seconds),
            reason=f"{who}; the last, rank {rank}, has stood{where} for {last.age_seconds:.1f} s; "
            f"its limit is {last.limit_seconds:.1f} s ({last.why})",
        )


def _steps_stand(rank: RankHistory, limit: Limit, at_ns: int) -> bool:
    return rank.counts_steps and (at_ns - rank.ticks.steps_since_ns) / SECOND_NS + 0.1 >= limit.seconds


def _standing_still(rank: RankHistory, limit: Limit, at_ns: int) -> _Standing | None:
    age_seconds = (at_ns - rank.progress_since_ns) / SECOND_NS
    # Ticks come a second apart, give or take some milliseconds: not one whole tick later for those.
    if age_seconds + 0.1 < limit.seconds:
        return None
    return _Standing(rank, age_seconds, limit.seconds, limit.reason)
