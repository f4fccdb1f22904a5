"""The numbers, side by side: each row measures ours and its peer in one run, and says whether the goal is met.

    python -m tests.bench --list                      what there is, and what of it can run here
    python -m tests.bench [--row NAME …] [--quick]    run all that can, or these
    python -m tests.bench --compare FILE              … and say which ratio got worse than there, by more than its noise
    python -m tests.bench --compare FILE --with FILE  two files, nothing is run
    python -m tests.bench --page                      the kept results into tests/bench/README.md

Results are kept in tests/bench/results/MACHINE.json, or in --out. Nothing is asserted: exit code 0 when every row that
was run gave figures, and with --compare none is worse; 1 otherwise. What the figures mean: tests/bench/README.md.
"""

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.bench import page, results
from tests.bench.figures import Figure
from tests.bench.lanes import own_processes
from tests.bench.results import Measured
from tests.bench.rows import ROWS, Row, here, more_is_better, row

ROOT = Path(__file__).parents[2]
TIMES_LONGER = 20.0  # than it says, on a machine that has much else to do: it hangs


def main() -> int:
    options = _options()
    chosen = [row(name) for name in options.row] or list(ROWS)
    if options.here:
        return _measure_here(chosen[0], options.quick, options.here)
    if options.page:
        page.write()
        return 0
    if options.list:
        _list(chosen)
        return 0
    if options.with_results:
        return _compare(options.compare, results.read(options.with_results))
    machine = results.machine()
    out = options.out or results.FOLDER / f"{_file_name(machine)}.json"
    measured: dict[str, Measured] = {}
    has, revision = here(), results.revision()
    print(f"{machine}; revision {revision}; {', '.join(f'{k} {v}' for k, v in results.versions().items())}", flush=True)
    for one in chosen:
        missing = ", ".join(sorted(one.needs - has))
        measured[one.name] = Measured(skipped=f"needs {missing}") if missing else _run(one, options.quick, revision)
        _show(one, measured[one.name], one.peers - has)
        results.write(out, machine, measured)
    print(f"kept in {os.path.relpath(out)}")
    failed = any(one.failed for one in measured.values())
    worse = _compare(options.compare, results.Results(machine, results.versions(), measured)) if options.compare else 0
    return 1 if failed else worse


def _run(one: Row, quick: bool, revision: str) -> Measured:
    """Run a row in a process of its own, so that none measures what another left behind."""
    load, began, at = os.getloadavg()[0], time.monotonic(), results.now()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        said = Path(folder) / "figures.json"
        alone = own_processes() if one.is_exclusive else ()
        command = [*alone, sys.executable, "-m", "tests.bench", "--row", one.name, "--here", str(said)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "monitor"), *sys.path[1:]])}
        # Some images set it: each child would compile all that it imports, which an installed daemon's never do.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        try:
            subprocess.run(
                [*command, *(["--quick"] if quick else [])],
                cwd=ROOT,
                env=environment,
                timeout=one.minutes * 60 * TIMES_LONGER,
                check=True,
            )
            found, failed = msgspec.json.decode(said.read_bytes(), type=list[Figure]), ""
        except (subprocess.SubprocessError, OSError, msgspec.MsgspecError) as error:
            found, failed = [], str(error)
    return Measured(
        figures=found,
        failed=failed,
        seconds=round(time.monotonic() - began, 1),
        load=(round(load, 1), round(os.getloadavg()[0], 1)),
        at=at,
        revision=revision,
        quick=quick,
    )


def _measure_here(one: Row, quick: bool, said: Path) -> int:
    module, _, function = one.figures.partition(":")
    try:
        found: list[Figure] = getattr(importlib.import_module(module), function)(quick)
    except Exception:
        traceback.print_exc()
        return 1
    said.write_bytes(msgspec.json.encode(found))
    return 0


def _show(one: Row, measured: Measured, without: frozenset[str]) -> None:
    busy = measured.load[0] > len(os.sched_getaffinity(0)) / 2
    print(f"\n{one.name}: {one.what}; against {one.against}")
    if measured.skipped or measured.failed:
        print(f"  {'not run: ' + measured.skipped if measured.skipped else 'FAILED: ' + measured.failed}", flush=True)
        return
    goals = {goal.figure: goal for goal in one.goals}
    for figure in measured.figures:
        goal = goals.pop(figure.name, None)
        kept = "" if goal is None else f"; goal {goal}: {'met' if goal.is_met(figure) else 'MISSED'}"
        print(f"  {figure}{kept}")
    for goal in goals.values():
        print(f"  {goal.figure}: not measured; goal {goal}")
    notes = [f"{measured.seconds:.0f} s", f"load {measured.load[0]} to {measured.load[1]}"]
    notes += [f"without {', '.join(sorted(without))}, which is not installed here"] if without else []
    notes += ["the machine was not quiet: the figures of this row need one"] if busy and one.is_exclusive else []
    notes += ["quick: smaller inputs, fewer rounds"] if measured.quick else []
    print(f"  ({'; '.join(notes)})", flush=True)


def _compare(before: Path, after: results.Results) -> int:
    found = list(results.changes(results.read(before), after, more_is_better()))
    print(f"\ncompared with {before}: {len(found)} figures differ by more than their noise")
    for change in sorted(found, key=lambda change: not change.is_worse):
        print(f"  {change}")
    return 1 if any(change.is_worse for change in found) else 0


def _list(chosen: Sequence[Row]) -> None:
    has = here()
    for one in chosen:
        missing, without = sorted(one.needs - has), sorted(one.peers - has)
        can = f"needs {', '.join(missing)}" if missing else "runs here"
        can += f", without {', '.join(without)}" if without and not missing else ""
        can += "; wants a quiet machine" if one.is_exclusive else ""
        print(f"{one.name:12} {one.what}\n{'':12} against {one.against}; some {one.minutes:g} min; {can}")
        print("".join(f"{'':12} goal: {goal.figure} {goal}\n" for goal in one.goals), end="")


def _file_name(machine: str) -> str:
    return "-".join("".join(letter if letter.isalnum() else " " for letter in machine.lower()).split())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--row", action="append", default=[], help="may be given several times; default: all")
    parser.add_argument("--quick", action="store_true", help="smaller inputs and fewer rounds: does it run at all?")
    parser.add_argument("--compare", type=Path, help="results to compare with")
    parser.add_argument("--with", dest="with_results", type=Path, help="compare these with them, and run nothing")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--out", type=Path, help="where to keep results")
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
