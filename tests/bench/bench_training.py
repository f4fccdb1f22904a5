"""What hook, recorder, daemon and samples cost a training step: two jobs take turns on one machine, block by block.

    python -m tests.bench.bench_training [--model transformer] [--ranks 1] [--pairs 60] [--seconds 2]

One job has the hook and torch's recorder, and a daemon in its default configuration watches it, but that it samples
the job every 30 seconds (every 5 minutes by default); the other has nothing, and while it is its turn the daemon and
all that it started are stopped. A pair is a block of each, in an order drawn by lot, so that what drifts (clocks of a
GPU, other programs) is in both. `cpu`: processor time of all ranks, the hook's threads also counted by themselves.
`transformer`: time of a bf16 step on GPUs.
"""

import argparse
import contextlib
import json
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

import psutil

from stallwatch.config import Config
from stallwatch.demo.daemon_child import DaemonChild
from tests.bench import jobs
from tests.bench.bench_footprint import Processes
from tests.bench.figures import Figure, mean_of

PROGRAM = Path(__file__).parents[1] / "programs/told_steps.py"
JOB = "told"
READY_SECONDS = 240.0
SETTLE_SECONDS = 25.0  # imports, the first search for ranks
# A sample of eight ranks takes some 0.8 s of processor: a time that is no whole round of them says anything.
ROUND_SECONDS = Config().drift.every_seconds
SAMPLE_EVERY = "30"
# Nor a recorder: attach() is what turns it on.
WITHOUT = {"STALLWATCH_DISABLE": "1", "TORCH_FR_BUFFER_SIZE": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}
ALWAYS_BUSY = 8  # ranks of a node, of which each keeps a core busy


class Block(NamedTuple):
    """What a block took, a step and rank."""

    seconds: float
    cpu: float
    hook: float


class ToldJob:
    """A job that steps when it is told to."""

    def __init__(self, server: jobs.Server, folder: Path, model: str, ranks: int, hook: bool, ranks_in: Path) -> None:
        folder.mkdir()
        for name in ("took", *(f"told-{rank}" for rank in range(ranks))):
            os.mkfifo(folder / name)
        # Open both ways: opening does not wait for the other side, and the end of a rank is not the end of the file.
        self._took = os.fdopen(os.open(folder / "took", os.O_RDWR), "r")
        self._told: list[TextIO] = [os.fdopen(os.open(folder / f"told-{r}", os.O_RDWR), "w") for r in range(ranks)]
        environment = {
            "STALLWATCH_DIR": str(ranks_in),
            "STALLWATCH_JOB": JOB,
            "PYTHONPATH": str(Path(__file__).parents[2] / "monitor"),
            "OMP_NUM_THREADS": "1",
            **({} if hook else WITHOUT),
        }
        self._ranks, self._log = ranks, folder / "job.log"
        self._job = server.launch(PROGRAM, [str(folder), model], ranks, environment, self._log)
        self._answers(READY_SECONDS)

    def block(self, steps: int) -> Block:
        """Have every rank take so many steps; return what one took, on the average of the ranks."""
        for told in self._told:
            told.write(f"{steps}\n")
            told.flush()
        answers = self._answers(READY_SECONDS)
        return Block(*(statistics.fmean(a[what] for a in answers) / steps for what in ("seconds", "cpu", "hook")))

    def _answers(self, seconds: float) -> list[dict[str, float]]:
        """An answer of each rank. Raise RuntimeError, with the job's log, where one does not come."""
        signal.signal(signal.SIGALRM, self._silent)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        answers = [json.loads(self._took.readline()) for _ in range(self._ranks)]
        signal.setitimer(signal.ITIMER_REAL, 0)
        return answers

    def _silent(self, *_: object) -> None:
        raise RuntimeError(f"a rank does not answer: {self._log.read_text(errors='replace')[-3000:]}")


