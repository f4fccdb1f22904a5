"""What the daemon costs a node: CPU and memory of it and all its children, idle and with ranks, beside nvitop-exporter.

    python -m tests.bench.bench_footprint [--seconds 60] [--ranks 8] [--backend nccl]

Memory is the proportional share (PSS) of all its processes together; CPU is what the kernel charged (nanoseconds that
every process ran, ended ones included), so that a busy machine changes little. With ranks it is measured over the whole
time from one sample of their calls to the next: shorter, a sample that fell into it counted for ten, or for none.
/metrics is scraped each 5 seconds, the peer's as well. The peer needs NVML; with it both are measured in turn, alone on
the node.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import psutil

from stallwatch.config_sections import DriftSection
from stallwatch.demo.daemon_child import DaemonChild
from tests.bench import jobs
from tests.bench.figures import Figure, mean_of

SETTLE_SECONDS = 20.0  # imports, the first search for ranks
IDLE_SECONDS = 75.0  # from then on what is not used is ended
SCRAPED_EVERY_SECONDS = 5.0
SAMPLED_EVERY_SECONDS = DriftSection().every_seconds
PROGRAM = Path(__file__).parents[1] / "programs" / "communicating.py"
JOB = "footprint"
PEER = "nvitop-exporter"
READY_SECONDS = 180.0


class Cost(NamedTuple):
    """Percent of a core, one of each time between two scrapes, and by process; MiB by process."""

    cpu: list[float]
    cpu_of: dict[str, float]
    memory: dict[str, float]

    @property
    def mebibytes(self) -> float:
        """Return what all processes take together."""
        return sum(self.memory.values())


def name_of(process: psutil.Process) -> str:
    """ "daemon", "sensors.child ranks": what it is, without its options."""
    words = process.cmdline()
    at = next((number for number, word in enumerate(words) if word.startswith("stallwatch.")), None)
    if at is None:  # a py-spy, a reader of evidence, the peer
        return Path(words[0]).name if words else "?"
    return " ".join([words[at].removeprefix("stallwatch."), *words[at + 1 :][:1]])


class Processes:
    """A process and all that it started."""

    def __init__(self, pid: int) -> None:
        self._first = psutil.Process(pid)
        self._ran: dict[int, float] = {}

    def cpu_seconds(self) -> float:
        """Return what they have taken so far. Of one that ended between two calls all is known, by what its parent
        was charged for it, but that of a grandchild whose parent has ended too."""
        gone = 0.0
        for process in (self._first, *self._first.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess, OSError):
                times = process.cpu_times()
                self._ran[process.pid] = time.clock_gettime(~process.pid << 3 | 2)  # as clock_getcpuclockid(3) makes it
                gone += times.children_user + times.children_system
        alive = {process.pid for process in (self._first, *self._first.children(recursive=True))}
        return sum(seconds for pid, seconds in self._ran.items() if pid in alive) + gone

    def ran(self) -> dict[int, float]:
        """Return what each had taken by the last call of `cpu_seconds`."""
        return dict(self._ran)

    def memory(self) -> dict[str, float]:
        """Return MiB (PSS) of each."""
        found: dict[str, float] = {}
        for process in (self._first, *self._first.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                found[f"{process.pid:7} {name_of(process):.40}"] = process.memory_full_info().pss / 2**20
        return found


def watch(pid: int, port: int, seconds: float) -> Cost:
    """Scrape it, and return what it cost meanwhile."""
    processes, shares = Processes(pid), []
    until, before, at = time.monotonic() + seconds, processes.cpu_seconds(), time.monotonic()
    began, ran_before = at, processes.ran()
    while time.monotonic() < until:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert answer.read()
        time.sleep(SCRAPED_EVERY_SECONDS)
        now, cpu = time.monotonic(), processes.cpu_seconds()
        shares.append((cpu - before) / (now - at) * 100)
        before, at = cpu, now
    memory, ran = processes.memory(), processes.ran()
    of = {name: ran.get(pid := int(name.split()[0]), 0.0) - ran_before.get(pid, 0.0) for name in memory}
    return Cost(shares, {name: cpu / (at - began) * 100 for name, cpu in of.items()}, memory)


def has_nvml() -> bool:
    """Whether there is a driver that answers, and the peer to ask it."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    pynvml.nvmlShutdown()
    return find_spec("nvitop_exporter") is not None


