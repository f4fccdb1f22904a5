"""Changes one thing at a time in modules of ours and runs the tests that should notice.

    python -m tests.mutation --tests TESTS,TESTS [--lines N,N | --sample N] [--seed N] [--seconds S] MODULE.py […]

    python -m tests.mutation --tests tests/unit/diagnosis/waits monitor/stallwatch/diagnosis/waits/roots.py

Of TESTS each mutant is shown those that come to its lines (`tests/mutation/in_place.py`; `pip install coverage`). Where
they start processes, which would have the module as it is, `--whole` writes each mutant into a copy of the tree and
runs all of TESTS there. A mutant that no test kills is printed with its line: either a test is missing, or the change
means nothing.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.mutation import in_place, left_behind
from tests.mutation.mutants import Mutant, mutant, places

ROOT = Path(__file__).parents[2]
_TEST_SECONDS = 240.0


class Run:
    """The mutants of one command: which are chosen, until when, and what became of them."""

    def __init__(self, modules: Sequence[Path], lines: set[int], sample: int, seed: int, seconds: float) -> None:
        self._modules, self._lines, self._sample, self._seed = modules, lines, sample, seed
        self._end = time.monotonic() + seconds
        self.tried = self.survivors = 0

    def all(self, is_killed: Callable[[Path, Mutant], bool]) -> None:
        for module in self._modules:
            source = (ROOT / module).read_text(encoding="utf-8")
            tried = killed = 0
            for changed in self._chosen(source):
                if time.monotonic() > self._end:
                    print(f"{module}: the time is over after {tried}")
                    break
                tried += 1
                if is_killed(module, changed):
                    killed += 1
                else:
                    print(f"{module}:{changed.line}:{changed.column}: survives: {changed.what}", flush=True)
            print(f"{module}: {killed} of {tried} killed", flush=True)
            self.tried += tried
            self.survivors += tried - killed

    def _chosen(self, source: str) -> Iterator[Mutant]:
        found = places(ast.parse(source))
        for place in random.Random(self._seed).sample(found, min(self._sample, len(found))):
            changed = mutant(source, *place)
            if not self._lines or changed.line in self._lines:
                yield changed


def _copy_of_the_tree(copied: Path) -> None:
    for name in ("monitor", "tests", "pyproject.toml", "README.md", "deploy", "dashboards"):
        source = ROOT / name
        shutil.copytree(source, copied / name) if source.is_dir() else shutil.copy(source, copied / name)


def fails_in_a_copy(copied: Path, module: Path, source: str, tests: Sequence[str]) -> bool:
    """Run the tests on a copy of the tree with the mutant in it."""
    before = (copied / module).read_bytes()
    (copied / module).write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
    try:
        # By its name, so that processes which the tests start have the mutant too.
        found = {**os.environ, "PYTHONPATH": str(copied / "monitor")}
        ended = subprocess.run(command, cwd=copied, env=found, capture_output=True, timeout=_TEST_SECONDS, check=False)
        return ended.returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        left_behind.end_children()
        (copied / module).write_bytes(before)


def _in_place(run: Run, copied: Path, options: argparse.Namespace) -> int:
    modules, noted = options.modules, options.noted

    def tried(items: Sequence[pytest.Item]) -> None:
        loaded = {module: in_place.module_of(module) for module in modules}
        if noted and noted.exists():
            touched = msgspec.json.decode(noted.read_bytes(), type=in_place.Touched)
        else:
            touched = in_place.touched_by(items, [str(one.__file__) for one in loaded.values()])
        if noted:
            noted.write_bytes(msgspec.json.encode(touched))
        print(f"{len(items)} tests; they fail without a mutant: {touched.failed or 'none'}", flush=True)

        def is_killed(module: Path, changed: Mutant) -> bool:
            chosen = in_place.tests_for(changed, str(loaded[module].__file__), touched, items, options.each)
            killed = in_place.is_killed(loaded[module], changed, chosen, touched)
            if killed is None and chosen:
                files = list(dict.fromkeys(item.nodeid.partition("::")[0] for item in chosen))
                return fails_in_a_copy(copied, module, changed.source, files)
            return bool(killed)

        run.all(is_killed)

    command = ["-p", "no:cacheprovider", "--no-header", "-qq", *options.tests.split(",")]
    return pytest.main(command, plugins=[in_place.Session(tried)])


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--sample", type=int, default=1 << 30, help="of each module (all of them)")
    parser.add_argument("--lines", help="of the module, by commas: only what is changed there")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1800.0, help="for all")
    parser.add_argument("--tests", required=True, help="files and folders, by commas")
    parser.add_argument("--whole", action="store_true", help="each mutant in a copy of the tree, with all of the tests")
    parser.add_argument(
        "--noted", type=Path, metavar="FILE", help="which tests come to which lines: read, or made and kept"
    )
    parser.add_argument("--each", type=float, default=60.0, metavar="S", help="for the tests of one mutant")
    parser.add_argument("modules", nargs="+", metavar="MODULE.py", type=Path)
    options = parser.parse_args(argv)
    lines = {int(line) for line in options.lines.split(",")} if options.lines else set()
    run = Run(options.modules, lines, options.sample, options.seed, options.seconds)
    tests = options.tests.split(",")
    with tempfile.TemporaryDirectory(prefix="sw-mutation-") as folder, left_behind.nothing():
        copied = Path(folder)
        _copy_of_the_tree(copied)
        if not options.whole:
            if code := _in_place(run, copied, options):
                return code
        else:
            first = options.modules[0]
            if fails_in_a_copy(copied, first, (ROOT / first).read_text(encoding="utf-8"), tests):
                print("the tests fail (or take too long) without any mutant: nothing can be said")
                return 1
            run.all(lambda module, changed: fails_in_a_copy(copied, module, changed.source, tests))
    print(f"{run.tried} tried, {run.survivors} survive")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
