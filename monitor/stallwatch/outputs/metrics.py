"""Prometheus' view of the node: one report as prometheus-client's families, rendered for who asks."""

import logging
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from stallwatch.model.incident import NodeReport
from stallwatch.model.metric import Family, Labels
from stallwatch.outputs.metric_samples import OutputHealth, samples
from stallwatch.outputs.metric_table import FAMILIES

Metric = GaugeMetricFamily | CounterMetricFamily
Encoder = Callable[[Collector], bytes]

log = logging.getLogger(__name__)

# What Prometheus asks for; whoever asks for something else gets the oldest, which everything reads.
_ASKED = (
    "",
    *(f"text/plain;version=1.0.0;escaping={how}" for how in ("allow-utf-8", "underscores")),
    "application/openmetrics-text",
    "application/openmetrics-text;version=1.0.0",
    *(f"application/openmetrics-text;version=1.0.0;escaping={how}" for how in ("allow-utf-8", "underscores")),
)
_FORMATS = {content_type: encoder for encoder, content_type in map(choose_encoder, _ASKED)}
_said: set[str] = set()  # families of which it is in the log
OLDEST: str = choose_encoder("")[1]


def negotiated(accept: str) -> str:
    """Given an Accept header, return the content type of the answer: one of a few, whatever it says."""
    try:
        content_type: str = choose_encoder(accept)[1]
    except (TypeError, ValueError):  # a version that is none
        return OLDEST
    return content_type if content_type in _FORMATS else OLDEST


class NodeCollector(Collector):
    """A report for prometheus-client. A sample whose text or number nothing can hold costs itself; of two with one set
    of labels the last counts, or Prometheus would drop one by chance."""

    def __init__(self, report: NodeReport, outputs: Sequence[OutputHealth], external_url: str = "") -> None:
        self._report = report
        self._outputs = outputs
        self._external_url = external_url
        self.dropped: set[str] = set()  # families that lost a sample

    def collect(self) -> Iterator[Metric]:
        """Families in the table's order, those with samples."""
        by_family: dict[str, dict[Labels, float]] = {family.name: {} for family in FAMILIES}
        for name, labels, value in samples(self._report, self._outputs, self._external_url):
            try:
                "".join(labels).encode()
                by_family[name][labels] = float(value)
            except (UnicodeError, TypeError, ValueError, OverflowError):
                self.dropped.add(name)
        for family in FAMILIES:
            if values := by_family[family.name]:
                metric = _metric(family)
                for labels, value in values.items():
                    metric.add_metric(labels, value)
                yield metric


def render(
    report: NodeReport, outputs: Sequence[OutputHealth], external_url: str = "", content_type: str = OLDEST
) -> bytes:
    """Everything that is known about the node and the daemon, in one of the formats that `negotiated` returns."""
    collector = NodeCollector(report, outputs, external_url)
    encode: Encoder = _FORMATS[content_type]
    text = encode(collector)
    for name in collector.dropped - _said:
        _said.add(name)
        log.warning("%s: a sample is left out: its text or number cannot be written", name)
    return text


def _metric(family: Family) -> Metric:
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    return kind(family.name, family.help, labels=family.labels)
