"""A job without hooks in which no rank has worked for a while: all that can be seen of it from outside.

Only quietness is seen: ranks that spin while they wait (NCCL, by default) look busy, and stay for a look on request.
"""

import msgspec

from stallwatch.config import StallSection
from stallwatch.detectors.history import LATE_SECONDS, NodeHistory, RankHistory
from stallwatch.detectors.limits import SECOND_NS
from stallwatch.detectors.suspicion import Suspicion, due_of, stage_of
from stallwatch.model.finding import Finding
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import JobKey
from stallwatch.progress.outside import work_of, worked


class QuietRank(msgspec.Struct, frozen=True):
    """One process and when it last worked; `work` are its counters at the last tick."""

    job: JobKey
    rank: int
    pid: int
    start_ticks: int
    since_ns: int
    cpu_ticks: int
    bytes_moved: int


class QuietState(msgspec.Struct, frozen=True):
    ranks: tuple[QuietRank, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()


class QuietDetector:
    name = "quiet"

    def __init__(self, stall: StallSection) -> None:
        self._stall = stall

    def start(self) -> QuietState:
        return QuietState()

    def step(self, state: QuietState, seen: NodeHistory) -> tuple[QuietState, tuple[Finding, ...]]:
        before = {(rank.pid, rank.start_ticks): rank for rank in state.ranks}
        kept: list[QuietRank] = []
        suspicions: list[Suspicion] = []
        findings: list[Finding] = []
        for job, ranks in seen.jobs():
            alive = [rank for rank in ranks if rank.alive]
            if not alive or not self._stall.enabled or any(rank.heartbeat is not None for rank in alive):
                continue  # who has a hook is watched by what it says
            of_job = [_advance(before.get((r.sample.pid, r.sample.start_ticks)), r, seen) for r in alive]
            known = [rank for rank in of_job if rank is not None]
            kept += known
            since_ns = max((rank.since_ns for rank in known), default=seen.at_ns)
            if len(known) < len(alive) or seen.at_ns - since_ns < self._stall.unlearned_seconds * SECOND_NS:
                continue
            suspicion = next((s for s in state.suspicions if s.job == job), None) or Suspicion(job, seen.at_ns)
            suspicions.append(suspicion)
            findings.append(self._finding(job, known, suspicion, since_ns, seen.at_ns))
        return QuietState(tuple(kept), tuple(suspicions)), tuple(findings)

    def _finding(self, job: JobKey, ranks: list[QuietRank], suspicion: Suspicion, since_ns: int, at_ns: int) -> Finding:
        return Finding(
            detector=self.name,
            stage=stage_of(suspicion, self._stall.second_look_seconds, at_ns),
            job=job,
            ranks=tuple(sorted(rank.rank for rank in ranks)),
            since_ns=since_ns,
            limit_seconds=self._stall.unlearned_seconds,
            due_ns=due_of(suspicion, self._stall.second_look_seconds),
            reason=f"no rank here has computed, read or written for {(at_ns - since_ns) / SECOND_NS:.0f} s; "
            "nothing else is known of a job without stallwatch.attach()",
        )


def _advance(before: QuietRank | None, rank: RankHistory, seen: NodeHistory) -> QuietRank | None:
    """None when its process cannot be read: unknown is not quiet."""
    if not isinstance(rank.sample.process, Known):
        return None
    process = rank.sample.process.value
    cpu_ticks, bytes_moved = work_of(process)
    since_ns = seen.at_ns
    if before is not None:
        has_worked = worked((before.cpu_ticks, before.bytes_moved), (cpu_ticks, bytes_moved))
        # What stopped us for a while may have stopped the job as well.
        late_ns = int(seen.late_seconds * SECOND_NS) if seen.late_seconds >= LATE_SECONDS else 0
        since_ns = seen.at_ns if has_worked or process.state in "TtZX" else min(before.since_ns + late_ns, seen.at_ns)
    sample = rank.sample
    return QuietRank(sample.job, sample.rank, sample.pid, sample.start_ticks, since_ns, cpu_ticks, bytes_moved)