def peer(seconds: float) -> Cost:
    """What nvitop-exporter costs, in its default configuration."""
    port = jobs.free_port()
    exporter = subprocess.Popen(
        [sys.executable, "-m", "nvitop_exporter", "--bind-address", "127.0.0.1", "--port", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        time.sleep(SETTLE_SECONDS)
        return watch(exporter.pid, port, seconds)
    finally:
        exporter.kill()
        exporter.wait()


@contextlib.contextmanager
def daemon_on(folder: Path) -> Iterator[tuple[DaemonChild, int]]:
    port = jobs.free_port()
    daemon = DaemonChild(folder, os.environ, {"http": {"listen": f"127.0.0.1:{port}"}})
    daemon.start()
    try:
        yield daemon, port
    finally:
        daemon.stop()


def figures_of(label: str, cost: Cost, other: Cost | None) -> list[Figure]:
    found = [
        Figure(f"{label}: memory", cost.mebibytes, "MiB", detail=f"{len(cost.memory)} processes"),
        mean_of(f"{label}: CPU", cost.cpu, "% of a core"),
    ]
    if other is not None:
        cpu, others = found[1].value, sum(other.cpu) / len(other.cpu)
        memory = f"nvitop-exporter {other.mebibytes:.1f} MiB"
        found += [
            Figure(f"{label}: memory against nvitop-exporter", cost.mebibytes / other.mebibytes, "×", detail=memory),
            Figure(
                f"{label}: CPU against nvitop-exporter", cpu / others, "×", detail=f"nvitop-exporter {others:.2f} %"
            ),
        ]
    return found


def measure(seconds: float, busy_seconds: float, ranks: int, backend: str, *, show: bool) -> list[Figure]:
    """Return the figures of a node without a job, of so many seconds, and of one whose ranks step."""
    beside = has_nvml()
    found: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="sw-") as name, jobs.server() as server:
        folder = Path(name)
        alone = peer(seconds) if beside else None
        with daemon_on(folder) as (daemon, port):
            assert daemon.pid is not None
            time.sleep(IDLE_SECONDS)
            idle = watch(daemon.pid, port, seconds)
            found += figures_of("idle", idle, alone)
            job = server.launch(
                PROGRAM,
                [str(folder), "100000"],
                ranks,
                {
                    "STALLWATCH_DIR": str(daemon.rank_directory),
                    "STALLWATCH_JOB": JOB,
                    "PYTHONPATH": str(Path(__file__).parents[2] / "monitor"),
                    "COMMUNICATING_BACKEND": backend,
                    "OMP_NUM_THREADS": "1",
                },
                folder / "job.log",
            )
            try:
                wait_until_all_step(daemon, ranks, folder / "job.log")
                time.sleep(SETTLE_SECONDS)
                busy = watch(daemon.pid, port, busy_seconds)
                strangers = sum(rank.training_job != JOB for rank in daemon.client.ranks().ranks)
                told = len(daemon.client.incidents().incidents)
                daemon.stop()
                found += figures_of(f"{ranks} ranks", busy, peer(seconds) if beside else None)
            finally:
                job.stop()
        if strangers or told:
            print(f"not idle: {strangers} ranks of other jobs on this machine, {told} incidents")
        if show:
            for cost in filter(None, (idle, busy, alone)):
                for process, mebibytes in cost.memory.items():
                    print(f"{mebibytes:6.1f} MiB {cost.cpu_of[process]:6.2f} % {process}")
                print()
    return found


def wait_until_all_step(daemon: DaemonChild, ranks: int, log: Path) -> None:
    """Raise RuntimeError, with the job's log, where they do not."""
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until:
        mine = [rank for rank in daemon.client.ranks().ranks if rank.training_job == JOB]
        if len(mine) == ranks and all(rank.step for rank in mine):
            return
        time.sleep(0.5)
    raise RuntimeError(f"the job does not step: {log.read_text(errors='replace')[-3000:]}")


def figures(quick: bool) -> list[Figure]:
    """8 ranks, of NCCL where there is a GPU: there the peer takes its turns as well."""
    on_gpu = has_gpu()
    backend = "nccl" if on_gpu else "gloo"
    seconds, busy_seconds = (20.0, 20.0) if quick else (30.0, SAMPLED_EVERY_SECONDS)
    return measure(seconds, busy_seconds, 8, backend, show=True)


def has_gpu() -> bool:
    """Whether torch sees one."""
    import torch  # noqa: TID251

    return bool(torch.cuda.is_available())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    options = parser.parse_args()
    busy_seconds = max(options.seconds, SAMPLED_EVERY_SECONDS)
    for figure in measure(options.seconds, busy_seconds, options.ranks, options.backend, show=True):
        print(figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
