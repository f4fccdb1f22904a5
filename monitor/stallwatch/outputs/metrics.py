"""Prometheus' view of the node: rendered once a tick, served as bytes."""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from stallwatch.model.incident import Incident, NodeReport
from stallwatch.outputs.metric_samples import Labels, OutputHealth, Sample, samples
from stallwatch.outputs.metric_table import FAMILIES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Snapshot:
    """A collector of prometheus-client over samples that exist already: a series lives as long as its object."""

    def __init__(self, collected: Iterable[Sample]) -> None:
        self._by_family: dict[str, dict[Labels, float]] = {family.name: {} for family in FAMILIES}
        for sample in collected:
            # The last one wins: a label set may occur once, or Prometheus drops samples.
            self._by_family[sample.name][sample.labels] = sample.value

    def collect(self) -> Iterator[Metric]:
        for family in FAMILIES:
            values = self._by_family[family.name]
            if not values:
                continue
            kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = kind(family.name, family.help, labels=family.labels)
            for labels, value in values.items():
                metric.add_metric(labels, value)
            yield metric


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
                key = (incident.job.training_job, incident.verdict.cause)
                self.totals[key] = self.totals.get(key, 0) + 1
        self._known &= present  # bounded: ids hold an ordinal and never come back


def render(report: NodeReport, outputs: Sequence[OutputHealth], counter: IncidentCounter) -> bytes:
    """The text format of everything that is known about the node and the daemon."""
    counter.see(report.incidents)
    return generate_latest(Snapshot(samples(report, outputs, counter.totals)))
