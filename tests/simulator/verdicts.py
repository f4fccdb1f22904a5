"""`python -m tests.simulator.verdicts OUT --cases 1000 --bundles FOLDER`: every verdict, one a line, in one file.

Two revisions judge alike if their files are equal byte by byte; `diff` shows where they do not. A line is the name of
the case, how the oracle scores it (simulated cases), and the verdicts as `analyze --json` writes them.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stallwatch.bundle.reader import load
from stallwatch.bundle.report import make_report
from stallwatch.errors import StallwatchError
from tests.simulator.run import Outcome, play


def simulated(cases: int, seed: int, largest: int) -> Iterator[str]:
    """One line for each of the first `cases` seeds that make a case."""
    found = 0
    while found < cases:
        outcome = play(seed, largest)
        seed += 1
        if outcome is not None:
            found += 1
            yield f"seed {outcome.seed}\t{_score(outcome)}\t{_json(outcome.verdict)}"


def captured(folder: Path) -> Iterator[str]:
    """One line for each bundle in the folder, judged as a copy without its truth, whose name says nothing."""
    for bundle in sorted(path for path in folder.iterdir() if path.is_dir()):
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / "incident"
            shutil.copytree(bundle, copy, ignore=shutil.ignore_patterns("truth.json"))
            try:
                said = _json(make_report(load([copy])).verdicts)
            except StallwatchError as error:
                said = f"refused: {error}".replace(scratch, "").replace("\n", " ")
        yield f"{folder.name}/{bundle.name}\t{said}"


def _score(outcome: Outcome) -> str:
    if outcome.accuses_innocent:
        return "innocent"
    return ("right" if outcome.right else "wrong") if outcome.decidable else "undecidable"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--largest", type=int, default=64)
    parser.add_argument("--bundles", type=Path, action="append", default=[], help="a folder of bundles; may repeat")
    options = parser.parse_args()
    with options.out.open("w") as out:
        for line in simulated(options.cases, options.seed, options.largest):
            out.write(line + "\n")
        for folder in options.bundles:
            for line in captured(folder):
                out.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
