"""What bench_slow_ranks.py plays and what came of it: cells, runs, results, and their table."""

import itertools
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tests.bench import lanes
from tests.programs.slow_ways import BY_DESIGN

PROGRAM = Path(__file__).parents[1] / "programs" / "slow_rank.py"
_LIKE = {"creep": "sleep", "wander": "sleep"}
_SHARED_CODE = {"cpu": "compute", "beside": "consume"}  # the function in which all ranks or one spend the time
_START_SECONDS = 8.0
# How many steps, and seconds at least, until it is told, and how long it goes on being slow then; until it is over.
_TOLD_STEPS, _TOLD_SECONDS = 20, 25.0
_STAYS_SECONDS, _STAYS_STEPS = 30.0, 5
_MISSED_STEPS, _MISSED_SECONDS = 40, 100.0  # longer is waited for nothing
_HEALTHY_STEPS, _HEALTHY_SECONDS = 11, 40.0  # several times what the largest takes: a job that was even before
_RIGHT = 0.15  # of the truth: a figure is right
AFTER_CALM_SECONDS = 10.0  # of a job of which nobody is told


class Cell(msgspec.Struct, frozen=True, order=True):
    """One way of being slow: `by/extra/step seconds/ranks/back end`."""

    by: str
    extra: float
    step_seconds: float
    ranks: int = 4
    backend: str = "gloo"

    def __str__(self) -> str:
        return f"{self.backend} {self.by} +{self.extra:.0%} of {self.step_seconds:g} s, {self.ranks} ranks"

    @property
    def calm(self) -> bool:
        """Whether nobody is to be told of it."""
        return not self.extra or self.by in BY_DESIGN

    @property
    def slow_step_seconds(self) -> float:
        return self.step_seconds * (1 + self.extra)

    @property
    def healthy_seconds(self) -> float:
        """How long it is first as fast as the others."""
        return max(_HEALTHY_SECONDS, _HEALTHY_STEPS * self.step_seconds)

    @property
    def most_seconds(self) -> float:
        """How long a rank is slow where nobody is told of it."""
        return max(_MISSED_SECONDS, _MISSED_STEPS * self.slow_step_seconds)

    def stays_seconds(self, told_after: float) -> float:
        """How long it is slow after it was told: is it taken back?"""
        return max(_STAYS_SECONDS, _STAYS_STEPS * self.slow_step_seconds, 0.5 * told_after)

    def after_seconds(self, told_after: float) -> float:
        """How long is waited until it is over."""
        return max(45.0, 2.0 * told_after + _STAYS_STEPS * self.step_seconds)

    def usual_seconds(self, slow_seconds: float | None = None) -> float:
        """What a run takes for the most part; `slow_seconds`: what is chosen of one in which nobody is told."""
        told = max(_TOLD_SECONDS, _TOLD_STEPS * self.slow_step_seconds)
        slow = (slow_seconds or self.most_seconds) if self.calm else told + self.stays_seconds(told)
        return _START_SECONDS + self.healthy_seconds + slow + (AFTER_CALM_SECONDS if self.calm else told)


def cells_of(patterns: Sequence[str]) -> list[Cell]:
    """Given `sleep,cpu/0.3,1/0.05,0.2/4,8/gloo` (what stands after the steps may be left out), return every cell."""
    found: list[Cell] = []
    for pattern in patterns:
        fields = [field.split(",") for field in pattern.split("/")]
        by, extras, steps, ranks, backends = fields + [["4"], ["gloo"]][len(fields) - 3 :]
        found += [
            Cell(one, float(extra), float(step), int(many), backend)
            for backend, many, one, extra, step in itertools.product(backends, ranks, by, extras, steps)
        ]
    return list(dict.fromkeys(found))


