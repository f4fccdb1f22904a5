"""Metrics as text, by prometheus-client's encoders. They check and escape each name and label whenever they are asked,
which was most of a rendering: of a series they are asked for what stands before its value, and only once."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from stallwatch.model.metric import Family, Labels

Metric = GaugeMetricFamily | CounterMetricFamily
Encoder = Callable[[Collector], bytes]

_number: Callable[[float], str] = floatToGoString
_ANY, _ANY_TEXT = 0.0, " 0.0"  # a value to ask with, and how a line with it ends


class Exposition:
    """One format. It remembers the series of the last text, and no others."""

    def __init__(self, encode: Encoder) -> None:
        self._encode = encode
        self._end = self._asked()  # "# EOF", where the format has it
        self._heads: dict[str, str] = {}  # by family: its help and type
        self._series: dict[str, dict[Labels, str]] = {}  # by family: name and labels, as they are written

    def text(self, families: Iterable[tuple[Family, Mapping[Labels, float]]]) -> bytes:
        """Given families, each with the values of its series by their labels, return what a scrape is answered with."""
        lines: list[str] = []
        series: dict[str, dict[Labels, str]] = {}
        for family, values in families:
            known = self._series.get(family.name, {})
            if new := [labels for labels in values if labels not in known]:
                known = {**known, **dict(zip(new, self._written(family, new), strict=True))}
            series[family.name] = {labels: known[labels] for labels in values}
            lines.append(self._head(family))
            lines += [f"{known[labels]} {_number(value)}\n" for labels, value in values.items()]
        self._series = series
        return "".join((*lines, self._end)).encode()

    def _head(self, family: Family) -> str:
        if family.name not in self._heads:
            self._heads[family.name] = self._asked(_metric(family)).removesuffix(self._end)
        return self._heads[family.name]

    def _written(self, family: Family, series: Iterable[Labels]) -> list[str]:
        metric = _metric(family)
        for labels in series:
            metric.add_metric(labels, _ANY)
        text = self._asked(metric).removeprefix(self._head(family)).removesuffix(self._end)
        return [line.removesuffix(_ANY_TEXT) for line in text.split("\n")[:-1]]  # a label's own line ends are escaped

    def _asked(self, *metrics: Metric) -> str:
        return self._encode(_Metrics(metrics)).decode()


class _Metrics(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


def _metric(family: Family) -> Metric:
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    return kind(family.name, family.help, labels=family.labels)
