"""The row of jobs without a hook: what faults.py says of its runs, as figures."""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.figures import Figure, percentile
from tests.bench.lanes import read_lines

# A lock, a call that sleeps, a loader, a collective left out, ranks that meet in another order.
FAULTS = ("lock", "sleep", "dataloader", "skip", "group_order")


def figures(quick: bool) -> list[Figure]:
    """From fault to verdict where no rank attaches, under gloo."""
    return _figures(FAULTS[:1] if quick else FAULTS)


def _figures(faults: tuple[str, ...]) -> list[Figure]:
    asked = [word for fault in faults for word in ("--fault", fault)]
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "lines.jsonl"
        how = ["--no-hook", "--backend", "gloo", "--runs", "1", "--lines", str(lines)]
        command = [sys.executable, "-m", "tests.bench.faults", *how, *asked]
        subprocess.run(command, check=False)  # its exit code says whether all were right, as its lines do
        _, runs = read_lines([lines])
    took = [run.seconds_to_verdict for run in runs if run.seconds_to_verdict is not None]
    wrong = "; ".join(run.said for run in runs if not run.right)
    found = [Figure("right", sum(run.right for run in runs) / len(faults), "share", detail=wrong)]
    if took:
        detail = f"gloo; p50 {statistics.median(took):.1f}, worst {max(took):.1f} s of {len(runs)}"
        found.insert(0, Figure("verdict: p95", percentile(took, 0.95), "s", detail=detail))
    return found
