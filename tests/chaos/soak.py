"""An hour and more of ranks that step, faults and healthy stretches: all is found, nobody is told of what is well, and
nothing of ours grows."""

import contextlib
import math
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.chaos.kills import kind_of
from tests.chaos.node import Node, node_of
from tests.chaos.stories import Result, Stories, left_behind

RANKS = 8
CALM_SECONDS = 180.0
_SAMPLE_SECONDS = 5.0
_KEEP_BYTES = 200 << 20  # each timeline has 10 MB
# What grows then is what fills: ranks that have ended are remembered for ten minutes, and of 45 minutes with 6 faults
# in each the first 19 ended with the highest mark (62, 74, 76, 77, 80 MB, and 79 ever after).
_WARM_SECONDS, _MOST_WARM_SHARE = 1200.0, 0.5
_LEAST_SECONDS = 1200.0  # of a shorter time no slope is judged: the past that is kept for timelines still fills
_MOST_MB_PER_HOUR = 4.0  # the upper end of the interval: 100 MB in a day are not to be missed in an hour's noise
_LASTING_SHARE = 0.9  # of the samples that a process is part of: one for a single look has no slope


class Slope(NamedTuple):
    """Per hour, with the ends of its 95 % interval."""

    per_hour: float
    low: float
    high: float


class Sample(NamedTuple):
    at: float
    resident_bytes: int
    handles: int
    threads: int
    children: int  # that are under way: each is a handle, and on a busier machine they take longer


def slope(points: Sequence[tuple[float, float]], blocks: int = 12) -> Slope:
    """Given (seconds, value), return the least squares' slope. Neighbouring samples are alike, so the interval is that
    of `blocks` means, by Student's t."""
    size = max(1, len(points) // blocks)
    means = [
        (sum(at for at, _ in part) / len(part) / 3600, sum(value for _, value in part) / len(part))
        for part in (points[first : first + size] for first in range(0, len(points), size))
    ]
    count = len(means)
    if count < 4:
        return Slope(0.0, -math.inf, math.inf)
    middle_at, middle = sum(x for x, _ in means) / count, sum(y for _, y in means) / count
    spread = sum((x - middle_at) ** 2 for x, _ in means)
    per_hour = sum((x - middle_at) * (y - middle) for x, y in means) / spread
    rest = sum((y - middle - per_hour * (x - middle_at)) ** 2 for x, y in means)
    error = _T95.get(count - 2, 2.1) * math.sqrt(rest / (count - 2) / spread)
    return Slope(per_hour, per_hour - error, per_hour + error)


def grows(points: Sequence[tuple[float, float]]) -> bool:
    """Given (seconds, MB), return whether memory grows on. A high mark that is reached once, by the largest message so
    far, is a step (a child took 25 MB and then 28 for the other 40 minutes): what leaks grows in the later half too."""
    whole, later = slope(points), slope(points[len(points) // 2 :])
    return whole.low > 0 and whole.high > _MOST_MB_PER_HOUR and later.low > 0


_T95 = {2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23, 11: 2.20}


@dataclass
class SoakResult(Result):
    growing: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return super().good and not self.growing

    def lines(self) -> list[str]:
        *known, verdict = super().lines()
        return [*known, *self.figures, f"growing: {self.growing}", verdict]


class Soak:
    def __init__(self, node: Node, seed: int, ranks: int) -> None:
        self._node = node
        self._random = random.Random(seed)
        self.result = SoakResult(seed)
        self._stories = Stories(node, self._random, self.result, ranks)
        self._samples: dict[tuple[str, int], list[Sample]] = defaultdict(list)

    def run(self, seconds: float, at_once: int | None = None) -> SoakResult:
        chance, began = self._random, time.monotonic()
        sample_at = change_at = began
        open_faults = 0
        try:
            while (now := time.monotonic()) < began + seconds:
                if now >= change_at:
                    open_faults = chance.choice((0, 0, 1, 2)) if at_once is None else at_once
                    change_at = now + chance.uniform(10, 90)
                if now >= sample_at:
                    self._sample(now - began)
                    sample_at = now + _SAMPLE_SECONDS
                self._stories.step(open_faults)
            calm_until = time.monotonic() + CALM_SECONDS
            while time.monotonic() < calm_until and not self._stories.all_over:
                self._stories.step(0)
        finally:
            self._stories.end()
        self.result.seconds = time.monotonic() - began
        self._stories.count()
        self._judge(seconds)
        return self.result

    def _sample(self, at: float) -> None:
        mains = {self._node.daemon.pid: "daemon", self._node.side.pid: "privileged side"}
        for unit in (self._node.daemon, self._node.side):
            processes = unit.processes()
            for process in processes:
                with contextlib.suppress(psutil.Error), process.oneshot():
                    kind = mains.get(process.pid) or kind_of(process)
                    children = len(processes) - 1 if process.pid in mains else 0
                    memory, handles, threads = process.memory_info().rss, process.num_fds(), process.num_threads()
                    self._samples[kind, process.pid].append(Sample(at, memory, handles, threads, children))

    def _judge(self, seconds: float) -> None:
        result = self.result
        warm = min(_WARM_SECONDS, _MOST_WARM_SHARE * seconds)
        expected = (seconds - warm) / _SAMPLE_SECONDS
        for (kind, _), all_samples in sorted(self._samples.items()):
            samples = [one for one in all_samples if one.at > warm]
            if len(samples) < _LASTING_SHARE * 0.5 * expected:
                continue
            memory = slope([(one.at, one.resident_bytes / 1e6) for one in samples])
            whole = slope([(one.at, one.resident_bytes / 1e6) for one in all_samples])
            handles = slope([(one.at, float(one.handles - one.children)) for one in samples])
            threads = slope([(one.at, float(one.threads)) for one in samples])
            last = samples[-1]
            result.figures.append(
                f"{kind}: {last.resident_bytes / 1e6:.1f} MB, {memory.per_hour:+.2f} MB/h "
                f"[{memory.low:+.2f}, {memory.high:+.2f}] after {warm / 60:.0f} min, {whole.per_hour:+.2f} "
                f"[{whole.low:+.2f}, {whole.high:+.2f}] in all; handles {last.handles} "
                f"(but one a child: {handles.per_hour:+.2f}/h [{handles.low:+.2f}, {handles.high:+.2f}]), "
                f"threads {last.threads} ({threads.per_hour:+.2f}/h); "
                f"by twelfths of the time {_by_twelfths(all_samples)} MB"
            )
            if seconds < _LEAST_SECONDS:
                continue
            if grows([(one.at, one.resident_bytes / 1e6) for one in samples]) or handles.low > 0.5 or threads.low > 0.5:
                result.growing.append(kind)


def _by_twelfths(samples: Sequence[Sample]) -> str:
    """Whether it grows on and on, or has levelled off."""
    size = max(1, len(samples) // 12)
    parts = [samples[first : first + size] for first in range(0, len(samples), size)]
    return " ".join(f"{sum(one.resident_bytes for one in part) / len(part) / 1e6:.0f}" for part in parts)


def run(
    seconds: float, seed: int, ranks: int = RANKS, keep: Path | None = None, at_once: int | None = None
) -> SoakResult:
    """`at_once`: how many faults there are at a time; None: none, one or two by chance."""
    with node_of({"incidents": {"keep_bytes": _KEEP_BYTES}}, keep) as node:
        node.start()
        result = Soak(node, seed, ranks).run(seconds, at_once)
        folder = node.folder
    result.left_behind = left_behind(folder)
    return result
