"""A training job of the demo: started under torchrun as people do, and ended with everything that it started."""

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import psutil

from stallwatch.errors import UsageError
from stallwatch.node.children import start_logged

PROGRAMS = Path(__file__).parent / "programs"
STOP_SECONDS = 5.0


class Job(Protocol):
    """A running job, whoever launched it."""

    log: Path

    def exit_code(self) -> int | None:
        """None while it runs."""
        ...

    def stop(self) -> None:
        """End every process of the job, stopped or hung ones too; calling it twice does nothing."""
        ...


class Launch(Protocol):
    """How a job is started: torchrun for people, a preloaded fork server for tests."""

    def __call__(
        self, program: Path, arguments: Sequence[str], ranks: int, environment: Mapping[str, str], log: Path
    ) -> Job: ...


class TorchrunJob:
    """One training program under `torchrun --standalone`, its output in a file."""

    def __init__(
        self, program: Path, arguments: Sequence[str], ranks: int, environment: Mapping[str, str], log: Path
    ) -> None:
        self.log = log
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        with log.open("wb") as output:
            self._agent = start_logged([*torchrun, str(program), *arguments], output, environment)
        self._seen: set[psutil.Process] = set()

    def exit_code(self) -> int | None:
        """That of torchrun; None while it runs."""
        self._look()
        return self._agent.poll()

    def _look(self) -> None:
        # Ranks lead sessions of their own and outlive a killed agent: remembered here while their parents live.
        with contextlib.suppress(psutil.Error):
            self._seen.update(psutil.Process(self._agent.pid).children(recursive=True))

    def stop(self) -> None:
        """Kill the agent first, so that it restarts nothing, then all that was ever seen below it."""
        self._look()
        # The agent first, or it would report and restart what dies next.
        self._agent.kill()
        end_processes(self._seen)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._agent.wait(STOP_SECONDS)


def end_processes(processes: set[psutil.Process]) -> None:
    """Kill these and all below them. psutil compares start times: a reused pid is left alone."""
    doomed = set(processes)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            doomed.update(process.children(recursive=True))
    for process in doomed:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(doomed, timeout=STOP_SECONDS)


def need_torch() -> None:
    """Raise UsageError, with what to install, where there is no torch to train with."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            f"the demo trains a small model, and {sys.executable} has no torch",
            "python -m pip install torch numpy (a CPU build is enough), or run `bash deploy/demo.sh`.",
        )


def need_gpu(device: Path = Path("/dev/nvidiactl")) -> None:
    """Raise UsageError, with what works instead, where no NVIDIA driver is loaded: ranks of NCCL would all fail."""
    if not device.exists():
        raise UsageError(
            f"--backend nccl needs an NVIDIA GPU, and {device} is not here",
            "One is enough: ranks share it. Without a GPU leave --backend out, and the job uses gloo.",
        )


def job_environment(
    environment: Mapping[str, str], rank_directory: Path, mark: Path, scratch: Path, job: str
) -> dict[str, str]:
    """What the job may know: where records go and where to mark the fault. Settings of other stallwatches stay out."""
    kept = {name: value for name, value in environment.items() if not name.startswith("STALLWATCH_")}
    return kept | {
        "STALLWATCH_DIR": str(rank_directory),
        "STALLWATCH_JOB": job,
        "STALLWATCH_DEMO_MARK": str(mark),
        "TMPDIR": str(scratch),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), kept.get("PYTHONPATH", "")))),
    }
