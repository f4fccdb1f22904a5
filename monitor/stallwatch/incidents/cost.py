"""What hangs cost: time of GPUs whose job stood, or was held back, by cause. Pure."""

from collections.abc import Mapping, Sequence

import msgspec

from stallwatch.incidents.tally import bounded
from stallwatch.model.incident import Incident, RankView, StalledGpuSeconds
from stallwatch.model.snapshot import JobKey
from stallwatch.model.verdict import Cause


class Cost(msgspec.Struct, frozen=True):
    """Since the daemon started. `charged`: open incidents, and up to when (CLOCK_MONOTONIC) each is in the sums."""

    totals: tuple[StalledGpuSeconds, ...] = ()
    charged: tuple[tuple[str, int], ...] = ()
    started_ns: int | None = None

    def step(
        self, views: Sequence[RankView], incidents: Sequence[Incident], labels: Mapping[JobKey, str], at_ns: int
    ) -> "Cost":
        """Given ranks and incidents as they are at `at_ns`, and what jobs go by, return the next. An incident counts
        from when its job began to stand, under the cause that it has now."""
        started_ns = at_ns if self.started_ns is None else self.started_ns
        before, charged = dict(self.charged), {}
        totals = {(one.training_job, one.owner, one.cause): one.seconds for one in self.totals}
        for incident in incidents:
            share, gpus = _share(incident), _gpus(incident.job, views)
            if incident.verdict is None or not share or not gpus:
                continue
            since_ns = before.get(incident.incident_id, max(incident.since_ns, started_ns))
            charged[incident.incident_id] = max(at_ns, since_ns)
            key: tuple[str, str, Cause]
            key = (labels.get(incident.job, incident.job.training_job), incident.job.owner, incident.verdict.cause)
            totals[key] = totals.get(key, 0.0) + max(at_ns - since_ns, 0) / 1e9 * gpus * share
        if not charged and not self.charged and self.started_ns is not None:
            return self
        sums = tuple(StalledGpuSeconds(*key, seconds) for key, seconds in bounded(totals).items())
        return Cost(sums, tuple(charged.items()), started_ns)


def _share(incident: Incident) -> float:
    """Which part of its job's time is lost: all while it stands; 0 where nothing is."""
    verdict = incident.verdict
    if incident.state != "open" or verdict is None or verdict.traits.state in ("well", "waits", "over"):
        return 0.0
    families = {finding.family for finding in incident.findings}
    if verdict.traits.holds_back or families == {"slow"}:
        cost = verdict.slowness.share if verdict.slowness is not None and not verdict.slowness.says_little else 0.0
        return cost / (1.0 + cost)
    return 1.0 if "hang" in families else 0.0


def _gpus(job: JobKey, views: Sequence[RankView]) -> int:
    """GPUs of this node that the job's living ranks hold; 0 where none is known."""
    return len({view.gpu_uuid for view in views if view.job == job and not view.is_leaving and view.gpu_uuid})