class Run(msgspec.Struct):
    """One of a cell, as it was seen from outside."""

    cell: Cell
    number: int
    slow_ranks: list[int]
    told: list[tuple[float, list[int], str]] = msgspec.field(default_factory=list)  # (after, whom, sentence)
    suspected_after: float | None = None
    untold: list[tuple[float, str]] = msgspec.field(default_factory=list)  # (after, why nobody is told yet)
    resolved: list[float] = msgspec.field(default_factory=list)  # after the onset
    slow_seconds: float | None = None  # how long it was slow
    over_after: float | None = None  # after the last slow step; negative: while it lasted
    cost_told: float | None = None  # as it was told last while it lasted, and the step
    step_told: float | None = None
    cost_true: float | None = None  # by the steps of the job itself
    step_true: float | None = None
    lines: list[tuple[float, str]] = msgspec.field(default_factory=list)  # (after, the place that is named)
    places: list[str] = msgspec.field(default_factory=list)  # where the time goes, in the program as it was
    where: str = ""
    sentence: str = ""
    because: list[str] = msgspec.field(default_factory=list)
    steps: list[str] = msgspec.field(default_factory=list)
    exit_code: int | None = None
    ran_seconds: float = 0.0
    load: float = 0.0  # when it ended

    @property
    def name(self) -> str:
        return f"{self.cell}, run {self.number + 1}"

    @property
    def told_after(self) -> float | None:
        return self.told[0][0] if self.told else None

    @property
    def rank_right(self) -> bool:
        return bool(self.told) and all(whom == self.slow_ranks for _, whom, _ in self.told)

    @property
    def taken_back(self) -> bool:
        return any(self.slow_seconds is None or after < self.slow_seconds for after in self.resolved)

    @property
    def is_over(self) -> bool:
        return self.over_after is not None and self.over_after > 0

    @property
    def figures_right(self) -> bool | None:
        """None: nothing to compare."""
        if self.cell.by == "creep":
            return None  # what it was at the end is not known
        pairs = [(self.cost_told, self.cost_true), (self.step_told, self.step_true)]
        known = [abs(told / true - 1) <= _RIGHT for told, true in pairs if told is not None and true]
        return all(known) if known else None

    @property
    def why_right(self) -> bool | None:
        """Whether what is said of the reason is what the program does; None: nobody was told."""
        if not self.told:
            return None
        if self.cell.by == "loader":
            return self.where == "dataloader"
        if self.cell.by == "beside":
            return "no CPU to run on" in self.sentence and "on which also run" in self.sentence
        if self.cell.by == "stops":
            return "held by a stop signal" in self.sentence
        return bool(self.lines) and self.lines[-1][1] in self.places

    @property
    def true_share(self) -> float | None:
        """By how much each step was longer, whatever was meant: a loaded machine makes little of some."""
        rest = (self.step_true or 0.0) - (self.cost_true or 0.0)
        return self.cost_true / rest if self.cost_true is not None and rest > 0 else None

    @property
    def is_right(self) -> bool:
        if self.cell.calm:
            return not self.told
        return len(self.told) == 1 and self.rank_right and not self.taken_back and self.is_over


def places(by: str) -> set[str]:
    """Where the program spends the time that the other ranks do not, as an incident words it."""
    lines, by = PROGRAM.read_text().splitlines(), _LIKE.get(by, by)
    found = [number for number, line in enumerate(lines, 1) if line.rstrip().endswith(f"# slow: {by}")]
    inside = _SHARED_CODE.get(by)
    named = {f"{PROGRAM.name}:{number} main" for number in found}
    if inside is not None:
        begins = lines.index(next(line for line in lines if line.startswith(f"def {inside}(")))
        named |= {f"{PROGRAM.name}:{begins + more} {inside}" for more in range(2, 6)}
    return named


def played(folders: Sequence[Path]) -> list[Run]:
    """Every run that stands in the files of lanes beneath these folders, or in these files."""
    paths = [path for folder in folders for path in (sorted(folder.rglob("*.jsonl")) if folder.is_dir() else [folder])]
    _, found = lanes.read_lines([path for path in paths if path.exists() and path.stat().st_size])
    return [msgspec.json.decode(line.detail, type=Run) for line in found]


