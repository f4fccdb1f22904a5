"""Prometheus' view of the node: rendered once a tick, served as bytes.

The text format is written here and not by prometheus-client: samples exist already and live as long as their object,
so a registry has nothing to keep, and rendering by it took three quarters of all that is done with a report (1.6 ms of
CPU for 8 ranks, 105 ms for 1,024). Names of series, labels and all, are the same from tick to tick and are kept:
escaping them anew took two thirds of what was left. Tests read the result with prometheus-client's own parser and
promtool.
"""

from collections.abc import Iterable, Sequence

from stallwatch.model.incident import NodeReport
from stallwatch.outputs.metric_memory import Memory, SeriesNames
from stallwatch.outputs.metric_sample import Labels, Sample
from stallwatch.outputs.metric_samples import OutputHealth, samples
from stallwatch.outputs.metric_table import FAMILIES, Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# https://prometheus.io/docs/instrumenting/exposition_formats/#comments-help-text-and-type-information
_LABEL_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})
_HEADS = {
    family.name: f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}\n# TYPE {family.name} {family.kind}\n"
    for family in FAMILIES
}


def render(report: NodeReport, outputs: Sequence[OutputHealth], memory: Memory, external_url: str = "") -> bytes:
    """The text format of everything that is known about the node and the daemon."""
    report = memory.labels.applied(report)
    memory.see(report)
    return text(samples(report, outputs, memory, external_url), memory.series).encode("utf-8", "replace")


def text(collected: Iterable[Sample], series: SeriesNames) -> str:
    """Given samples in any order, return the text format: families in the table's order, those with samples."""
    by_family: dict[str, dict[Labels, float]] = {family.name: {} for family in FAMILIES}
    for name, labels, value in collected:
        # The last one wins: a label set may occur once, or Prometheus drops samples.
        by_family[name][labels] = value
    parts: list[str] = []
    for family in FAMILIES:
        if values := by_family[family.name]:
            parts.append(_HEADS[family.name])
            written = series.of(family.name, values)
            for labels, value in values.items():
                if labels not in written:
                    written[labels] = _series(family, labels)
                parts.append(f"{written[labels]} {value!r}\n")
    return "".join(parts)


def _series(family: Family, labels: Labels) -> str:
    if not labels:
        return family.name
    pairs = ",".join(
        [f'{name}="{label.translate(_LABEL_ESCAPES)}"' for name, label in zip(family.labels, labels, strict=True)]
    )
    return f"{family.name}{{{pairs}}}"
