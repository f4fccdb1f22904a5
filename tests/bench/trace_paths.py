"""The files of the package that a value passes on its way: `python -m tests.bench.trace_paths [step] [dump]`.

step: from `beat.step()` to the sample stallwatch_rank_step that a scrape gets. All of it runs for real, in this one
process so that it can be watched: the hook with its thread, the reader of ranks as a thread that is asked over the
socket as its child is, the panel, the daemon's ticks, the web server, a scrape over TCP. dump: from a recorder's dump
in a bundle to the sentence of the verdict.

The value (a number of steps, a group's name) is one that nothing else has; how its way is found: value_watch.py. The
detectors, the ring of snapshots and other outputs, which are only shown it, are not on it.
"""

import functools
import os
import socket
import struct
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

import stallwatch
from stallwatch import config
from stallwatch.bundle import reader
from stallwatch.bundle.child import ParseTask
from stallwatch.bundle.parsing import answer
from stallwatch.bundle.report import make_report
from stallwatch.bundle.workers import Limits, Task
from stallwatch.clock import SystemClock
from stallwatch.daemon import Daemon
from stallwatch.incidents.store import IncidentStore
from stallwatch.loop.notify import ServiceManager
from stallwatch.node.children import Start
from stallwatch.outputs.build import build
from stallwatch.outputs.http import HttpOutput
from stallwatch.sensors import child, ranks
from stallwatch.sensors.panel import SensorSet
from stallwatch.sensors.sensor import Options
from tests.bench.value_watch import Call, Watch, watched_threads, way
from tests.unit.loop.fakes import FakeStarter

BUNDLE = Path(__file__).parents[1] / "bundles" / "nccl-tp_dp"
STEPS = 1_234_567
STEPS_IN_BYTES = (
    *(b"1234567", b"1.234567e+06"),
    struct.pack("<q", STEPS),  # a word of the record
    b"\xce" + struct.pack(">I", STEPS),  # msgpack
)
GROUP = "mesh_dp"


class Reader:
    """The reader of ranks as a thread, that talks as its child does."""

    pid, returncode = 1, None

    def __init__(self, options: Options) -> None:
        self.channel, self._theirs = socket.socketpair()
        theirs = os.dup(self._theirs.fileno())  # its own, whatever becomes of ours
        arguments = functools.partial(ranks.make, options), theirs, theirs
        threading.Thread(target=child.serve, args=arguments, daemon=True).start()

    @property
    def child(self) -> "Reader":
        return self

    def poll(self) -> int | None:
        return None

    def wait(self, timeout: float | None = None) -> int:
        return 0

    def kill(self) -> None:
        pass


class OnlyRanks:
    """A privileged side that starts the reader of ranks alone."""

    def __init__(self, directory: str) -> None:
        self._options = Options(directories=(directory,))

    def starting(self, name: str) -> Start:
        def start() -> Reader:
            if name != "ranks":
                raise FileNotFoundError(2, "is not asked here")
            return Reader(self._options)

        return start  # type: ignore[return-value]


def step_to_sample(folder: Path) -> list[Call]:
    """Count steps, look, and scrape."""
    records = folder / "ranks"
    records.mkdir(mode=0o755)
    os.environ |= {"STALLWATCH_DIR": str(records), "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    given = {("daemon", "run_directory"): str(folder), ("daemon", "state_directory"): str(folder)}
    settings, _ = config.load(overrides={**given, ("http", "listen"): "127.0.0.1:0"})
    clock, store = SystemClock(), IncidentStore(folder)
    store.prepare()
    watch = Watch(STEPS, STEPS_IN_BYTES, "OpenEndpoints.metrics")
    with watched_threads(watch):
        beat = stallwatch.attach()
        panel = SensorSet(settings, clock, OnlyRanks(str(records)))  # type: ignore[arg-type]
        daemon = Daemon(settings, clock, panel, FakeStarter(), store, ServiceManager({}))
        outputs = build(settings, daemon.control, clock)
        daemon.open(outputs)
        for output in outputs:
            output.start()
        port = next(output.port for output in outputs if isinstance(output, HttpOutput))
        for _ in range(STEPS - 1):
            beat.step()
        text, tick = "", 0
        while "stallwatch_rank_step{" not in text:
            daemon.tick(tick, 0.0)
            text, tick = scraped(port), tick + 1
            time.sleep(0.3)
        watch.begin()
        time.sleep(0.6)  # what the hook's thread is in the middle of, it has begun unseen
        beat.step()
        while "1.234567e+06" not in text:
            daemon.tick(tick, 0.0)
            text, tick = scraped(port), tick + 1
            time.sleep(0.3)
        watch.is_on = False
        daemon.close()
    return way(watch)


def dump_to_sentence(folder: Path) -> list[Call]:
    """Judge a bundle whose verdict names a process group, which only dumps do."""
    watch = Watch(GROUP, (GROUP.encode(),), "summary")
    with watched_threads(watch), patch.object(reader, "parse_all", parsed_here):
        watch.begin()
        report = make_report(reader.load([BUNDLE]))
        watch.is_on = False
    assert GROUP in report.verdicts[0].summary
    return way(watch)


def parsed_here(tasks: Sequence[Task], limits: Limits, meanwhile: Callable[[], object] | None = None) -> None:
    """What bundle.workers and its children do, where it can be watched: they and the socket between are not listed."""
    for task in tasks:
        opened = [(file, descriptor) for file in task.files if (descriptor := file.opened()) is not None]
        job = ParseTask(tuple(file.part for file, _ in opened), task.rank)
        said = answer(job, [descriptor for _, descriptor in opened])
        for (file, descriptor), part in zip(opened, said.parts, strict=True):
            os.close(descriptor)
            file.done(None if part.problem else part.value, part.problem)


def scraped(port: int | None) -> str:
    """What Prometheus would get."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


WAYS: dict[str, Callable[[Path], list[Call]]] = {"step": step_to_sample, "dump": dump_to_sentence}
ENDS = {"step": "sample", "dump": "sentence"}


def main(names: list[str]) -> None:
    """Print the files of each way in its order, each with the functions that the value passes."""
    for name in names or WAYS:
        with tempfile.TemporaryDirectory(prefix="sw-") as folder:
            calls = WAYS[name](Path(folder))
        found: dict[str, list[str]] = {}
        for call in calls:
            functions = found.setdefault(call.file, [])
            if call.function not in functions:
                functions.append(call.function)
        print(f"{name} → {ENDS[name]}: {len(found)} files")
        for number, (file, functions) in enumerate(found.items(), 1):
            print(f"{number:3} {file}: {', '.join(functions)}")
    sys.stdout.flush()
    os._exit(0)  # the reader of ranks is a thread that waits


if __name__ == "__main__":
    main(sys.argv[1:])