class Watcher:
    """A daemon and all its processes."""

    def __init__(self, daemon: DaemonChild) -> None:
        assert daemon.pid is not None
        self._daemon = psutil.Process(daemon.pid)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop them all meanwhile: the daemon first, and last to go on, or it would wait for its children."""
        processes = [self._daemon, *self._daemon.children(recursive=True)]
        self._send(processes, signal.SIGSTOP)
        try:
            yield
        finally:
            self._send(processes[::-1], signal.SIGCONT)

    def cpu(self) -> float:
        """Seconds of processor that all of them took, ended ones included."""
        own = self._daemon.cpu_times()
        gone = own.children_user + own.children_system
        children = [child.cpu_times() for child in self._daemon.children(recursive=True)]
        return float(own.user + own.system + gone + sum(times.user + times.system for times in children))

    @staticmethod
    def _send(processes: Sequence[psutil.Process], number: int) -> None:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def measure(model: str, ranks: int, pairs: int, seconds: float) -> tuple[list[tuple[Block, Block]], list[float]]:
    """Return pairs of blocks, without and with, and what share of a core the daemon took in each of the latter. What it
    left undone while it was stopped is in these, too."""
    random.seed(1)
    taken: list[tuple[Block, Block]] = []
    shares: list[float] = []
    with tempfile.TemporaryDirectory(prefix="sw-") as name, jobs.server() as server:
        folder = Path(name)
        daemon = DaemonChild(folder, os.environ, {"drift": {"every_seconds": SAMPLE_EVERY}})
        daemon.start()
        try:
            bare = ToldJob(server, folder / "bare", model, ranks, False, daemon.rank_directory)
            hooked = ToldJob(server, folder / "hooked", model, ranks, True, daemon.rank_directory)
            watcher = Watcher(daemon)
            steps = max(1, round(seconds / hooked.block(5).seconds))

            def watched() -> Block:
                began, before = time.monotonic(), watcher.cpu()
                block = hooked.block(steps)
                shares.append((watcher.cpu() - before) / (time.monotonic() - began))
                return block

            while len(taken) < pairs:
                if random.random() < 0.5:
                    with watcher.stopped():
                        without = bare.block(steps)
                    taken.append((without, watched()))
                else:
                    with_it = watched()
                    with watcher.stopped():
                        taken.append((bare.block(steps), with_it))
            seen = [one for one in daemon.client.ranks().ranks if one.training_job == JOB]
            assert len(seen) == ranks, f"the daemon sees {len(seen)} of {ranks} ranks"
        finally:
            daemon.stop()
    return taken, shares


def of_daemon(ranks: int, seconds: float) -> list[float]:
    """Return what share of a core a daemon in its default configuration takes, by five seconds each, while one job of
    so many ranks steps and nothing is stopped. In a round of samples there is one."""
    with tempfile.TemporaryDirectory(prefix="sw-") as name, jobs.server() as server:
        folder, shares = Path(name), list[float]()
        daemon = DaemonChild(folder, os.environ, {})
        daemon.start()
        try:
            assert daemon.pid is not None
            job = ToldJob(server, folder / "watched", "light", ranks, True, daemon.rank_directory)
            processes, steps = Processes(daemon.pid), max(1, round(5.0 / job.block(10).seconds))
            began = time.monotonic()
            while time.monotonic() < began + SETTLE_SECONDS:
                job.block(steps)
            at, before, until = time.monotonic(), processes.cpu_seconds(), time.monotonic() + seconds
            while at < until:
                job.block(steps)
                now, cpu = time.monotonic(), processes.cpu_seconds()
                shares.append((cpu - before) / (now - at))
                at, before = now, cpu
            suspected = [one for one in daemon.client.incidents().incidents if one.training_job == JOB]
            if suspected:
                print(f"not calm, the looks are in the daemon's share: {suspected[0].events}")
        finally:
            daemon.stop()
    return shares


def more(pairs: Sequence[tuple[Block, Block]], what: int) -> list[float]:
    """What a step takes more, in percent, pair by pair."""
    return [(with_it[what] / without[what] - 1) * 100 for without, with_it in pairs]


def cpu(quick: bool) -> list[Figure]:
    """Processor time of a step: the ranks' in pairs, and the hook's threads and the daemon by their own clocks. The
    daemon's is of a time of its own, with eight ranks: in the pairs it is stopped again and again, and takes more
    samples than it does by itself."""
    ranks = min(ALWAYS_BUSY, len(os.sched_getaffinity(0)))
    pairs, _ = measure("cpu", ranks, 10 if quick else 60, 1.0 if quick else 2.0)
    hook = [with_it.hook / with_it.seconds * 100 for _, with_it in pairs]
    threads = mean_of("the hook's threads", hook, "% of a core")
    shares = [share * 100 for share in of_daemon(ALWAYS_BUSY, 15.0 if quick else ROUND_SECONDS)]
    detail = f"{ALWAYS_BUSY} light ranks; median {statistics.median(shares):.2f}"
    daemon = mean_of("the daemon", shares, "% of a core", detail)
    step = statistics.fmean(without.cpu for without, _ in pairs)
    paired = mean_of("a step, in pairs", more(pairs, 1), "%", f"{ranks} ranks, {step * 1e3:.1f} ms of processor a step")
    return [together(threads, daemon), threads, daemon, paired]


def together(threads: Figure, daemon: Figure) -> Figure:
    """Return what a node of eight busy cores spends: on each the threads of a hook, and an eighth of the daemon."""
    assert threads.low is not None and threads.high is not None and daemon.low is not None and daemon.high is not None
    value = threads.value + daemon.value / ALWAYS_BUSY
    less = math.hypot(threads.value - threads.low, (daemon.value - daemon.low) / ALWAYS_BUSY)
    greater = math.hypot(threads.high - threads.value, (daemon.high - daemon.value) / ALWAYS_BUSY)
    name, detail = f"hook and daemon, of {ALWAYS_BUSY} busy cores", "by their own clocks"
    return Figure(name, value, "%", value - less, value + greater, detail)


def transformer(quick: bool, ranks: int = 0) -> list[Figure]:
    """Time of a bf16 step on GPUs, a rank on each."""
    import torch  # noqa: TID251

    pairs, _ = measure("transformer", ranks or torch.cuda.device_count(), 10 if quick else 60, 1.0)
    step = statistics.median(without.seconds for without, _ in pairs)
    return [mean_of("a bf16 step, in pairs", more(pairs, 0), "%", f"{step * 1e3:.2f} ms a step without")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("cpu", "transformer"), default="cpu")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a block")
    options = parser.parse_args()
    pairs, shares = measure(options.model, options.ranks, options.pairs, options.seconds)
    for without, with_it in pairs:
        print(f"{without.seconds * 1e3:9.3f} ms {with_it.seconds * 1e3:9.3f} ms; "
              f"processor {without.cpu * 1e3:9.3f} ms {with_it.cpu * 1e3:9.3f} ms")  # fmt: skip
    print(mean_of("time of a step", more(pairs, 0), "%"))
    print(mean_of("processor of a step", more(pairs, 1), "%"))
    print(mean_of("daemon", [share * 100 for share in shares], "% of a core"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
