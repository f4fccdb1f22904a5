"""What is counted and named over the whole life of a daemon, for whoever shows it: pure."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from stallwatch.model.incident import Incident, IncidentCount, RankView
from stallwatch.model.snapshot import JobKey, RankSample
from stallwatch.model.verdict import Cause

# A job that is started again may be seen for a moment beside the life that ends.
_LOOKS = 5
_MOST_COUNTED = 256
OTHERS = "(other jobs)"  # what a user's jobs are counted under that are too many for a name each

_Counted = tuple[str, str, Cause]  # training job, owner, cause
N = TypeVar("N", int, float)


class Tally(msgspec.Struct, frozen=True):
    """`labels`: jobs whose name is not theirs alone, and what each is called instead. Who came first keeps the name;
    another is "name#3f2a9c1d" for as long as it is seen, by the hash that its incidents have too."""

    counts: tuple[IncidentCount, ...] = ()  # by the cause of their first verdict
    labels: tuple[tuple[JobKey, str], ...] = ()
    known: frozenset[str] | None = None  # incidents that are counted, or were over before we looked
    together: tuple[tuple[JobKey, int], ...] = ()  # looks in a row beside another job of the same name

    def step(self, views: Sequence[RankView], ranks: Sequence[RankSample], incidents: Sequence[Incident]) -> "Tally":
        """Given ranks, as people and as sensors see them, and incidents, as all are now, return the next."""
        labels, together = self._labels(views, ranks, incidents)
        known, counts = self._counts(incidents, dict(labels))
        return Tally(counts, labels, known, together)

    def _labels(
        self, views: Sequence[RankView], ranks: Sequence[RankSample], incidents: Sequence[Incident]
    ) -> tuple[tuple[tuple[JobKey, str], ...], tuple[tuple[JobKey, int], ...]]:
        before = dict(self.together)
        together = {job: before.get(job, 0) + 1 for job in _beside_an_older(views, ranks)}
        if not together and not self.labels:
            return (), ()
        seen = {view.job for view in views} | {incident.job for incident in incidents}
        labels = {job: label for job, label in self.labels if job in seen}
        for job, looks in together.items():
            if looks >= _LOOKS and job not in labels:
                labels[job] = f"{job.training_job}#{hashlib.sha256(job.epoch.encode()).hexdigest()[:8]}"
        return tuple(labels.items()), tuple(together.items())

    def _counts(
        self, incidents: Sequence[Incident], labels: Mapping[JobKey, str]
    ) -> tuple[frozenset[str], tuple[IncidentCount, ...]]:
        known = self.known
        if known is None:
            known = frozenset(incident.incident_id for incident in incidents if incident.is_over)
        new = [one for one in incidents if one.verdict is not None and one.incident_id not in known]
        counts = {(one.training_job, one.owner, one.cause): one.total for one in self.counts}
        for incident in new:
            assert incident.verdict is not None
            key = (labels.get(incident.job, incident.job.training_job), incident.job.owner, incident.verdict.cause)
            counts[key] = counts.get(key, 0) + 1
        counts = bounded(counts) if new else counts
        # Bounded: ids hold an ordinal and never come back.
        present = {incident.incident_id for incident in incidents}
        known = (known | {incident.incident_id for incident in new}) & present
        return known, tuple(IncidentCount(*key, total) for key, total in counts.items()) if new else self.counts


def bounded(counts: Mapping[_Counted, N]) -> dict[_Counted, N]:
    """Of each user so many jobs are counted by name, the latest; what was counted of others is one sum a cause."""
    of_owner = Counter(owner for _, owner, _ in counts)
    kept: dict[_Counted, N] = {}
    for (job, owner, cause), total in counts.items():
        if of_owner[owner] > _MOST_COUNTED and job != OTHERS:
            of_owner[owner] -= 1
            job = OTHERS
        key = (job, owner, cause)
        kept[key] = kept[key] + total if key in kept else total
    return kept


def _beside_an_older(views: Sequence[RankView], ranks: Sequence[RankSample]) -> Sequence[JobKey]:
    """Live jobs that share a name and a rank with one whose processes are older."""
    live: dict[tuple[tuple[str, str], int], set[JobKey]] = {}
    for view in views:
        if not view.is_leaving:
            live.setdefault((view.job.name, view.rank), set()).add(view.job)
    if all(len(jobs) == 1 for jobs in live.values()):
        return ()
    began = {rank.job: rank.start_ticks for rank in sorted(ranks, key=lambda rank: -rank.start_ticks)}
    younger: set[JobKey] = set()
    for jobs in live.values():
        younger |= set(sorted(jobs, key=lambda job: (began.get(job, 0), job.epoch))[1:])
    return sorted(younger, key=lambda job: (job.training_job, job.epoch))
