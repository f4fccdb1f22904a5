"""Lanes of one bench side by side, on a machine with many cores.

    python -m tests.bench.lanes --lanes 14 --cores 0-63 --seconds 480 --out FOLDER [--gpus 8] \\
        -- tests.controls.controls --runs 1 --at-once 2

Each lane is a process with its share of the runs, its own daemon, folders, ports and cores, and, where the kernel lets
us, its own process namespace: no daemon sees another's ranks. A lane writes a JSON line for each run; the end is one
table of all lanes, with what was not reached. A bench of lanes takes `add_options`, `part_of` and `Lines` from here.
Exit code 0 when every run was right and none was left out.
"""

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

# As process 1 of its namespace a shell reaps what is orphaned there; Python does not.
_OWN_PROCESSES = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
_SHELL = ("bash", "-c", '"$@" & wait $!', "lane")
_ROOT = Path(__file__).parents[2]
_LAST_SECONDS = 25.0  # of a lane, to end its jobs and its daemon
Run = TypeVar("Run")


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run of a lane."""

    name: str
    right: bool
    said: str  # what a person reads
    proves_nothing: str = ""  # why it is no evidence of anything; it is not right then, and not wrong
    seconds_to_verdict: float | None = None  # None: no verdict, or not known since when
    detail: msgspec.Raw = msgspec.Raw(b"null")  # the bench's own result


class Lines:
    """The file of a lane: first what it plans, then a line for each run as it ends."""

    def __init__(self, path: Path | None, planned: Sequence[str]) -> None:
        self._path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(msgspec.json.encode({"planned": planned}) + b"\n")

    def add(
        self,
        name: str,
        *,
        right: bool,
        said: str,
        seconds_to_verdict: float | None,
        detail: object,
        proves_nothing: str = "",
    ) -> None:
        if self._path is not None:
            raw = msgspec.Raw(msgspec.json.encode(detail))
            line = Line(name, right, said, proves_nothing, seconds_to_verdict, raw)
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lane", default="0/1", help="which part of the runs: I/N")
    parser.add_argument("--lines", type=Path, help="file for a JSON line of each run, as it ends")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end by then, whatever is left to run")


def part_of(runs: Sequence[Run], lane: str, seconds_of: Callable[[Run], float] = lambda _: 1.0) -> list[Run]:
    """This lane's runs, in their order: each goes to the lane that has the least to do so far."""
    number, lanes = map(int, lane.split("/"))
    busy, mine = [0.0] * lanes, []
    for run in runs:
        least = busy.index(min(busy))
        busy[least] += seconds_of(run)
        if least == number:
            mine.append(run)
    return mine


def read_lines(paths: Sequence[Path]) -> tuple[list[str], list[Line]]:
    """Return the names that were planned, and what was run. A last line that is cut off is no run."""
    planned: list[str] = []
    runs: list[Line] = []
    for path in paths:
        first, *rest = path.read_bytes().splitlines() if path.exists() else [b'{"planned": []}']
        planned += msgspec.json.decode(first)["planned"]
        for line in rest:
            with contextlib.suppress(msgspec.DecodeError):
                runs.append(msgspec.json.decode(line, type=Line))
    return planned, runs


def summary(planned: Sequence[str], runs: Sequence[Line]) -> str:
    """What was wrong, what was left out, and how long the verdicts took."""
    left = list(planned)
    for run in runs:
        left.remove(run.name)
    idle = [run for run in runs if run.proves_nothing]
    text = [f"WRONG {run.said}" for run in runs if not (run.right or run.proves_nothing)]
    text += [f"no evidence: {', '.join(f'{run.name} ({run.proves_nothing})' for run in idle)}"] if idle else []
    text += [f"not reached: {', '.join(left)}"] if left else []
    seconds = sorted(run.seconds_to_verdict for run in runs if run.right and run.seconds_to_verdict is not None)
    if len(seconds) > 1:
        p95 = statistics.quantiles(seconds, n=20, method="inclusive")[-1]
        text.append(f"seconds to verdict: p50 {statistics.median(seconds):.1f}, p95 {p95:.1f}, max {seconds[-1]:.1f}")
    text.append(f"right in {sum(run.right for run in runs)} of {len(runs)} runs, {len(planned)} planned")
    return "\n".join(text)


