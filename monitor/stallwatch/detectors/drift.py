"""Ranks whose calls have parted from the others' while the job still moves, as the periodic samples show it."""

import msgspec

from stallwatch.detectors.history import NodeHistory
from stallwatch.model.finding import Finding
from stallwatch.model.snapshot import JobDrift, JobKey


class Parted(msgspec.Struct, frozen=True):
    """A job of which a rank's calls differ from the others'."""

    job: JobKey
    since_ns: int  # of the sample that showed it first
    drift: JobDrift


class DriftState(msgspec.Struct, frozen=True):
    """The jobs that are known to differ."""

    jobs: tuple[Parted, ...] = ()


class DriftDetector:
    """What has gone wrong once stays so: the ring forgets the call, but not the numbers that came of it. The finding
    lasts as long as the job."""

    name = "drift"

    def start(self) -> DriftState:
        """The state before the first tick: no job has parted."""
        return DriftState()

    def step(self, state: DriftState, seen: NodeHistory) -> tuple[DriftState, tuple[Finding, ...]]:
        """Given the last samples of calls, return a finding for each living job whose ranks have parted; it stays until
        the job ends or a sample says otherwise."""
        known = {parted.job: parted for parted in state.jobs}
        for drift in seen.snapshot.drifts:
            if drift.verdicts and drift.job not in known:
                known[drift.job] = Parted(drift.job, drift.at_ns, drift)
        alive = {job for job, ranks in seen.jobs() if any(rank.alive for rank in ranks)}
        jobs = tuple(parted for job, parted in sorted(known.items()) if job in alive)
        return DriftState(jobs), tuple(self._finding(parted) for parted in jobs)

    def _finding(self, parted: Parted) -> Finding:
        verdict = parted.drift.verdicts[0]
        return Finding(
            detector=self.name,
            stage="confirmed",
            job=parted.job,
            ranks=verdict.culprits,
            since_ns=parted.since_ns,
            limit_seconds=0.0,
            reason=verdict.summary,
            verdict=verdict,
        )
