"""Changes one thing at a time in a module of ours and runs the tests that should notice.

    python -m tests.mutation --sample 30 [--seed N] [--seconds S] MODULE.py=TESTS [MODULE.py=TESTS …]

    python -m tests.mutation --sample 40 monitor/stallwatch/diagnosis/waits/roots.py=tests/unit/diagnosis/waits

What survives MODULE's own TESTS is shown to those of --wider as well, which take longer. A mutant that no test kills
is printed with its line: either a test is missing, or the change means nothing.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_TEST_SECONDS = 240.0
_OTHER: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


class Mutant(NamedTuple):
    line: int
    what: str
    source: str


_KINDS = (ast.If, ast.IfExp, ast.While, ast.Compare, ast.BoolOp, ast.BinOp, ast.Constant, ast.Return)


def places(tree: ast.Module) -> list[tuple[int, int]]:
    """Where one thing may be changed: a comparison, and/or, a number, a condition, a sign, an answer."""
    return [
        (number, variant)
        for number, node in enumerate(ast.walk(tree))
        if isinstance(node, _KINDS)
        for variant in range(2)
        if _mutate(copy.deepcopy(node), variant)
    ]


def mutant(source: str, number: int, variant: int) -> Mutant:
    tree = ast.parse(source)
    node = next(node for at, node in enumerate(ast.walk(tree)) if at == number)
    what = _mutate(node, variant)
    return Mutant(getattr(node, "lineno", 0), what, ast.unparse(ast.fix_missing_locations(tree)))


def _mutate(node: ast.AST, variant: int) -> str:
    """Change a node; return what was changed, "" where there is no such variant."""
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        before = ast.unparse(node.test)
        node.test = ast.Constant(value=bool(variant)) if not isinstance(node, ast.While) or not variant else node.test
        return "" if ast.unparse(node.test) == before else f"condition {before} is {bool(variant)}"
    if variant:
        return ""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OTHER:
        before = ast.unparse(node)
        node.ops[0] = _OTHER[type(node.ops[0])]()
        return f"{before} → {ast.unparse(node)}"
    if isinstance(node, ast.BoolOp):
        before = ast.unparse(node)
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return f"{before} → {ast.unparse(node)}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        before = ast.unparse(node)
        node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        return f"{before} → {ast.unparse(node)}"
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        node.value += 1  # type: ignore[operator]
        return f"{node.value - 1} → {node.value}"
    if isinstance(node, ast.Return) and isinstance(node.value, (ast.Compare, ast.Call, ast.Name)):
        before = ast.unparse(node)
        node.value = ast.UnaryOp(op=ast.Not(), operand=node.value)
        return f"{before} → {ast.unparse(node)}"
    return ""


def is_killed(copied: Path, module: Path, changed: Mutant, tests: Sequence[str]) -> bool:
    """Run the tests on a copy of the tree with the mutant in it."""
    before = (copied / module).read_bytes()
    (copied / module).write_text(changed.source, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
    try:
        # By its name, so that processes which the tests start have the mutant too.
        found = {**os.environ, "PYTHONPATH": str(copied / "monitor")}
        ended = subprocess.run(command, cwd=copied, env=found, capture_output=True, timeout=_TEST_SECONDS, check=False)
        return ended.returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        (copied / module).write_bytes(before)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--sample", type=int, default=30, help="of each module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1800.0, help="for all")
    parser.add_argument("--wider", default="", metavar="TESTS", help="for what survives a module's own")
    parser.add_argument("pairs", nargs="+", metavar="MODULE=TESTS")
    options = parser.parse_args(argv)
    end = time.monotonic() + options.seconds
    survivors = tried = 0
    with tempfile.TemporaryDirectory(prefix="sw-mutation-") as folder:
        copied = Path(folder)
        for name in ("monitor", "tests", "pyproject.toml", "README.md", "deploy", "dashboards"):
            source = ROOT / name
            shutil.copytree(source, copied / name) if source.is_dir() else shutil.copy(source, copied / name)
        for pair in options.pairs:
            name, _, tests = pair.partition("=")
            module = Path(name)
            source_text = (ROOT / module).read_text(encoding="utf-8")
            found = places(ast.parse(source_text))
            chosen = random.Random(options.seed).sample(found, min(options.sample, len(found)))
            killed = 0
            untouched = Mutant(0, "", source_text)
            if is_killed(copied, module, untouched, tests.split(",")):
                print(f"{module}: its tests fail (or take too long) without any mutant: nothing can be said")
                continue
            for number, place in enumerate(chosen):
                if time.monotonic() > end:
                    print(f"{module}: the time is over after {number} of {len(chosen)}")
                    break
                tried += 1
                changed = mutant(source_text, *place)
                suites = [one.split(",") for one in (tests, options.wider) if one]
                if any(is_killed(copied, module, changed, suite) for suite in suites):
                    killed += 1
                else:
                    survivors += 1
                    print(f"{module}:{changed.line}: survives: {changed.what}", flush=True)
            print(f"{module}: {len(found)} mutants, {killed} of a sample killed", flush=True)
    print(f"{tried} tried, {survivors} survive")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
