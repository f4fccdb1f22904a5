"""What a bench says: figures, each with its interval and what the peer of the same run took."""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence

import msgspec

CONFIDENCE = 0.95
_Z = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
_SECONDS = ("s", "ms", "µs", "ns")


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One number. A ratio to a peer of the same run has the unit "×"; both sides of it are told in `detail`."""

    name: str  # unlike those of the same row
    value: float
    unit: str
    low: float | None = None  # of the interval that holds it, 95 %
    high: float | None = None
    detail: str = ""

    @property
    def belongs_to_the_machine(self) -> bool:
        """Whether it can be compared with the same machine's alone: plain seconds, which ratios and bytes are not."""
        return self.unit in _SECONDS

    def __str__(self) -> str:
        between = f" ({number(self.low)} to {number(self.high)})" if self.low is not None and self.high else ""
        return f"{self.name}: {number(self.value)} {self.unit}{between}{'; ' if self.detail else ''}{self.detail}"


def number(value: float | None) -> str:
    """Return three digits that count, as a person writes them; "?" for nothing."""
    if value is None or not math.isfinite(value):
        return "?"
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def median_of(name: str, values: Sequence[float], unit: str, detail: str = "") -> Figure:
    """Return the median and the interval that holds it, by order statistics: whatever the distribution, outliers of a
    machine that does other things included. Raise StatisticsError without a value."""
    ordered = sorted(values)
    middle, around = len(ordered) / 2, _Z * math.sqrt(len(ordered)) / 2
    low, high = math.floor(middle - around), math.ceil(middle + around)
    wide = low < 0 or high > len(ordered) - 1  # fewer than six say nothing of their spread
    middle_value = statistics.median(ordered)
    if wide and len(ordered) < 6:
        return Figure(name, middle_value, unit, detail=detail)
    return Figure(name, middle_value, unit, ordered[max(0, low)], ordered[min(high, len(ordered) - 1)], detail)


def mean_of(name: str, values: Sequence[float], unit: str, detail: str = "") -> Figure:
    """Return the mean and its interval by resampling the values, which are those of pairs: a cost that comes seldom (a
    pause, a sample) is in the mean and not in the median. Raise StatisticsError without a value."""
    drawn = random.Random(1)
    means = sorted(statistics.fmean(drawn.choices(values, k=len(values))) for _ in range(2_000))
    # Resampling of few makes its interval narrower by this than it is.
    wider = math.sqrt(len(values) / max(1, len(values) - 1))
    mean, low, high = statistics.fmean(values), means[49], means[1949]
    return Figure(name, mean, unit, mean - (mean - low) * wider, mean + (high - mean) * wider, detail)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which so large a share of them lies. Raise IndexError without a value."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def beside_yardstick(work: Callable[[], float], times: int = 3) -> tuple[float, list[float]]:
    """Run `work`, which returns its seconds of processor, `times` times, each between two runs of the yardstick; return
    the least seconds of it, and what part of the yardstick's each took. So a slower machine, or a busier one, does not
    look like slower code."""
    taken, ratios, before = [], [], yardstick()
    for _ in range(times):
        taken.append(work())
        after = yardstick()
        ratios.append(taken[-1] / ((before + after) / 2))
        before = after
    return min(taken), ratios


def yardstick() -> float:
    """Return the seconds of processor of a fixed piece of Python: dicts, tuples, strings and calls, as our code is."""
    began = time.process_time()
    table: dict[tuple[int, str], list[int]] = {}
    for at in range(200_000):
        table.setdefault((at % 997, str(at % 13)), []).append(at)
    kept = sorted((len(values), key) for key, values in table.items())
    assert len(kept) == 997 * 13
    return time.process_time() - began
