"""Situations that are no hang, beside a real daemon that must tell nobody.

    python tests/controls/controls.py [--twins] [--backend nccl] [--no-hook] [--runs 3] [--name checkpoint]
                                      [--at-once 3] [--launcher torchrun] [--lane 0/4] [--clock-jumps]
                                      [--json controls.json] [--keep FOLDER] [--list]

Jobs are forked (tests/bench/jobs.py) or started by torchrun; several run at once under one daemon in its default
configuration. Exit code 0 when nobody was told and every job ended well. What was thought, and told to nobody, is
printed. `--twins` runs the same situations without an end: each must be told within ten seconds of the moment that was
shown (`tell_at`). `--hangs` runs real hangs: each must be told so, and rightly. `--short` shortens every patience to
half a minute: hours are not waited for. `--clock-jumps` sets the daemon's wall clock an hour ahead and two hours back
while it watches.
"""

import argparse
import ast
import contextlib
import ctypes
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import msgspec

# Started as a script, perhaps where nothing is installed: neither root is on the path yet.
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "monitor"))

from stallwatch.demo.daemon_child import DaemonChild
from stallwatch.outputs.client import DaemonUnreachable
from stallwatch.outputs.documents import IncidentDocument
from tests.bench import jobs
from tests.controls.freezer import Freezer
from tests.controls.launching import Elastic, Forked, InTerminal, Running, Torchrun
from tests.controls.outcome import Control, Expected, line, table

PROGRAMS = tuple(
    Path(__file__).with_name(f"{name}.py")
    for name in (
        "situations",
        "one_rank_works",
        "rhythms",
        "starts_and_ends",
        "people",
        "ends_by_itself",
        "other_threads",
        "waits_for_threads",
    )
)
HANGS = tuple(Path(__file__).with_name(f"{name}.py") for name in ("hangs_of_one", "hangs_together"))
ON_GPUS = Path(__file__).with_name("on_gpus.py")  # both kinds; with NCCL only
BUSY_GPU = Path(__file__).parents[1] / "programs/one_busy_gpu"
SOURCE = str(Path(__file__).parents[2] / "monitor")
RANKS = 4
FOR_EVER = "1000000"
SHORT_PATIENCE = "30"  # seconds
_PATIENT = ("sleep", "compute", "first_use", "storage", "network", "data", "compile", "import", "tracker",
            "child", "timeout", "request", "idle", "undecided", "waiting", "start")  # fmt: skip
# The share is of torch's own time-out: half an hour with gloo.
SHORT = {f"{kind}_seconds": SHORT_PATIENCE for kind in _PATIENT} | {"waiting_share": "0.017"}
ENOUGH_SECONDS = 240.0
AFTERMATH_SECONDS = 6.0  # a job has ended: what would the daemon still say?
STRIKE_SECONDS = 8.0  # after its first step: its rhythm is known
LATER_SECONDS = STRIKE_SECONDS + float(os.environ.get("CONTROL_SECONDS", "18"))
PTRACE_ATTACH, PTRACE_DETACH = 16, 17
# Done from outside to a job that only trains.
DONE_TO_IT = {
    "restart": "SIGTERM to all ranks, and a new life some seconds later",
    "terminated": "SIGTERM to all ranks, and no new life",
    "elastic": "N15: a second node joins, and leaves again; torchrun restarts the ranks each time",
}
REGISTER = ("situation", "one_rank_waits", "every_rank_waits", "stands", "hang")  # decorators of common.py
STANDS_HERE = "# here"
STANDS = 2  # the rank of `stands`
IN_TERMINAL = ("asks_a_person", "breaks_into_pdb", "suspended_in_terminal")
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
            return control
        job = self._launch(control, 0)
        steps = self._strikes(control)
        over_at = stepping_at = None
        while time.monotonic() - began < ENOUGH_SECONDS and not self._stop.wait(0.5):
            self._note(control)
            now = time.monotonic()
            if stepping_at is None and control.stepped:
                stepping_at = now
            while steps and stepping_at is not None and now - stepping_at > steps[0][0]:
                job = steps.pop(0)[1](job)
            if over_at is None and not steps and job.exit_code() is not None:
                over_at = now + AFTERMATH_SECONDS
            if over_at is not None and now > over_at:
                break
            if control.is_twin and control.told_at is not None:
                break
        control.exit_code = job.exit_code()
        control.seconds = round(time.monotonic() - began, 1)
        job.stop()
        return control

    def log(self, control: Control) -> str:
        paths = (self._folder / f"{control.job}.log", self._folder / f"{control.job}-second.log")
        return "\n".join(path.read_text(errors="replace")[-1500:] for path in paths if path.exists())

    def _launch(self, control: Control, restarts: int) -> Running:
        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, (SOURCE, os.environ.get("PYTHONPATH", "")))),
            "STALLWATCH_DIR": str(self._daemon.rank_directory),
            "STALLWATCH_JOB": control.job,
            **{
                name: os.environ[name]
                for name in ("CONTROL_BACKEND", "CONTROL_HOOK", "CONTROL_GPU")
                if name in os.environ
            },
            **({"CONTROL_SECONDS": FOR_EVER} if control.is_twin else {}),
        }
        situation = "restarts_itself" if control.name in DONE_TO_IT else control.name
        path = next(path for path in (*PROGRAMS, *HANGS, ON_GPUS) if situation in _situations(path))
        log = self._folder / f"{control.job}.log"
        program = [str(path), situation]
        standalone = ["--standalone", f"--nproc-per-node={RANKS}"]
        if control.name == "elastic":
            # A store that outlives its ranks hands gloo the addresses of the life before.
            separate = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
            return Elastic(program, {**environment, **separate}, self._folder, control.job)
        if control.name in IN_TERMINAL:
            return InTerminal(program, environment, log, standalone)
        if self._server is None:
            return Torchrun(program, environment, log, standalone)
        elastic = {"TORCHELASTIC_RUN_ID": control.job, "TORCHELASTIC_RESTART_COUNT": str(restarts)}
        with self._launches:
            return Forked(self._server.launch(path, [situation], RANKS, {**environment, **elastic}, log))

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
            ranks = () if control.stepped else self._daemon.client.ranks().ranks
        except DaemonUnreachable:
            return
        hookless = os.environ.get("CONTROL_HOOK") == "off"  # that its ranks are seen is all there is
        control.stepped |= any(r.training_job == control.job and ((r.step or 0) > 0 or hookless) for r in ranks)
        mine = [incident for incident in incidents if incident.training_job == control.job]
        said = (_said(one) for one in mine if one.verdicts)
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


