"""A rank that somebody stopped (state T). Under a tracer it is being debugged: shown, no symptom."""

import msgspec
from msgspec.structs import replace

from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.model.finding import Finding
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import JobKey

_PASSING_NS = 600_000_000
# Who was stopped and went on by itself is stopped again by the same hand (cpulimit, a scheduler that shares a node by
# turns), and on a crowded machine for longer: one that was limited so was told at a load of 100 on 32 cores.
_TIMES_LONGEST = 3
_MOST_NS = 60_000_000_000
# A record is read some milliseconds before or after the state beside it.
_READ_APART_NS = 100_000_000


class StoppedRank(msgspec.Struct, frozen=True):
    """A rank in state T, since when; or one that was and goes on."""

    job: JobKey
    rank: int
    pid: int
    since_ns: int | None  # None: it goes on
    longest_ns: int = 0  # of the stops that ended
    has_passed: bool = False  # it has gone on by itself before

    @property
    def due_ns(self) -> int:
        """When a stop is no passing one any more."""
        return (self.since_ns or 0) + max(_PASSING_NS, min(_TIMES_LONGEST * self.longest_ns, _MOST_NS))

    def gone_on(self, at_ns: int) -> "StoppedRank":
        """The same rank when it is not stopped."""
        if self.since_ns is None:
            return self
        return replace(self, since_ns=None, longest_ns=max(self.longest_ns, at_ns - self.since_ns), has_passed=True)


class StoppedState(msgspec.Struct, frozen=True):
    """The ranks that are stopped, and those that were."""

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
            if not is_stopped(rank) and not unseen:
                if known is not None and rank.alive:
                    now.append(known.gone_on(seen.at_ns))
                continue
            known = known or StoppedRank(rank.sample.job, rank.sample.rank, rank.sample.pid, None)
            known = known.gone_on(seen.at_ns) if _went_on(rank, known) else known
            stops = is_stopped(rank) and known.since_ns is None
            now.append(replace(known, since_ns=seen.at_ns) if stops else known)
        return StoppedState(tuple(now)), tuple(self._findings(now, seen.at_ns))

    def _findings(self, stopped: list[StoppedRank], at_ns: int) -> list[Finding]:
        findings = []
        standing = [(one, one.since_ns) for one in stopped if one.since_ns is not None]
        for job in dict.fromkeys(one.job for one, _ in standing):
            of_job = [one for one, _ in standing if one.job == job]
            ranks = ", ".join(str(r.rank) for r in of_job)
            due_ns = min(one.due_ns for one in of_job)
            findings.append(
                Finding(
                    detector=self.name,
                    stage="confirmed" if at_ns >= due_ns else "suspect",
                    job=job,
                    ranks=tuple(r.rank for r in of_job),
                    since_ns=min(since_ns for one, since_ns in standing if one.job == job),
                    limit_seconds=0.0,
                    reason=f"rank {ranks} is stopped (state T) and no debugger is attached",
                    resolvable=False,
                    due_ns=due_ns,
                    may_pass=at_ns < due_ns and all(one.has_passed for one in of_job),
                )
            )
        return findings


def _went_on(rank: RankHistory, known: StoppedRank) -> bool:
    """Whether it has done something since it was first seen stopped: it is another stop then. (A rank that is stopped
    for half of each second is so at two ticks of four.)"""
    beat = rank.heartbeat
    if beat is None or known.since_ns is None:
        return False
    newest_ns = max(beat.pulse_ns, beat.last_step_ns or 0, beat.looks[-1].at_ns if beat.looks else 0)
    return newest_ns > known.since_ns + _READ_APART_NS


def is_stopped(rank: RankHistory) -> bool:
    """Whether its process is in state T or t."""
    process = rank.sample.process
    return rank.alive and isinstance(process, Known) and process.value.state == "T" and process.value.tracer_pid == 0
