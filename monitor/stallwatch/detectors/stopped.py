"""A rank that somebody stopped (state T). Under a tracer it is being debugged: shown, no symptom."""

import msgspec

from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.model.finding import Finding
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import JobKey


class StoppedRank(msgspec.Struct, frozen=True):
    job: JobKey
    rank: int
    pid: int
    since_ns: int
    ticks: int


class StoppedState(msgspec.Struct, frozen=True):
    ranks: tuple[StoppedRank, ...] = ()


class StoppedDetector:
    """One tick may be a passing stop (a job moved to another cgroup, a tool attaching); two are a stop."""

    name = "stopped"

    def start(self) -> StoppedState:
        return StoppedState()

    def step(self, state: StoppedState, seen: NodeHistory) -> tuple[StoppedState, tuple[Finding, ...]]:
        before = {(r.job, r.rank, r.pid): r for r in state.ranks}
        now = []
        for rank in seen.ranks:
            if not is_stopped(rank):
                continue
            known = before.get((rank.sample.job, rank.sample.rank, rank.sample.pid))
            since_ns, ticks = (known.since_ns, known.ticks + 1) if known else (seen.at_ns, 1)
            now.append(StoppedRank(rank.sample.job, rank.sample.rank, rank.sample.pid, since_ns, ticks))
        return StoppedState(tuple(now)), tuple(self._findings(now))

    def _findings(self, stopped: list[StoppedRank]) -> list[Finding]:
        findings = []
        for job in dict.fromkeys(r.job for r in stopped):
            of_job = [r for r in stopped if r.job == job]
            ranks = ", ".join(str(r.rank) for r in of_job)
            sure = any(r.ticks > 1 for r in of_job)
            findings.append(
                Finding(
                    detector=self.name,
                    stage="confirmed" if sure else "suspect",
                    job=job,
                    ranks=tuple(r.rank for r in of_job),
                    since_ns=min(r.since_ns for r in of_job),
                    limit_seconds=0.0,
                    reason=f"rank {ranks} is stopped (state T) and no debugger is attached",
                    resolvable=False,
                )
            )
        return findings


def is_stopped(rank: RankHistory) -> bool:
    process = rank.sample.process
    return rank.alive and isinstance(process, Known) and process.value.state == "T" and process.value.tracer_pid == 0
