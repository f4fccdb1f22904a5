"""What metrics need to remember between two reports: things counted since the start, and shares of recent looks."""

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from operator import itemgetter

from stallwatch.model.incident import Incident, NodeReport
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import JobKey, NodeSnapshot
from stallwatch.outputs.metric_gpus import XidCounter
from stallwatch.outputs.metric_names import JobLabels
from stallwatch.outputs.metric_sample import Labels

_LOOKS = 64  # of the last minute, at a pulse a second
_FEWEST_LOOKS = 8  # a share of fewer says nothing

RankKey = tuple[JobKey, int, int]  # job, rank, pid


class IncidentCounter:
    """Counts incidents by job and cause of their first verdict; those that were over before we looked do not count."""

    def __init__(self) -> None:
        self._known: set[str] | None = None
        self.totals: dict[Labels, int] = {}

    def see(self, incidents: Sequence[Incident]) -> None:
        present = {incident.incident_id for incident in incidents}
        if self._known is None:
            self._known = {incident.incident_id for incident in incidents if incident.state == "resolved"}
        for incident in incidents:
            if incident.verdict is not None and incident.incident_id not in self._known:
                self._known.add(incident.incident_id)
                key = (incident.job.training_job, incident.job.owner, incident.verdict.cause)
                self.totals[key] = self.totals.get(key, 0) + 1
        self._known &= present  # bounded: ids hold an ordinal and never come back


class CommunicationWindow:
    """In which share of its recent looks a rank stood in a collective: a fresh pulse with an operation that is
    enqueued and not completed. Phases are their own kind of time and do not count."""

    def __init__(self) -> None:
        self._looks: dict[RankKey, tuple[int, deque[bool]]] = {}

    def see(self, snapshot: NodeSnapshot) -> None:
        kept: dict[RankKey, tuple[int, deque[bool]]] = {}
        for rank in snapshot.ranks:
            if not isinstance(rank.heartbeat, Known):
                continue
            beat = rank.heartbeat.value
            key = (rank.job, rank.rank, rank.pid)
            last_pulse_ns, looks = self._looks.get(key, (-1, deque(maxlen=_LOOKS)))
            if beat.pulse_ns != last_pulse_ns and beat.groups and not beat.phase:
                looks.append(any(group.enqueued > group.completed for group in beat.groups))
            kept[key] = (beat.pulse_ns, looks)
        self._looks = kept

    def shares(self) -> dict[RankKey, float]:
        return {key: sum(looks) / len(looks) for key, (_, looks) in self._looks.items() if len(looks) >= _FEWEST_LOOKS}


def slow_scores(shares: dict[RankKey, float]) -> Iterator[tuple[RankKey, float]]:
    """How much less of its time than its peers' median a rank waits: what it makes the others wait, as a share."""
    of_job: dict[JobKey, list[float]] = {}
    for (job, _, _), share in sorted(shares.items(), key=itemgetter(1)):
        of_job.setdefault(job, []).append(share)
    for key, share in shares.items():
        if (middle := _median_without(of_job[key[0]], share)) is not None:
            yield key, max(middle - share, 0.0)


def _median_without(ordered: Sequence[float], one: float) -> float | None:
    """The median of sorted numbers once one of them is left out; None when nothing remains."""
    rest = len(ordered) - 1
    if rest < 1:
        return None
    left_out = bisect_left(ordered, one)
    low, high = ((rest - 1) // 2, rest // 2)
    return (ordered[low + (low >= left_out)] + ordered[high + (high >= left_out)]) / 2


class SeriesNames:
    """Series as they were written last, by family and label values; bounded by what is exported."""

    def __init__(self) -> None:
        self._written: dict[str, dict[Labels, str]] = {}

    def of(self, family: str, present: Collection[Labels]) -> dict[Labels, str]:
        """Given the label sets that a family has now, return the written names of its series, for adding to."""
        written = self._written.setdefault(family, {})
        if len(written) > 2 * len(present):  # jobs that went: forget all rather than look for them
            written.clear()
        return written


class Memory:
    def __init__(self) -> None:
        self.series = SeriesNames()
        self.labels = JobLabels()
        self.incidents = IncidentCounter()
        self.communication = CommunicationWindow()
        self.xids = XidCounter()

    def see(self, report: NodeReport) -> None:
        self.incidents.see(report.incidents)
        self.communication.see(report.snapshot)
        self.xids.see(report.snapshot)
