"""A rank that somebody stopped (state T). Under a tracer it is being debugged: shown, no symptom."""

import msgspec

from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.model.finding import Finding
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import JobKey

_PASSING_NS = 600_000_000


class StoppedRank(msgspec.Struct, frozen=True):
    """A rank in state T, since when."""

    job: JobKey
    rank: int
    pid: int
    since_ns: int


class StoppedState(msgspec.Struct, frozen=True):
    """The ranks that are stopped."""

    ranks: tuple[StoppedRank, ...] = ()


class StoppedDetector:
    """A stop may pass (a job moved to another cgroup, a tool attaching): it counts when it lasts."""

    name = "stopped"

    def start(self) -> StoppedState:
        """The state before the first tick: no rank stands stopped."""
        return StoppedState()

    def step(self, state: StoppedState, seen: NodeHistory) -> tuple[StoppedState, tuple[Finding, ...]]:
        """Given process states, return a finding for each job with ranks that are stopped (T, t): suspect at once,
        confirmed when it lasts."""
        before = {(r.job, r.rank, r.pid): r for r in state.ranks}
        now = []
        for rank in seen.ranks:
            known = before.get((rank.sample.job, rank.sample.rank, rank.sample.pid))
            # That we cannot see it for a moment does not say that it goes on.
            unseen = known is not None and rank.alive and isinstance(rank.sample.process, Unavailable)
            if not (is_stopped(rank) or unseen):
                continue
            since_ns = known.since_ns if known else seen.at_ns
            now.append(StoppedRank(rank.sample.job, rank.sample.rank, rank.sample.pid, since_ns))
        return StoppedState(tuple(now)), tuple(self._findings(now, seen.at_ns))

    def _findings(self, stopped: list[StoppedRank], at_ns: int) -> list[Finding]:
        findings = []
        for job in dict.fromkeys(r.job for r in stopped):
            of_job = [r for r in stopped if r.job == job]
            ranks = ", ".join(str(r.rank) for r in of_job)
            due_ns = min(r.since_ns for r in of_job) + _PASSING_NS
            findings.append(
                Finding(
                    detector=self.name,
                    stage="confirmed" if at_ns >= due_ns else "suspect",
                    job=job,
                    ranks=tuple(r.rank for r in of_job),
                    since_ns=min(r.since_ns for r in of_job),
                    limit_seconds=0.0,
                    reason=f"rank {ranks} is stopped (state T) and no debugger is attached",
                    resolvable=False,
                    due_ns=due_ns,
                )
            )
        return findings


def is_stopped(rank: RankHistory) -> bool:
    """Whether its process is in state T or t."""
    process = rank.sample.process
    return rank.alive and isinstance(process, Known) and process.value.state == "T" and process.value.tracer_pid == 0
