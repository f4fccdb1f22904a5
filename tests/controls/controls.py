"""Situations that are no hang, beside a real daemon that must tell nobody.

    python tests/controls/controls.py [--runs 3] [--name checkpoint] [--at-once 3] [--json controls.json]

Jobs are forked (tests/bench/jobs.py); several run at once under one daemon in its default configuration. Exit code 0
when nobody was told and every job ended well. What was thought, and told to nobody, is printed.
"""

import argparse
import ctypes
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

# Started as a script: the repository's root is not on the path yet.
sys.path.insert(0, str(Path(__file__).parents[2]))

from stallwatch.demo.daemon_child import DaemonChild
from stallwatch.outputs.client import DaemonUnreachable
from stallwatch.outputs.documents import IncidentDocument
from tests.bench import jobs

PROGRAMS = tuple(Path(__file__).with_name(name) for name in ("situations.py", "more_situations.py"))
SOURCE = str(Path(__file__).parents[2] / "monitor")
RANKS = 4
ENOUGH_SECONDS = 240.0
AFTERMATH_SECONDS = 6.0  # a job has ended: what would the daemon still say?
RESTART, TERMINATED, DEBUGGED, SUSPENDED = "restart", "terminated", "debugged", "suspended"
SUSPENDED_SECONDS = 15.0
# Not programs of their own: what is done to a healthy one.
DONE_TO_IT = (RESTART, TERMINATED)
PTRACE_ATTACH, PTRACE_DETACH = 16, 17


class Control(msgspec.Struct):
    name: str
    run: int
    job: str
    exit_code: int | None = None
    told: tuple[str, ...] = ()
    thought: tuple[str, ...] = ()

    @property
    def quiet(self) -> bool:
        return not self.told and self.exit_code == 0


class Runner:
    """Starts situations under one daemon and notes what it says of each."""

    def __init__(self, daemon: DaemonChild, server: jobs.Server, folder: Path) -> None:
        self._daemon = daemon
        self._server = server
        self._folder = folder

    def run(self, controls: Sequence[Control]) -> None:
        """Run these at the same time and wait until all have ended and their aftermath is over."""
        began, struck = time.monotonic(), {control.job: False for control in controls}
        running = {control.job: self._launch(control, 0) for control in controls}
        over_at: float | None = None
        while over_at is None or time.monotonic() < over_at:
            time.sleep(0.5)
            self._note(controls)
            age = time.monotonic() - began
            for control in controls:
                if not struck[control.job] and age > 10:
                    struck[control.job] = True
                    running[control.job] = self._strike(control, running[control.job])
            if age > ENOUGH_SECONDS:
                break
            if over_at is None and all(job.exit_code() is not None for job in running.values()):
                over_at = time.monotonic() + AFTERMATH_SECONDS
        for control in controls:
            job = running[control.job]
            control.exit_code = 0 if control.name == TERMINATED and job.exit_code() in (0, -15) else job.exit_code()
            job.stop()

    def _launch(self, control: Control, restarts: int) -> jobs.ForkedJob:
        environment = {
            "PYTHONPATH": SOURCE,
            "STALLWATCH_DIR": str(self._daemon.rank_directory),
            "STALLWATCH_JOB": control.job,
            "TORCHELASTIC_RUN_ID": control.job,
            "TORCHELASTIC_RESTART_COUNT": str(restarts),
        }
        program = "background_upload" if control.name in DONE_TO_IT else control.name
        path = next(path for path in PROGRAMS if program in _names_in(path))
        return self._server.launch(path, [program], RANKS, environment, self._folder / f"{control.job}.log")

    def _strike(self, control: Control, job: jobs.ForkedJob) -> jobs.ForkedJob:
        if control.name == TERMINATED:
            for pid in job.pids:
                os.kill(pid, signal.SIGTERM)
        if control.name == RESTART:
            # As torchrun restarts after a membership change: SIGTERM to all, a new life some seconds later.
            for pid in job.pids:
                os.kill(pid, signal.SIGTERM)
            job.wait(10)
            time.sleep(2)
            return self._launch(control, 1)
        if control.name == DEBUGGED:
            hold_with_a_debugger(job.pids[1], 12.0)
        if control.name == SUSPENDED:
            for pid in job.pids:
                os.kill(pid, signal.SIGSTOP)
            threading.Timer(SUSPENDED_SECONDS, _continue, [list(job.pids)]).start()
        return job

    def _note(self, controls: Sequence[Control]) -> None:
        self._daemon.check()
        try:
            incidents = self._daemon.client.incidents().incidents
        except DaemonUnreachable:
            return
        for control in controls:
            mine = [incident for incident in incidents if incident.training_job == control.job]
            said = tuple(dict.fromkeys((*control.thought, *(_said(one) for one in mine if one.verdicts))))
            control.thought = said
            told = [_said(one) for one in mine if one.severity != "none"]
            control.told = tuple(dict.fromkeys((*control.told, *told)))


def _continue(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def hold_with_a_debugger(pid: int, seconds: float) -> None:
    """Attach as gdb does, from a process of its own: a tracer is a thread."""
    if os.fork() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(PTRACE_ATTACH, pid, None, None) == 0:
            os.waitpid(pid, 0x40000000)  # __WALL
            time.sleep(seconds)
            libc.ptrace(PTRACE_DETACH, pid, None, None)
        os._exit(0)


def _said(incident: IncidentDocument) -> str:
    verdict = incident.verdicts[0]
    return f"{incident.severity}: {verdict.cause} {list(verdict.culprits)} {verdict.where or ''} ({verdict.confidence})"


def names() -> tuple[str, ...]:
    """Every situation, without importing torch."""
    return (*(name for path in PROGRAMS for name in _names_in(path)), *DONE_TO_IT)


def _names_in(program: Path) -> list[str]:
    lines = program.read_text(encoding="utf-8").split("SITUATIONS: ")[1].splitlines()
    return [line.strip().rstrip(",") for line in lines if line.startswith(" " * 8) and line.endswith(",")]


def main() -> int:
    options = _options()
    wanted = [Control(name, run, f"{name}-{run}") for run in range(options.runs) for name in options.name or names()]
    with tempfile.TemporaryDirectory(prefix="stallwatch-controls-") as folder, jobs.server() as server:
        daemon = DaemonChild(Path(folder), os.environ)
        daemon.start()
        try:
            runner = Runner(daemon, server, Path(folder))
            for batch in _batches(wanted, options.at_once):
                runner.run(batch)
                for control in batch:
                    print(_line(control), flush=True)
                    if control.exit_code != 0:
                        print((Path(folder) / f"{control.job}.log").read_text()[-1500:], flush=True)
        finally:
            daemon.stop()
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(wanted)))
    quiet = sum(control.quiet for control in wanted)
    print(f"nobody told in {quiet} of {len(wanted)} runs; load {os.getloadavg()[0]:.1f}")
    return 0 if quiet == len(wanted) else 1


def _batches(controls: Sequence[Control], size: int) -> list[list[Control]]:
    return [list(controls[at : at + size]) for at in range(0, len(controls), size)]


def _line(control: Control) -> str:
    thought = f" | thought: {'; '.join(control.thought)}" if control.thought else ""
    outcome = "quiet" if control.quiet else f"TOLD {'; '.join(control.told)} exit {control.exit_code}"
    return f"{control.name:22} run {control.run + 1}: {outcome}{thought}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--name", action="append", default=[], help="may be given several times; default: all")
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
