"""Situations that are no hang, beside a real daemon that must tell nobody.

    python tests/controls/controls.py [--twins] [--backend nccl] [--no-hook] [--beside] [--runs 3] [--name checkpoint]
                                      [--at-once 3] [--launcher torchrun] [--clock-jumps] [--lane 0/4]
                                      [--seconds 480] [--lines FILE] [--json FILE] [--keep FOLDER] [--list]

Jobs are forked (tests/bench/jobs.py) or started by torchrun; several run at once under one daemon in its default
configuration. Exit code 0 when nobody was told, somebody could have been, and every job ended well. What was thought,
and told to nobody, is printed. A run in which nothing could have been told (its job was never seen to work) is no
evidence, and is counted apart. `--twins` runs the same situations without an end: each must be told within ten seconds
of the moment that was shown (`tell_at`). `--hangs` runs real hangs: each must be told so, and rightly. `--short`
shortens every patience to half a minute: hours are not waited for. `--clock-jumps` sets the daemon's wall clock an hour
ahead and two hours back while it watches. With `--no-hook` a default daemon looks after half a minute:
CONTROL_SECONDS=100 is long enough for it to tell. Many lanes side by side: tests/bench/lanes.py.
"""

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec

# Started as a script, perhaps where nothing is installed: neither root is on the path yet.
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "monitor"))

from stallwatch.demo.daemon_child import DaemonChild
from tests.bench import jobs, lanes
from tests.controls.catalogue import GLOO_ALONE, hangs, situations
from tests.controls.outcome import Control, line, table, total
from tests.controls.runner import Runner
from tests.controls.twins import has_twin

BUSY_GPU = Path(__file__).parents[1] / "programs/one_busy_gpu"
SHORT_PATIENCE = "30"  # seconds
_PATIENT = ("sleep", "compute", "first_use", "storage", "network", "data", "compile", "import", "tracker",
            "child", "timeout", "lock", "request", "idle", "undecided", "waiting", "start")  # fmt: skip
# The share is of torch's own time-out: half an hour with gloo.
SHORT = {f"{kind}_seconds": SHORT_PATIENCE for kind in _PATIENT} | {"waiting_share": "0.017"}
SHORT["unbegun_seconds"] = "60"  # what a start does is asked each half minute
# What the wall clock of a daemon does whose node's clock is set; monotonic clocks know nothing of it.
CLOCK_JUMPS = """
import time
_began, _time, _time_ns = time.monotonic(), time.time, time.time_ns
def _off():
    age = time.monotonic() - _began
    return (0, 3600, -3600)[int(age / 15) % 3]
time.time = lambda: _time() + _off()
time.time_ns = lambda: _time_ns() + _off() * 10**9
"""


def main() -> int:
    options = _options()
    on_gpus = options.backend == "nccl"
    hooked = not options.no_hook
    truths, quiet_ones = hangs(on_gpus=on_gpus, hooked=hooked), situations(on_gpus=on_gpus, hooked=hooked)
    if options.list:
        print("\n".join(f"{name:32} {what}" for name, what in quiet_ones.items()))
        print("\n".join(f"{name:32} {truth.causes[0]} {list(truth.culprits)}" for name, truth in truths.items()))
        return 0
    os.environ["CONTROL_BACKEND"] = options.backend
    if options.busy_gpu:
        os.environ["CONTROL_GPU"] = "1"
    if options.beside:
        os.environ["CONTROL_BESIDE"] = "1"
    if options.no_hook:
        os.environ["CONTROL_HOOK"] = "off"
    names = options.name or list(truths if options.hangs else quiet_ones)
    left_out = {name: f"not under NCCL: {why}" for why, some in GLOO_ALONE.items() for name in some if on_gpus}
    if options.twins:
        left_out |= {name: "no twin: nothing in it is without an end" for name in names if not has_twin(name)}
    for name in filter(left_out.get, names):
        print(f"{name:26} left out, {left_out[name]}")
    runs = [
        Control(
            name,
            run,
            f"{name}-{run}",
            hooked=hooked,
            is_twin=options.twins or name in truths,
            expected=truths.get(name),
        )
        for run in range(options.runs)
        for name in names
        if name not in left_out
    ]
    wanted = lanes.part_of(runs, options.lane)
    lines = lanes.Lines(options.lines, [control.name for control in wanted])
    with tempfile.TemporaryDirectory(prefix="stallwatch-controls-") as folder, _server(options.launcher) as server:
        environment = _environment(Path(folder), jumps=options.clock_jumps, gpu=options.busy_gpu)
        daemon = DaemonChild(Path(folder), environment, {"tell": SHORT} if options.short else None)
        daemon.start()
        try:
            runner = Runner(daemon, server, Path(folder))
            # `timeout` ends us so: no job of ours may outlive us.
            signal.signal(signal.SIGTERM, lambda *_: runner.stop())
            if options.seconds < float("inf"):
                end = threading.Timer(options.seconds, runner.stop)
                end.daemon = True
                end.start()
            with ThreadPoolExecutor(options.at_once) as pool:
                for control in pool.map(partial(_run, runner, lines), wanted):
                    print(line(control), flush=True)
                    ended = control.exit_code is not None and control.told_at is None
                    if ended if control.is_twin else not control.ended_well:
                        print(runner.log(control), flush=True)
        finally:
            daemon.stop()
            if options.keep:
                shutil.copytree(Path(folder) / "state/incidents", options.keep, dirs_exist_ok=True)
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(wanted)))
    print(table(wanted))
    text = f"; {len(set(names) & set(left_out))} left out" if left_out else ""
    print(f"{total(wanted)}{text}; load {os.getloadavg()[0]:.1f}")
    return 0 if all(control.right for control in wanted) else 1


def _run(runner: Runner, lines: lanes.Lines, control: Control) -> Control:
    runner.run(control)
    if not control.was_cut:
        lines.add(
            control.name,
            right=control.right,
            proves_nothing=control.proves_nothing,
            said=line(control),
            seconds_to_verdict=control.seconds_to_verdict,
            detail=control,
        )
    return control


@contextlib.contextmanager
def _server(launcher: str) -> Iterator[jobs.Server | None]:
    if launcher == "torchrun":
        yield None
        return
    with jobs.server() as server:
        yield server


def _environment(folder: Path, *, jumps: bool, gpu: bool) -> dict[str, str]:
    """The daemon's."""
    first = [str(BUSY_GPU)] if gpu else []
    if jumps:
        clock = folder / "clock"
        clock.mkdir()
        (clock / "sitecustomize.py").write_text(CLOCK_JUMPS)
        first.append(str(clock))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (*first, os.environ.get("PYTHONPATH"))))}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--name", action="append", default=[], help="may be given several times; default: all")
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--launcher", choices=("forkserver", "torchrun"), default="forkserver")
    lanes.add_options(parser)
    parser.add_argument("--twins", action="store_true", help="the same without an end: each must be told")
    parser.add_argument("--hangs", action="store_true", help="real hangs: each must be told, and rightly")
    parser.add_argument("--short", action="store_true", help="every patience is shortened, for twins of hours")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--no-hook", action="store_true", help="ranks do not attach")
    parser.add_argument("--beside", action="store_true", help="a second thread keeps a group of its own busy")
    parser.add_argument("--clock-jumps", action="store_true")
    parser.add_argument("--busy-gpu", action="store_true", help="NVML says that ranks share a GPU at 100 %%")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for the bundles of what was looked at")
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