def line_of(run: Run) -> str:
    """What a person reads of a run."""
    taken = ", TAKEN BACK" if run.taken_back else ""
    told = [(after, whom) for after, whom, _ in run.told] or f"nobody {run.untold}"
    return (
        f"{run.name}: suspected {run.suspected_after}, told {told}{taken}, why {run.why_right}"
        f", over after {run.over_after}, cost {_number(run.cost_told)} (true {_number(run.cost_true)}), step "
        f"{_number(run.step_told)} (true {_number(run.step_true)}), lines {run.lines}, load {run.load:.0f}\n"
        f"  {run.sentence}"
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


_COLUMNS = (
    "back end", "ranks", "by", "slower", "step", "n", "truly, median", "right", "rank right", "once", "taken back",
    "told: median s", "worst", "over after: median s", "worst", "figures within 15 %", "why right",
)  # fmt: skip


def table(runs: Sequence[Run]) -> str:
    """A line of Markdown for each cell, and one for all."""
    rows = ["| " + " | ".join(_COLUMNS) + " |", "|" + " --- |" * len(_COLUMNS)]
    order = sorted(
        dict.fromkeys(run.cell for run in runs), key=lambda c: (c.backend, c.ranks, c.by, c.extra, c.step_seconds)
    )
    for cell in order:
        names = (cell.backend, str(cell.ranks), cell.by, f"+{cell.extra:.0%}", f"{cell.step_seconds:g} s")
        rows.append("| " + " | ".join((*names, *_counted([run for run in runs if run.cell == cell]))) + " |")
    slow = [run for run in runs if not run.cell.calm]
    if len(order) > 1 and slow:
        rows.append("| " + " | ".join(("all slow", "", "", "", "", *_counted(slow))) + " |")
    if calm := [run for run in runs if run.cell.calm]:
        told, suspected = sum(bool(run.told) for run in calm), sum(run.suspected_after is not None for run in calm)
        hours = sum(run.ran_seconds for run in calm) / 3600
        rows.append(f"\n{hours:.1f} job-hours of {len(calm)} calm jobs: {told} told, {suspected} suspected")
    return "\n".join(rows)


_EACH = (
    "by", "slower", "step", "ranks", "found", "rank right", "told: s", "times told", "taken back", "over after: s",
    "cost said / true: s", "step said / true: s", "truly", "why right", "where", "load",
)  # fmt: skip


def each(runs: Sequence[Run]) -> str:
    """A line of Markdown for each run."""
    rows = ["| " + " | ".join(_EACH) + " |", "|" + " --- |" * len(_EACH)]
    for run in sorted(runs, key=lambda r: (r.cell.calm, r.cell.by, r.cell.extra, r.cell.step_seconds, r.number)):
        cell = run.cell
        found = ("**called slow**" if run.told else "no, calm") if cell.calm else "yes" if run.told else "**missed**"
        truly = "–" if run.true_share is None or cell.calm else f"{run.true_share:+.0%}"
        rows.append("| " + " | ".join((
            cell.by, f"{cell.extra:+.0%}", f"{cell.step_seconds:g} s", str(cell.ranks), found,
            _yes(run.rank_right if run.told and not cell.calm else None), _number(run.told_after), str(len(run.told)),
            "**yes**" if run.taken_back else "no", _number(run.over_after),
            f"{_number(run.cost_told)} / {_number(run.cost_true)}",
            f"{_number(run.step_told)} / {_number(run.step_true)}", truly, _yes(run.why_right), run.where,
            f"{run.load:.0f}",
        )) + " |")  # fmt: skip
    return "\n".join(rows)


def _yes(value: bool | None) -> str:
    return "–" if value is None else "yes" if value else "**no**"


def _counted(runs: Sequence[Run]) -> Iterator[str]:
    yield str(len(runs))
    shares = [run.true_share for run in runs if run.true_share is not None]
    yield f"{100 * statistics.median(shares):+.0f}%" if shares else "–"
    yield str(sum(run.is_right for run in runs))
    yield str(sum(run.rank_right for run in runs))
    yield str(sum(len(run.told) == 1 for run in runs))
    yield str(sum(run.taken_back for run in runs))
    yield from _middle_and_worst([run.told_after for run in runs if run.told_after is not None])
    yield from _middle_and_worst([run.over_after for run in runs if run.over_after is not None and run.is_over])
    for values in ([run.figures_right for run in runs], [run.why_right for run in runs]):
        yield f"{sum(value is True for value in values)}/{sum(value is not None for value in values)}"


def _middle_and_worst(seconds: Sequence[float]) -> tuple[str, str]:
    return (f"{statistics.median(seconds):.1f}", f"{max(seconds):.1f}") if seconds else ("–", "–")
