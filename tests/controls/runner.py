"""Starts situations under one daemon, does to them what is done from outside, and notes what the daemon says."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from stallwatch.demo.daemon_child import DaemonChild
from stallwatch.detectors.detection import NOT_SEEN_TO_WORK
from stallwatch.outputs.client import DaemonUnreachable
from stallwatch.outputs.documents import IncidentDocument
from tests.bench import jobs
from tests.controls.catalogue import DONE_TO_IT, HANGS, ON_GPUS, PROGRAMS, situations_of
from tests.controls.freezer import Freezer
from tests.controls.launching import Elastic, Forked, InTerminal, Running, StartedOtherwise, Torchrun, search_path
from tests.controls.outcome import Control

RANKS = int(os.environ.get("CONTROL_RANKS", "4"))
FOR_EVER = "1000000"
QUIET_SECONDS = float(os.environ.get("CONTROL_SECONDS", "18"))
ENOUGH_SECONDS = 150.0 + 5 * QUIET_SECONDS
UNDECIDED_SECONDS = 180.0  # what nobody can decide is told after five minutes, unless patience is shortened
AFTERMATH_SECONDS = 6.0  # a job has ended: what would the daemon still say?
VERDICT_SECONDS = 40.0  # the same of a hang that became a crash: it must be told
STRIKE_SECONDS = 8.0  # after its first step, or after it was seen to work: its rhythm is known
SEEN_TO_WORK_SECONDS = 60.0  # a job without a hook that was not seen to work by then will not be
LATER_SECONDS = STRIKE_SECONDS + QUIET_SECONDS
PTRACE_ATTACH, PTRACE_DETACH = 16, 17
# A rank without a hook is found by the variables with which its process was started.
BY_TORCHRUN = (
    "culprit_has_no_hook",
    "rank_0_alone_has_a_hook",
    "one_rank_has_no_hook",
    "agent_is_stopped_and_continued",  # the agent is its parent, and has its store
    "agent_that_has_the_store_is_stopped",
    "one_stands_before_its_hook",  # nothing else tells that it is there
    "one_imports_late",
)
STARTED_OTHERWISE = {"spawned_by_a_script": "spawn", "forked_by_a_notebook": "fork", "started_by_srun": "srun"}
# What `bash -c` does for each rank; its arguments are program and name.
SHELL = (
    'if [ $LOCAL_RANK = 1 ]; then sleep ${CONTROL_SECONDS:-18}; fi; "$0" "$@"; code=$?;'
    " [ $LOCAL_RANK = 0 ] && sleep 5; exit $code"
)
# Each rank in a pid namespace of its own, as an orchestrator's containers are; as root.
IN_CONTAINERS = ("in_containers_of_one_rank_beside_a_shell", "ranks_in_containers_beside_a_shell")
CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
IN_TERMINAL = ("asks_a_person", "breaks_into_pdb", "suspended_in_terminal")


class Runner:
    """Starts situations under one daemon and notes what it says of each."""

    def __init__(self, daemon: DaemonChild, server: jobs.Server | None, folder: Path) -> None:
        self._daemon = daemon
        self._server = server
        self._folder = folder
        self._launches = threading.Lock()
        self._stop = threading.Event()

    def stop(self) -> None:
        """Have every run end soon, with its job."""
        self._stop.set()

    def run(self, control: Control) -> Control:
        """Run it and wait until it has ended and its aftermath is over."""
        began = time.monotonic()
        if self._stop.is_set():
            control.was_cut = True
            return control
        job = self._launch(control, 0)
        steps = self._strikes(control)
        over_at = seen_at = stepping_at = None
        undecided = control.expected is not None and "undecided" in control.expected.causes
        until = began + ENOUGH_SECONDS + UNDECIDED_SECONDS * undecided
        while time.monotonic() < until and not self._stop.wait(0.5):
            self._note(control)
            now = time.monotonic()
            if control.stepped and seen_at is None:
                seen_at = now
            if stepping_at is None and seen_at is not None:
                # Before it was seen to work nothing is told, whatever is done to it.
                ready = control.hooked or control.worked_at is not None or now - seen_at > SEEN_TO_WORK_SECONDS
                stepping_at = now if ready else None
            while steps and stepping_at is not None and now - stepping_at > steps[0][0]:
                job = steps.pop(0)[1](job)
            if over_at is None and not steps and job.exit_code() is not None:
                over_at = now + (VERDICT_SECONDS if control.is_twin else AFTERMATH_SECONDS)
                control.watched_seconds = round(now - (control.worked_at or now), 1)
            if over_at is not None and now > over_at:
                break
            if control.is_twin and control.told_at is not None:
                break
        control.was_cut = self._stop.is_set()
        control.exit_code = job.exit_code()
        control.seconds = round(time.monotonic() - began, 1)
        job.stop()
        return control

    def log(self, control: Control) -> str:
        paths = (self._folder / f"{control.job}.log", self._folder / f"{control.job}-second.log")
        return "\n".join(path.read_text(errors="replace")[-1500:] for path in paths if path.exists())

    def _launch(self, control: Control, restarts: int) -> Running:
        environment = {
            "PYTHONPATH": search_path(),
            "STALLWATCH_DIR": str(self._daemon.rank_directory),
            "STALLWATCH_JOB": control.job,
            **{
                name: os.environ[name]
                for name in ("CONTROL_BACKEND", "CONTROL_HOOK", "CONTROL_GPU", "CONTROL_BESIDE")
                if name in os.environ
            },
            "CONTROL_MARK": str(self._mark(control)),
            **({"CONTROL_SECONDS": FOR_EVER} if control.is_twin else {}),
        }
        situation = "restarts_itself" if control.name in DONE_TO_IT else control.name
        path = next(path for path in (*PROGRAMS, *HANGS, ON_GPUS) if situation in situations_of(path))
        log = self._folder / f"{control.job}.log"
        program = [str(path), situation]
        standalone = ["--standalone", f"--nproc-per-node={RANKS}"]
        if control.name == "elastic":
            # A store that outlives its ranks hands gloo the addresses of the life before.
            separate = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
            return Elastic(program, {**environment, **separate}, self._folder, control.job)
        if control.name in IN_TERMINAL:
            return InTerminal(program, environment, log, standalone)
        if control.name in STARTED_OTHERWISE:
            return StartedOtherwise(program, environment, log, [STARTED_OTHERWISE[control.name]])
        if control.name == "wrapped_by_a_shell":
            shell = ["bash", "-c", SHELL, sys.executable, *program]
            return Torchrun(shell, environment, log, [*standalone, "--no-python"])
        if control.name in IN_CONTAINERS:
            contained = [*CONTAINER, sys.executable, *program]
            return Torchrun(contained, environment, log, [*standalone, "--no-python"])
        if self._server is None or control.name in BY_TORCHRUN:
            return Torchrun(program, environment, log, standalone)
        elastic = {"TORCHELASTIC_RUN_ID": control.job, "TORCHELASTIC_RESTART_COUNT": str(restarts)}
        with self._launches:
            # A rank without a hook is found by its variables.
            shows = not control.hooked
            variables = {**environment, **elastic}
            return Forked(self._server.launch(path, [situation], RANKS, variables, log, shows_environment=shows))

    def _mark(self, control: Control) -> Path:
        """A file that its ranks touch at each step."""
        mark = self._folder / f"{control.job}.mark"
        if not mark.exists():
            mark.touch()
            os.utime(mark, (0, 0))
        return mark

    def _strikes(self, control: Control) -> list[tuple[float, Callable[[Running], Running]]]:
        """What is done to it, and when after its first step."""
        freezer = Freezer(control.job)
        done: Mapping[str, list[tuple[float, Callable[[Running], object]]]] = {
            "terminated": [(STRIKE_SECONDS, lambda job: job.terminate())],
            "preempted": [(STRIKE_SECONDS, lambda job: job.terminate())],
            "preempted_by_usr1": [(STRIKE_SECONDS, lambda job: _signal(job, signal.SIGUSR1))],
            "frozen": [
                (STRIKE_SECONDS, lambda job: freezer.freeze(job.pids)),
                (LATER_SECONDS, lambda job: freezer.thaw()),
            ],
            "restart": [(STRIKE_SECONDS, lambda job: self._restart(control, job))],
            "lives_overlap": [(STRIKE_SECONDS, lambda job: self._launch(control, 1))],
            "debugged": [(STRIKE_SECONDS, lambda job: hold_with_a_debugger(job.pids[1], 12.0))],
            "suspended": [
                (STRIKE_SECONDS, lambda job: _signal(job, signal.SIGSTOP)),
                (LATER_SECONDS, lambda job: _signal(job, signal.SIGCONT)),
            ],
            "suspended_in_terminal": [
                (STRIKE_SECONDS, lambda job: job.type(b"\x1a")),
                (LATER_SECONDS, lambda job: job.type(b"fg; echo ended=$?\n")),
            ],
            "asks_a_person": [(LATER_SECONDS, lambda job: job.type(b"y\n"))],
            "breaks_into_pdb": [(LATER_SECONDS, lambda job: job.type(b"c\n"))],
            "elastic": [
                (STRIKE_SECONDS, lambda job: job.join()),  # type: ignore[attr-defined]
                (STRIKE_SECONDS + 45, lambda job: job.leave()),  # type: ignore[attr-defined]
            ],
        }

        def then(strike: Callable[[Running], object]) -> Callable[[Running], Running]:
            def act(job: Running) -> Running:
                other = strike(job)
                return other if isinstance(other, Forked | Torchrun) else job

            return act

        return [(seconds, then(strike)) for seconds, strike in done.get(control.name, [])]

    def _restart(self, control: Control, job: Running) -> Running:
        # As torchrun restarts after a membership change: SIGTERM to all, a new life some seconds later.
        job.terminate()
        until = time.monotonic() + 40
        while job.exit_code() is None and time.monotonic() < until:
            time.sleep(0.2)
        time.sleep(2)
        return self._launch(control, 1)

    def _note(self, control: Control) -> None:
        self._daemon.check()
        try:
            incidents = self._daemon.client.incidents().incidents
            ranks = () if control.worked_at is not None else self._daemon.client.ranks().ranks
        except DaemonUnreachable:
            return
        ranks = tuple(rank for rank in ranks if rank.training_job == control.job)
        # Without a hook that its ranks are seen is all there is at first.
        control.stepped |= any((rank.step or 0) > 0 or not control.hooked for rank in ranks)
        works = any(NOT_SEEN_TO_WORK not in rank.limit_reason for rank in ranks)
        if control.stepped and control.worked_at is None and (control.hooked or works):
            control.worked_at = time.monotonic()
        mine = [incident for incident in incidents if incident.training_job == control.job]
        said = (_said(one) for one in mine if one.verdicts)
        if control.decided_at is None and any(control.is_decided_by(one.verdicts[0]) for one in mine if one.verdicts):
            control.decided_at = time.time()
            control.stood_at = self._mark(control).stat().st_mtime or None
        control.thought = tuple(dict.fromkeys((*control.thought, *said)))
        for one in mine:
            if one.severity == "none" and one.tell_at is not None:
                control.promised_at = datetime.fromisoformat(one.tell_at).timestamp()
                control.reason = one.tell_reason
            if one.severity != "none" and control.told_at is None:
                control.told_at = time.time()
                control.verdict = one.verdicts[0] if one.verdicts else None
        told = (_said(one) for one in mine if one.severity != "none")
        control.told = tuple(dict.fromkeys((*control.told, *told)))


def _signal(job: Running, number: int) -> None:
    for pid in job.pids:
        os.kill(pid, number)


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
    if not incident.verdicts:
        return f"{incident.severity}: {'; '.join(event.what for event in incident.events[:1])}"
    verdict = incident.verdicts[0]
    return f"{incident.severity}: {verdict.cause} {list(verdict.culprits)} {verdict.where or ''} ({verdict.confidence})"
