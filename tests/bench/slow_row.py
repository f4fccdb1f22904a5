"""The row of slow ranks: what bench_slow_ranks.py says of its runs, as figures."""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.figures import Figure, percentile
from tests.bench.lanes import read_lines

SECONDS = 420


def commands(quick: bool) -> list[list[str]]:
    """What is played: a rank slower by 30 %, by two causes, at steps of 0.2 s, each twice; and calm jobs."""
    how = ["--seconds", str(SECONDS), "--at-once", "1", "--runs", "1" if quick else "2"]
    return [["--cells", *cells, *how] for cells in (["sleep,cpu/0.3/0.2"], ["sleep/0/0.2"])]


def figures(quick: bool) -> list[Figure]:
    """When slow ranks were told, and how many runs were right."""
    found: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"lane-{number}.jsonl" for number in range(2)]
        for path, what in zip(paths, commands(quick), strict=True):
            command = [sys.executable, "-m", "tests.bench.bench_slow_ranks", *what, "--lines", str(path)]
            subprocess.run(command, check=False)  # its exit code says whether all were right, as its lines do
        _, slow = read_lines(paths[:1])
        _, calm = read_lines(paths[1:])
    after = sorted(run.seconds_to_verdict for run in slow if run.right and run.seconds_to_verdict is not None)
    right = sum(run.right for run in slow)
    if after:
        middle = statistics.median(after)
        found.append(Figure("told after", percentile(after, 0.95), "s", detail=f"p95; median {middle:.1f} s"))
    wrong = len(slow) - right + sum(not run.right for run in calm)
    found.append(Figure("right", (right + sum(run.right for run in calm)) / max(1, len(slow) + len(calm)), "share",
                        detail=f"{wrong} wrong of {len(slow)} slow and {len(calm)} calm jobs"))  # fmt: skip
    return found