def main() -> int:
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + options.seconds
    begun_with = () if options.shared_processes else own_processes()
    if not begun_with:
        print("lanes share one process namespace: each daemon sees the others' ranks as ranks without a hook")
    paths = [options.out / f"lane-{number}.jsonl" for number in range(options.lanes)]
    with contextlib.ExitStack() as stack:
        lanes = [stack.enter_context(_lane(options, number, path, begun_with)) for number, path in enumerate(paths)]
        for lane in lanes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                lane.wait(max(0.0, until - time.monotonic()))
    planned, runs = read_lines(paths)
    for run in runs:
        print(run.said)
    text = summary(planned, runs)
    print(text, f"load {os.getloadavg()[0]:.1f}", sep="; ", flush=True)
    return 0 if len(runs) == len(planned) and all(run.right for run in runs) else 1


@contextlib.contextmanager
def _lane(
    options: argparse.Namespace, number: int, lines: Path, begun_with: Sequence[str]
) -> "Iterator[subprocess.Popen[bytes]]":
    module, *arguments = options.bench
    cores = cores_of(options.cores)
    share = set(cores[number :: options.lanes]) or set(cores)
    command = [
        *begun_with, sys.executable, "-m", module, *arguments, f"--lane={number}/{options.lanes}",
        f"--lines={lines.resolve()}", f"--seconds={max(1.0, options.seconds - _LAST_SECONDS)}",
    ]  # fmt: skip
    scratch = tempfile.mkdtemp(prefix="lane-")  # short: a unix socket's path may have 107 bytes
    with lines.with_suffix(".log").open("wb") as log:
        lane = subprocess.Popen(
            command,
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": scratch, **_gpu_of(number, options.gpus)},
            preexec_fn=lambda: os.sched_setaffinity(0, share),
        )
    try:
        yield lane
    finally:
        if lane.poll() is None:
            # With a namespace of its own all that the lane started ends with it.
            lane.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                lane.wait(_LAST_SECONDS)
            lane.kill()
            lane.wait()
        shutil.rmtree(scratch, ignore_errors=True)


def _gpu_of(lane: int, gpus: int) -> Mapping[str, str]:
    return {"CUDA_VISIBLE_DEVICES": str(lane % gpus)} if gpus else {}


def own_processes() -> Sequence[str]:
    """Return what a command is begun with to have processes of its own: a daemon there sees nobody else's ranks.
    Nothing where the kernel does not let us."""
    with contextlib.suppress(OSError):
        if subprocess.run([*_OWN_PROCESSES, "true"], capture_output=True, check=False).returncode == 0:
            return (*_OWN_PROCESSES, *_SHELL)
    return ()


def cores_of(text: str) -> list[int]:
    """`0-15,32-47`, or every core that we may use."""
    if not text:
        return sorted(os.sched_getaffinity(0))
    ends: list[list[Any]] = [part.split("-") for part in text.split(",")]
    return [core for first, *last in ends for core in range(int(first), int((last or [first])[0]) + 1)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--cores", default="", help="0-63; default: all that we may use")
    parser.add_argument("--gpus", type=int, default=0, help="lane K sees GPU K modulo so many alone; 0: all of them")
    parser.add_argument("--seconds", type=float, default=540.0, help="everything has ended by then")
    parser.add_argument("--out", type=Path, required=True, help="folder for lane-K.jsonl and lane-K.log")
    parser.add_argument("--shared-processes", action="store_true", help="no process namespaces")
    parser.add_argument("bench", nargs="+", help="a module that takes lanes, and its options")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
