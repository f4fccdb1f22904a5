"""The rows: what is measured, against what in the same run, with which goal, and what it needs."""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Literal, NamedTuple

from tests.bench import results
from tests.bench.figures import Figure, number

Need = Literal["torch", "GPU", "nvitop-exporter", "NVRx", "registry"]


class Goal(NamedTuple):
    """What a figure must not be above, or, of what is the better the more of it there is, not below."""

    figure: str
    bound: float
    at_least: bool = False

    def is_met(self, figure: Figure) -> bool:
        """Whether the value keeps to it."""
        return figure.value >= self.bound if self.at_least else figure.value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {number(self.bound)}"


class Row(NamedTuple):
    """One row. `figures` is "module:function", which takes whether to be quick and returns figures."""

    name: str
    what: str
    figures: str
    against: str  # what runs in the same run
    goals: tuple[Goal, ...]
    needs: frozenset[Need] = frozenset()
    peers: frozenset[Need] = frozenset()  # without them the rest of the row is measured
    minutes: float = 1.0
    is_exclusive: bool = False  # the machine must be quiet: times of many processes

    @property
    def command(self) -> str:
        """What runs it."""
        return f"python -m tests.bench --row {self.name}"


def _row(name: str, what: str, figures: str, against: str, *goals: Goal, **options: object) -> Row:
    needs = {key: frozenset(options.pop(key, ())) for key in ("needs", "peers")}  # type: ignore[call-overload]
    return Row(name, what, f"tests.bench.{figures}", against, goals, **needs, **options)  # type: ignore[arg-type]