def _situations(program: Path) -> dict[str, str]:
    """Names and first lines of a program's situations, without importing torch."""
    return {name: (ast.get_docstring(node) or "").splitlines()[0] for name, node in _registered(program).items()}


def _registered(program: Path) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(program.read_text(encoding="utf-8"))
    return {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(one).split("(")[0] in REGISTER for one in node.decorator_list)
    }


def hangs(*, on_gpus: bool = False) -> dict[str, Expected]:
    """Every hang, and its truth: the keywords of its decorator."""
    truths = {}
    for program in (*HANGS, ON_GPUS) if on_gpus else HANGS:
        text = program.read_text(encoding="utf-8").splitlines()
        for name, node in _registered(program).items():
            decorator = node.decorator_list[0]
            if not isinstance(decorator, ast.Call):
                continue  # a situation
            said = {one.arg: ast.literal_eval(one.value) for one in decorator.keywords if one.arg}
            lines = [n for n in range(node.lineno, (node.end_lineno or 0) + 1) if text[n - 1].endswith(STANDS_HERE)]
            truth = {"causes": ("not_entered",), "culprits": (STANDS,), "lines": tuple(lines), **said}
            truths[name] = Expected(**truth)
    return truths


def situations(*, on_gpus: bool = False) -> dict[str, str]:
    """Every situation, with what it imitates."""
    programs = (*PROGRAMS, ON_GPUS) if on_gpus else PROGRAMS
    of_programs = {name: what for path in programs for name, what in _situations(path).items()}
    of_programs = {name: what for name, what in of_programs.items() if name not in hangs(on_gpus=on_gpus)}
    return {name: what for name, what in of_programs.items() if name != "restarts_itself"} | DONE_TO_IT


def main() -> int:
    options = _options()
    truths, quiet_ones = hangs(on_gpus=options.backend == "nccl"), situations(on_gpus=options.backend == "nccl")
    if options.list:
        print("\n".join(f"{name:32} {what}" for name, what in quiet_ones.items()))
        print("\n".join(f"{name:32} {truth.causes[0]} {list(truth.culprits)}" for name, truth in truths.items()))
        return 0
    os.environ["CONTROL_BACKEND"] = options.backend
    if options.busy_gpu:
        os.environ["CONTROL_GPU"] = "1"
    if options.no_hook:
        os.environ["CONTROL_HOOK"] = "off"
        options.launcher = "torchrun"  # a rank is found by the variables with which its process was started
    lane, lanes = map(int, options.lane.split("/"))
    wanted = [
        Control(name, run, f"{name}-{run}", is_twin=options.twins or name in truths, expected=truths.get(name))
        for run in range(options.runs)
        for name in options.name or (truths if options.hangs else quiet_ones)
    ][lane::lanes]
    with tempfile.TemporaryDirectory(prefix="stallwatch-controls-") as folder, _server(options.launcher) as server:
        environment = _environment(Path(folder), jumps=options.clock_jumps, gpu=options.busy_gpu)
        daemon = DaemonChild(Path(folder), environment, {"tell": SHORT} if options.short else None)
        daemon.start()
        try:
            runner = Runner(daemon, server, Path(folder))
            # `timeout` ends us so: no job of ours may outlive us.
            signal.signal(signal.SIGTERM, lambda *_: runner.stop())
            with ThreadPoolExecutor(options.at_once) as pool:
                for control in pool.map(runner.run, wanted):
                    print(line(control), flush=True)
                    if not control.ended_well and not control.is_twin:
                        print(runner.log(control), flush=True)
        finally:
            daemon.stop()
            if options.keep:
                shutil.copytree(Path(folder) / "state/incidents", options.keep, dirs_exist_ok=True)
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(wanted)))
    print(table(wanted))
    quiet = sum(control.right for control in wanted)
    print(f"right in {quiet} of {len(wanted)} runs; load {os.getloadavg()[0]:.1f}")
    return 0 if quiet == len(wanted) else 1


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
    parser.add_argument("--lane", default="0/1", help="which part of the runs: I/N")
    parser.add_argument("--twins", action="store_true", help="the same without an end: each must be told")
    parser.add_argument("--hangs", action="store_true", help="real hangs: each must be told, and rightly")
    parser.add_argument("--short", action="store_true", help="every patience is shortened, for twins of hours")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--no-hook", action="store_true", help="ranks do not attach")
    parser.add_argument("--clock-jumps", action="store_true")
    parser.add_argument("--busy-gpu", action="store_true", help="NVML says that ranks share a GPU at 100 %%")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for the bundles of what was looked at")
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
