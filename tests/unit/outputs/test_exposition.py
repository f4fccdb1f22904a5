from collections.abc import Iterator, Mapping

import pytest
from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from stallwatch.model.metric import Family, Labels
from stallwatch.outputs.exposition import Encoder, Exposition

STATE = Family("stallwatch_rank_state", "gauge", ("training_job", "rank"), 'what it does: "step", or \\ else')
SPEED = Family("stallwatch_speed", "gauge", (), "how fast\nit is")
SEEN = Family("stallwatch_seen_total", "counter", ("what",), "how often")
VALUES: tuple[tuple[Family, dict[Labels, float]], ...] = (
    (STATE, {('a "job"\\', "0"): 1.0, ("über\nall", "10"): 2.5e9, ("", ""): -1.0}),
    (SPEED, {(): float("nan")}),
    (SEEN, {("x",): 1e21, ("y",): float("inf"), ("z",): 0.0}),
)
ACCEPTED = ("", "text/plain;version=1.0.0;escaping=allow-utf-8", "application/openmetrics-text;version=1.0.0")


class Families(Collector):
    """The same, as prometheus-client writes them by itself."""

    def __init__(self, values: tuple[tuple[Family, Mapping[Labels, float]], ...]) -> None:
        self._values = values

    def collect(self) -> Iterator[Metric]:
        for family, values in self._values:
            kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = kind(family.name, family.help, labels=family.labels)
            for labels, value in values.items():
                metric.add_metric(labels, value)
            yield metric


@pytest.mark.parametrize("accepted", ACCEPTED)
def test_it_is_what_prometheus_client_writes_itself(accepted: str) -> None:
    encode: Encoder = choose_encoder(accepted)[0]
    exposition = Exposition(encode)
    assert exposition.text(VALUES) == encode(Families(VALUES))
    later = tuple((family, {labels: value + 0.5 for labels, value in of.items()}) for family, of in VALUES)
    assert exposition.text(later) == encode(Families(later))


def test_the_encoder_is_asked_of_a_series_once_and_what_is_gone_is_forgotten() -> None:
    encode: Encoder = choose_encoder("")[0]
    asked: list[int] = []

    def counting(collector: Collector) -> bytes:
        asked.append(1)
        return encode(collector)

    exposition = Exposition(counting)
    exposition.text(VALUES)
    known = len(asked)
    exposition.text(VALUES)
    assert len(asked) == known
    exposition.text(())
    exposition.text(VALUES)
    assert len(asked) == known + len(VALUES), "names of series that were gone were kept"