ROWS: tuple[Row, ...] = (
    _row(
        "step",
        "what `step()` costs a training job",
        "bench_step:figures",
        "an empty call and a clock read; NVRx's heartbeat with its real server",
        Goal("step()", 1.8),
        Goal("NVRx send_heartbeat against step()", 300, at_least=True),
        peers={"NVRx"},
        minutes=1,
    ),
    _row(
        "step-cpu",
        "processor time that hook and daemon take of a training step",
        "bench_training:cpu",
        "the same job without, block by block",
        Goal("hook and daemon, of 8 busy cores", 0.2),
        needs={"torch"},
        minutes=11,
        is_exclusive=True,
    ),
    _row(
        "step-gpu",
        "a bf16 transformer step with hook, recorder, daemon and samples",
        "bench_training:transformer",
        "the same job without, block by block",
        Goal("a bf16 step, in pairs", 0.1),
        needs={"torch", "GPU"},
        minutes=5,
        is_exclusive=True,
    ),
    _row(
        "footprint",
        "memory (PSS) and CPU of the daemon and all its children, scraped each 5 s",
        "bench_footprint:figures",
        "nvitop-exporter",
        Goal("idle: memory", 96),
        Goal("idle: CPU", 0.5),
        Goal("8 ranks: memory", 112),
        Goal("8 ranks: CPU", 1.0),
        needs={"torch"},
        peers={"nvitop-exporter"},
        minutes=9,
        is_exclusive=True,
    ),
    _row(
        "look-pauses",
        "for how long a look holds ranks that communicate",
        "bench_look_pauses:figures",
        "the ranks' own gaps while nobody looks",
        Goal("longest pause while looked at", 50),
        needs={"torch"},
        minutes=3,
        is_exclusive=True,
    ),
    _row(
        "captures",
        "evidence of 8 ranks whose rings are full of 60-frame stacks",
        "bench_captures:figures",
        "-",
        Goal("first stack", 1.0),
        Goal("evidence complete", 3.0),
        needs={"torch"},
        minutes=2,
        is_exclusive=True,
    ),
    _row(
        "latency",
        "from fault to verdict, all faults of the demo, 50 ms steps",
        "bench_latency:figures",
        "torch's own time-out: 600 s",
        Goal("stalls: p95", 9.0),
        Goal("deaths and stops: p95", 1.5),
        Goal("right", 1.0, at_least=True),
        needs={"torch"},
        minutes=12,
        is_exclusive=True,
    ),
    _row(
        "latency-loaded",
        "the same at a load of 8 on 2 cores, under gloo",
        "bench_latency:loaded",
        "torch's own time-out: 600 s",
        Goal("stalls: p95", 15.0),
        Goal("right", 1.0, at_least=True),
        needs={"torch"},
        minutes=10,
        is_exclusive=True,
    ),
    _row(
        "hookless",
        "from fault to verdict where no rank has the hook, under gloo",
        "hookless_row:figures",
        "torch's own time-out: 600 s",
        Goal("verdict: p95", 60.0),
        Goal("right", 1.0, at_least=True),
        needs={"torch"},
        minutes=10,
        is_exclusive=True,
    ),
    _row(
        "slow-ranks",
        "a rank that is slower by 30 %: from its onset to the alert",
        "slow_row:figures",
        "calm jobs, of which nobody may be told",
        Goal("told after", 20.0),
        Goal("right", 1.0, at_least=True),
        needs={"torch"},
        minutes=8,
        is_exclusive=True,
    ),
    _row(
        "analysis",
        "`analyze` of 512 ranks × 2,000 entries: one group, and a tp × dp mesh",
        "bench_reader:figures",
        "torchfrtrace",
        Goal("one group: faster than torchfrtrace", 15, at_least=True),
        Goal("mesh: faster than torchfrtrace", 15, at_least=True),
        Goal("one group: largest process", 200),
        Goal("mesh: largest process", 200),
        Goal("mesh: growth from a quarter of the ranks", 4.4),
        needs={"torch"},
        minutes=6,
    ),
    _row(
        "log",
        "`analyze` of a training log of 1 GB",
        "bench_text:figures",
        "`grep -c` on the same file",
        Goal("against grep -c", 20),
        Goal("largest process", 100),
        minutes=2,
    ),
    _row(
        "summaries",
        "a verdict over 16,384 ranks from the summaries of 2,048 nodes",
        "bench_node_summaries:figures",
        "a fixed piece of Python",
        Goal("decode and judge", 1.0),
        minutes=1,
    ),
    _row(
        "stack-tree",
        "the merged tree of 16,384 stacks of 40 frames, all different",
        "bench_stacktree:figures",
        "a fixed piece of Python",
        Goal("merged, all different", 0.5),
        minutes=0.5,
    ),
    _row(
        "scrape",
        "how long Prometheus waits for /metrics",
        "bench_scrape:figures",
        "a fixed piece of Python",
        Goal("8 ranks: p99", 10),
        Goal("1024 ranks: p99", 250),
        minutes=1.5,
    ),
    _row(
        "demo",
        "`bash deploy/demo.sh` in a fresh clone: installed, and a hang found",
        "bench_demo:figures",
        "pip alone, of the same packages",
        Goal("installed and told", 45),
        needs={"registry"},
        minutes=3,
        is_exclusive=True,
    ),
)


def row(name: str) -> Row:
    """Return the row of this name. Raise KeyError."""
    return next((one for one in ROWS if one.name == name), None) or _unknown(name)


def _unknown(name: str) -> Row:
    raise KeyError(f"no row {name}; there are {', '.join(one.name for one in ROWS)}")


def here() -> frozenset[Need]:
    """Return what this machine has."""
    packages: Mapping[Need, str] = {
        "torch": "torch", "nvitop-exporter": "nvitop_exporter", "NVRx": "nvidia_resiliency_ext",
    }  # fmt: skip
    found: set[Need] = {need for need, package in packages.items() if find_spec(package)}
    if results.gpus():
        found.add("GPU")
    else:
        found.discard("nvitop-exporter")  # it ends without NVML
    if not os.environ.get("PIP_NO_INDEX"):
        found.add("registry")
    return frozenset(found)


def more_is_better() -> dict[tuple[str, str], bool]:
    """Return (row, figure) -> whether its goal is to have more; of figures with a goal."""
    return {(one.name, goal.figure): goal.at_least for one in ROWS for goal in one.goals}
