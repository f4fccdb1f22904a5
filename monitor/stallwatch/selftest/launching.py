"""The ranks of one job on this node: started one by one without a launcher, each with a log and a report of its own."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.hook.launcher_variables import LOCAL_RANK_NAMES, RANK_NAMES
from stallwatch.node.children import PopenChild, start_logged
from stallwatch.selftest.interpreter import link_to_package
from stallwatch.selftest.result import OwnFailure
from stallwatch.selftest.told_so_far import ReportLine
from stallwatch.selftest.worker.step_lines import SCHEMA_VERSION, report_name

_STOP_SECONDS = 5.0
_LOG_TAIL_BYTES = 4000
# What an outer launcher left here would be taken for ours.
_OUTER = ("TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_", *RANK_NAMES, *LOCAL_RANK_NAMES, "STALLWATCH_")


class JobPlan(msgspec.Struct, frozen=True):
    """One job of ranks: who runs them, on what, which steps, and how long each may take."""

    python: str
    ranks: int
    backend: str
    step_seconds: float
    start_seconds: float
    most_bytes: int | None = None
    ladder_seconds: float = 8.0
    devices: tuple[int, ...] = ()
    only: tuple[str, ...] = ()
    program: str | None = None  # replaces `-m stallwatch.selftest.rank`


class LaunchedRanks:
    """Raise OwnFailure when no process can be started."""

    def __init__(self, plan: JobPlan, folder: Path, environment: Mapping[str, str], rank_directory: Path) -> None:
        self.plan = plan
        self._folder = folder
        self._offsets = dict.fromkeys(range(plan.ranks), 0)
        self.processes: list[PopenChild] = []
        shared = self._environment(environment, rank_directory)
        self.master = f"{shared['MASTER_ADDR']}:{shared['MASTER_PORT']}"
        for rank in range(plan.ranks):
            own = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            try:
                with self.log(rank).open("wb") as log:
                    process = start_logged(self._command(), log, own)
            except OSError as error:
                self.stop()
                raise OwnFailure(f"rank {rank} could not be started: {error}", "See --python.") from error
            self.processes.append(process)

    def log(self, rank: int) -> Path:
        """Return the file that gets the rank's stdout and stderr."""
        return self._folder / f"rank-{rank}.log"

    def _command(self) -> list[str]:
        plan = self.plan
        program = [plan.program] if plan.program else ["-m", "stallwatch.selftest.rank"]
        command = [plan.python, *program, f"--report={self._folder}", f"--backend={plan.backend}"]
        # We look first; a rank left alone ends itself.
        command += [f"--step-seconds={plan.step_seconds + 120:g}", f"--ladder-seconds={plan.ladder_seconds:g}"]
        command += [f"--most-bytes={plan.most_bytes}"] if plan.most_bytes else []
        command += [f"--devices={','.join(map(str, plan.devices))}"] if plan.devices else []
        command += [f"--only={name}" for name in plan.only]
        return [*command, "--parent"]

    def _environment(self, environment: Mapping[str, str], rank_directory: Path) -> dict[str, str]:
        kept = {name: value for name, value in environment.items() if not name.startswith(_OUTER)}
        package = link_to_package(self._folder / "package")
        return kept | {
            "WORLD_SIZE": str(self.plan.ranks),
            "LOCAL_WORLD_SIZE": str(self.plan.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "STALLWATCH_DIR": str(rank_directory),
            "STALLWATCH_JOB": f"stallwatch-selftest-{os.getpid()}",
            "STALLWATCH_NOTIFY": "off",  # a daemon of this node tells nobody about our stalls
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(package), kept.get("PYTHONPATH", "")))),
        }

    def read(self) -> list[ReportLine]:
        """What the ranks have told since the last call; half-written lines wait."""
        found = []
        for rank, offset in self._offsets.items():
            with contextlib.suppress(FileNotFoundError), (self._folder / report_name(rank)).open("rb") as file:
                file.seek(offset)
                whole, newline, _ = file.read().rpartition(b"\n")
                self._offsets[rank] = offset + len(whole) + len(newline)
                found += [self._line(text) for text in whole.splitlines()]
        return found

    @staticmethod
    def _line(text: bytes) -> ReportLine:
        try:
            line = msgspec.json.decode(text, type=ReportLine)
        except NOT_JSON as error:
            raise OwnFailure(f"a rank's report cannot be read: {error}", "Another version of stallwatch?") from error
        if line.schema_version != SCHEMA_VERSION:
            raise OwnFailure(f"a rank's report has version {line.schema_version}, not {SCHEMA_VERSION}")
        return line

    def exit_codes(self) -> dict[int, int]:
        """Of the ranks that have ended; negative: by that signal."""
        return {rank: code for rank, process in enumerate(self.processes) if (code := process.poll()) is not None}

    def last_words(self, rank: int) -> str:
        """Return the last three lines of the rank's log; "" where it cannot be read."""
        try:
            with self.log(rank).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _LOG_TAIL_BYTES))
                return "\n".join(file.read().decode(errors="replace").strip().splitlines()[-3:])
        except OSError:
            return ""

    def stop(self) -> None:
        """End every rank and what it started. One in the kernel's hands is left to it."""
        for process in self.processes:
            # PopenChild.kill leaves the group of one that has ended alone, and what a rank left running is in it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        until = time.monotonic() + _STOP_SECONDS
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody holds now; another program may take it before it is used."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
