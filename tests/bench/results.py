"""Results of benches as a file, and two of them side by side."""

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import msgspec

from tests.bench.figures import Figure, number

FOLDER = Path(__file__).with_name("results")
# Of figures without an interval: what two runs of one revision differ by on a quiet machine.
NOISE = 0.10
_PACKAGES = (
    "torch",
    "py-spy",
    "prometheus-client",
    "psutil",
    "msgspec",
    "uvicorn",
    "nvitop-exporter",
    "nvidia-resiliency-ext",
)


class Measured(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one row came to."""

    figures: list[Figure] = []
    skipped: str = ""  # why it was not run
    failed: str = ""
    seconds: float = 0.0
    load: tuple[float, float] = (0.0, 0.0)  # the machine's, before and after
    at: str = ""
    revision: str = ""
    quick: bool = False


class Results(msgspec.Struct, frozen=True):
    """The rows measured on one machine."""

    machine: str
    versions: dict[str, str]
    rows: dict[str, Measured]


class Change(msgspec.Struct, frozen=True):
    """A figure that is elsewhere than it was, by more than both its intervals, or NOISE, allow."""

    row: str
    before: Figure
    after: Figure
    is_worse: bool

    def __str__(self) -> str:
        by = self.after.value / self.before.value - 1 if self.before.value else float("inf")
        verb = "worse" if self.is_worse else "better"
        return (
            f"{verb}: {self.row}, {self.after.name}: {number(self.before.value)} -> {number(self.after.value)} "
            f"{self.after.unit} ({by:+.0%})"
        )


def changes(before: Results, after: Results, more_is_better: Mapping[tuple[str, str], bool]) -> Iterator[Change]:
    """Yield what changed between two results. Plain seconds are compared on one and the same machine only; a quick
    run, which takes smaller inputs, with a quick one only."""
    for row, now in after.rows.items():
        then = before.rows.get(row)
        if then is None or then.quick != now.quick:
            continue
        known = {figure.name: figure for figure in then.figures}
        for figure in now.figures:
            old = known.get(figure.name)
            if old is None or old.unit != figure.unit:
                continue
            if figure.belongs_to_the_machine and before.machine != after.machine:
                continue
            (low, high), (old_low, old_high) = _interval(figure), _interval(old)
            if low > old_high or high < old_low:
                grew = figure.value > old.value
                yield Change(row, old, figure, grew != more_is_better.get((row, figure.name), False))


def _interval(figure: Figure) -> tuple[float, float]:
    half = abs(figure.value) * NOISE / 2
    low = figure.value - half if figure.low is None else min(figure.low, figure.value - half / 2)
    high = figure.value + half if figure.high is None else max(figure.high, figure.value + half / 2)
    return low, high


def read(path: Path) -> Results:
    """Return what a file of results holds. Raise OSError or msgspec.DecodeError."""
    return msgspec.json.decode(path.read_bytes(), type=Results)


def write(path: Path, machine: str, rows: Mapping[str, Measured]) -> None:
    """Write results; rows of an earlier run on this machine that were not run now stay, each with its revision."""
    kept = dict(read(path).rows) if path.exists() else {}
    kept.update({name: row for name, row in rows.items() if row.figures or name not in kept})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(Results(machine, versions(), kept))) + b"\n")


def machine() -> str:
    """Return the machine in words: two results with the same words may be compared by seconds."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    gibibytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return ", ".join([f"{cores} cores of {model}", f"{gibibytes:.0f} GiB", *gpus()])


def gpus() -> Sequence[str]:
    """Return the GPUs' names; nothing without a driver."""
    try:
        said = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return said.stdout.split("\n")[:-1] if said.returncode == 0 else []


def versions() -> dict[str, str]:
    """Return the versions of what is measured and of what it is measured against."""
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def revision() -> str:
    """Return the revision measured, with a + where files differ from it; "" outside a clone."""
    root = Path(__file__).parent

    def git(*words: str) -> str:
        try:
            return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return ""

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def now() -> str:
    """Return this minute, in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
