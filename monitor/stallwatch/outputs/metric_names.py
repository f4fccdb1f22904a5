"""The `training_job` label where two live jobs of a user go by one name: one series cannot be both."""

import hashlib
from collections.abc import Sequence
from typing import TypeVar

from msgspec.structs import replace

from stallwatch.model.finding import Finding
from stallwatch.model.incident import Incident, NodeReport, RankView
from stallwatch.model.snapshot import JobKey, RankSample

OfJob = TypeVar("OfJob", RankSample, RankView, Finding, Incident)

# A job that is started again may be seen for a moment beside the life that ends.
_LOOKS = 5
_OVER = ("gone", "ending")


class JobLabels:
    """Who came first keeps the name; another is "name#3f2a9c1d" for as long as it is seen, by the hash that its
    incidents have too."""

    def __init__(self) -> None:
        self._together: dict[JobKey, int] = {}  # looks in a row beside another of its name
        self._labels: dict[JobKey, str] = {}

    def applied(self, report: NodeReport) -> NodeReport:
        """Return the report with each job under its label; the report itself where every name is one job's."""
        self._see(report)
        if not self._labels:
            return report
        return replace(
            report,
            snapshot=replace(report.snapshot, ranks=tuple(self._named(rank) for rank in report.snapshot.ranks)),
            ranks=tuple(self._named(rank) for rank in report.ranks),
            findings=tuple(self._named(finding) for finding in report.findings),
            incidents=tuple(self._named(incident) for incident in report.incidents),
        )

    def _named(self, value: OfJob) -> OfJob:
        label = self._labels.get(value.job)
        return value if label is None else replace(value, job=replace(value.job, training_job=label))

    def _see(self, report: NodeReport) -> None:
        beside = _beside_an_older(report)
        self._together = {job: self._together.get(job, 0) + 1 for job in beside}
        seen = {view.job for view in report.ranks} | {incident.job for incident in report.incidents}
        self._labels = {job: label for job, label in self._labels.items() if job in seen}
        for job, looks in self._together.items():
            if looks >= _LOOKS and job not in self._labels:
                self._labels[job] = f"{job.training_job}#{hashlib.sha256(job.epoch.encode()).hexdigest()[:8]}"


def _beside_an_older(report: NodeReport) -> Sequence[JobKey]:
    """Live jobs that share a name and a rank with one whose processes are older."""
    live: dict[tuple[tuple[str, str], int], set[JobKey]] = {}
    for view in report.ranks:
        if view.state not in _OVER:
            live.setdefault((view.job.name, view.rank), set()).add(view.job)
    if all(len(jobs) == 1 for jobs in live.values()):
        return ()
    began = {rank.job: rank.start_ticks for rank in sorted(report.snapshot.ranks, key=lambda rank: -rank.start_ticks)}
    younger = set()
    for jobs in live.values():
        younger |= set(sorted(jobs, key=lambda job: (began.get(job, 0), job.epoch))[1:])
    return sorted(younger, key=lambda job: (job.training_job, job.epoch))
