"""Every fault of the demo, several runs each, with a daemon in its default configuration: a table, and JSON.

    python tests/bench/faults.py --runs 3 [--fault lock] [--backend nccl] [--launcher torchrun] [--ranks 4]
                                 [--beside] [--no-hook] [--json faults.json] [--keep DIRECTORY]
                                 [--lane 0/4] [--seconds 480] [--lines FILE]

Needs no test framework and no installation, only stallwatch's dependencies on PYTHONPATH and py-spy on PATH: it runs as
it is on a machine with GPUs. Exit code 0 when every verdict was right.
"""

import argparse
import contextlib
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

# Started as a script, perhaps where nothing is installed: neither root is on the path yet.
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "monitor"))

from stallwatch.demo.catalogue import FAULTS, Fault, culprits, find
from stallwatch.demo.job import Job, Launch, TorchrunJob
from stallwatch.demo.outcome import DemoOutcome
from stallwatch.demo.play import play
from stallwatch.errors import StallwatchError
from tests.bench import jobs, lanes

WRAPPERS = {"no_hook": Path(__file__).with_name("unhooked.py"), "beside": Path(__file__).with_name("beside.py")}
LONG_ENOUGH_SECONDS = 90.0  # less is left: no further run is begun
COLUMNS = ("fault", "runs", "cause", "culprits", "where", "p50", "p95", "max", "said when wrong")


class Run(msgspec.Struct, frozen=True):
    fault: str
    run: int
    outcome: DemoOutcome | None
    error: str = ""  # daemon or job did not even start

    @property
    def right(self) -> bool:
        return self.right_culprits and self.right_where is not False

    @property
    def right_cause(self) -> bool:
        outcome = self.outcome
        if outcome is None or outcome.verdict is None:
            return outcome is not None and outcome.agrees
        return outcome.verdict.cause in outcome.expected_causes

    @property
    def right_culprits(self) -> bool:
        return self.outcome is not None and self.outcome.agrees

    @property
    def right_where(self) -> bool | None:
        """None: this fault does not ask."""
        asked = find(self.fault).where
        if not asked:
            return None
        return bool(self.outcome and self.outcome.verdict and self.outcome.verdict.where in asked)

    @property
    def said(self) -> str:
        if self.outcome is None:
            return self.error.splitlines()[0] if self.error else "?"
        verdict = self.outcome.verdict
        if verdict is None:
            return "; ".join(f"{said.cause} {list(said.culprits)}" for said in self.outcome.said) or "nothing"
        where = f", {verdict.where}" if verdict.where else ""
        return f"{verdict.cause} {list(verdict.culprits)}{where}"


def main() -> int:
    options = _options()
    faults = [find(name) for name in options.fault] or list(FAULTS)
    wanted = lanes.part_of([(fault, number) for fault in faults for number in range(options.runs)], options.lane)
    lines = lanes.Lines(options.lines, [fault.name for fault, _ in wanted])
    runs: list[Run] = []
    until = time.monotonic() + options.seconds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # no job of ours may outlive us
    if options.no_hook:
        options.launcher = "torchrun"  # a rank is found by the variables with which its process was started
    with _launcher(options.launcher) as plain:
        launch = plain
        for wrapper in (WRAPPERS[name] for name in ("no_hook", "beside") if getattr(options, name)):
            launch = partial(_wrapped, launch, wrapper)
        for fault, number in wanted:
            if time.monotonic() > until - LONG_ENOUGH_SECONDS:
                break
            run = _run(fault, number, options, launch)
            runs.append(run)
            _note(lines, run)
            _write(runs, options.json)
    print()
    print(table(runs))
    return 0 if len(runs) == len(wanted) and all(run.right for run in runs) else 1


def _run(fault: Fault, number: int, options: argparse.Namespace, launch: Launch) -> Run:
    seed = options.seed + number
    print(f"· {fault.name} run {number + 1}, rank {list(culprits(fault, seed, options.ranks))}", flush=True)
    began = time.monotonic()

    def tell(text: str) -> None:
        if options.verbose:
            print(f"    {time.monotonic() - began:6.1f}  {text}", flush=True)

    try:
        outcome = play(
            fault,
            options.ranks,
            seed,
            tell,
            launch=launch,
            backend=options.backend,
            environment=os.environ,
            keep=options.keep / f"{fault.name}-{number + 1}" if options.keep else None,
        )
    except StallwatchError as error:
        print(f"  {error}\n{error.help}", flush=True)
        return Run(fault.name, number, None, str(error))
    run = Run(fault.name, number, outcome)
    took = f"{outcome.seconds_to_verdict:.1f} s" if outcome.seconds_to_verdict is not None else "no verdict"
    print(f"  {'right' if outcome.agrees else 'WRONG'}: {run.said}, {took}", flush=True)
    return run


def table(runs: list[Run]) -> str:
    """One line a fault, in Markdown: it goes into reports as it is."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    for name in dict.fromkeys(run.fault for run in runs):
        mine = [run for run in runs if run.fault == name]
        seconds = [o.seconds_to_verdict for run in mine if (o := run.outcome) and o.seconds_to_verdict is not None]
        where = [run.right_where for run in mine if run.right_where is not None]
        wrong = dict.fromkeys(run.said for run in mine if not run.right)
        cells = (
            name,
            str(len(mine)),
            f"{sum(run.right_cause for run in mine)}/{len(mine)}",
            f"{sum(run.right_culprits for run in mine)}/{len(mine)}",
            f"{sum(where)}/{len(where)}" if where else "",
            *(f"{value:.1f}" for value in _spread(seconds)),
            *([""] * (0 if seconds else 3)),
            "; ".join(wrong),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _spread(seconds: list[float]) -> tuple[float, ...]:
    """Median, 95th percentile, maximum; empty for nothing."""
    if not seconds:
        return ()
    if len(seconds) == 1:
        return (seconds[0],) * 3
    return statistics.median(seconds), statistics.quantiles(seconds, n=20, method="inclusive")[-1], max(seconds)


@contextlib.contextmanager
def _launcher(name: str) -> Iterator[Launch]:
    if name == "torchrun":
        yield TorchrunJob
        return
    with jobs.server() as server:
        yield server.launch


def _wrapped(
    launch: Launch,
    wrapper: Path,
    program: Path,
    arguments: Sequence[str],
    ranks: int,
    environment: Mapping[str, str],
    log: Path,
) -> Job:
    return launch(wrapper, [str(program), *arguments], ranks, environment, log)


def _note(lines: lanes.Lines, run: Run) -> None:
    outcome = run.outcome
    took = outcome.seconds_to_verdict if outcome else None
    said = f"{run.fault:12} run {run.run + 1}: {run.said}" + ("" if took is None else f", {took:.1f} s")
    lines.add(run.fault, right=run.right, said=said, seconds_to_verdict=took, detail=run)


def _write(runs: list[Run], path: Path | None) -> None:
    if path is not None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(runs)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--fault", action="append", default=[], help="may be given several times; default: all")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0, help="of the first run; each next run takes the next")
    parser.add_argument("--backend", choices=("gloo", "nccl"))
    parser.add_argument("--launcher", choices=("torchrun", "forkserver"), default="torchrun")
    parser.add_argument("--no-hook", action="store_true", help="ranks do not attach")
    lanes.add_options(parser)
    parser.add_argument("--beside", action="store_true", help="a second thread keeps a group of its own busy")
    parser.add_argument("--json", type=Path, help="every outcome, verdicts included")
    parser.add_argument("--keep", type=Path, help="folder for bundles and logs of every run")
    parser.add_argument("--verbose", action="store_true", help="show what the daemon says as it says it")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
