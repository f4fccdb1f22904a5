"""The row of slow ranks: what bench_slow_ranks.py says of its runs, as figures."""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.figures import Figure, percentile
from tests.bench.lanes import read_lines

SECONDS = 420


def figures(quick: bool) -> list[Figure]:
    """A rank slower by 30 %, by two causes, at steps of 0.2 s, each twice; and calm jobs."""
    how = ["--step-seconds", "0.2", "--seconds", str(SECONDS), "--at-once", "1", "--runs", "1" if quick else "2"]
    found: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"lane-{number}.jsonl" for number in range(2)]
        for path, what in zip(
            paths,
            (["--by", "sleep", "cpu", "--extra", "0.3"], ["--by", "sleep", "--extra", "0"]),
            strict=True,
        ):
            command = [sys.executable, "-m", "tests.bench.bench_slow_ranks", *what, *how, "--lines", str(path)]
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
