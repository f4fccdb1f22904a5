"""Ways to end a job, while it trains and while it stands: who is told, and what is kept.

    python -m tests.controls.endings [--way everything_is_killed] [--before trains|sleeps|stands] [--no-hook] [--runs 3]
                                     [--at-once 3] [--lane 0/4] [--seconds 480] [--lines FILE] [--keep FOLDER] [--list]

Jobs of torchrun (two in a person's terminal) under one daemon in its default configuration. Before it is ended a job
`trains`, `sleeps` (a hang with patience: nobody is told yet) or `stands` (a hang of which people were told); without a
hook it is seen to work for longer first. Of an end from outside nobody may be told, whatever went before; what was seen
of a standstill is kept and listed, its incident is `ended`. Of one rank that is killed, and of the launcher's clean-up
after it, people are told. Many lanes side by side: tests/bench/lanes.py. Exit code 0 when all was so.
"""

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

# Started as a script, perhaps where nothing is installed: neither root is on the path yet.
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "monitor"))

from stallwatch.demo.daemon_child import DaemonChild
from stallwatch.outputs.client import DaemonUnreachable
from stallwatch.outputs.documents import IncidentDocument
from tests.bench import lanes
from tests.controls.launching import InTerminal, Torchrun, search_path

PROGRAM = Path(__file__).with_name("ended.py")
RANKS = 4
BEFORE = ("trains", "sleeps", "stands")
SEEN_SECONDS = 20.0  # after its first step: without a hook, how long it is seen to work
READY_SECONDS = 240.0
GONE_SECONDS = 45.0  # torchrun gives its ranks half a minute
AFTERMATH_SECONDS = 25.0
LOOKS_SECONDS = 60.0  # longer, where a crowded machine has not come to a verdict by then
GRACE_SECONDS = 5.0
IN_TURN_SECONDS = 3.0


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _everything(job: Torchrun, number: int) -> None:
    _signal([job.agent_pid, *job.pids], number)


def _agent_first(job: Torchrun) -> None:
    ranks = job.pids  # known by their parent
    _signal([job.agent_pid], signal.SIGKILL)
    time.sleep(1)
    _signal(ranks, signal.SIGKILL)


def _kill_after_a_grace(job: Torchrun) -> None:
    everybody = [job.agent_pid, *job.pids]
    _signal(everybody, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    _signal(everybody, signal.SIGKILL)


def _container_stops(job: Torchrun) -> None:
    """Its first process is asked; the others are killed with it when the grace is over, sooner than torchrun's own."""
    everybody = [job.agent_pid, *job.pids]
    _signal([job.agent_pid], signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    _signal(everybody, signal.SIGKILL)


def _one_after_the_other(job: Torchrun) -> None:
    for pid in job.pids:
        _signal([pid], signal.SIGTERM)
        time.sleep(IN_TURN_SECONDS)


def _control_c_twice(job: Torchrun) -> None:
    for _ in range(2):
        job.type(b"\x03")
        time.sleep(0.5)


class Way(NamedTuple):
    what: str
    strike: Callable[[Torchrun], None]
    told: bool = False
    in_terminal: bool = False
    ignores: str = ""  # the signal that ranks ignore
    in_turn: bool = False  # ranks that are asked to end leave seconds apart
    goes_on: bool = False  # its ranks
    options: tuple[str, ...] = ()  # of torchrun


WAYS = {
    "launcher_is_terminated": Way("SIGTERM to torchrun", lambda job: _signal([job.agent_pid], signal.SIGTERM)),
    "launcher_quits": Way("SIGQUIT to torchrun", lambda job: _signal([job.agent_pid], signal.SIGQUIT)),
    "control_c": Way("Ctrl-C in its terminal", lambda job: job.type(b"\x03"), in_terminal=True),
    "terminal_closes": Way("SIGHUP: its terminal is closed", lambda job: job.hang_up(), in_terminal=True),
    "control_c_twice": Way("Ctrl-C, and once more", _control_c_twice, in_terminal=True),
    "everything_is_hung_up": Way("SIGHUP to all, as sshd", lambda job: _everything(job, signal.SIGHUP)),
    "everything_is_terminated": Way("SIGTERM to all, as scancel", lambda job: _everything(job, signal.SIGTERM)),
    "everything_is_interrupted": Way("SIGINT to all", lambda job: _everything(job, signal.SIGINT)),
    "everything_is_killed": Way("SIGKILL to all, as a pod's end", lambda job: _everything(job, signal.SIGKILL)),
    "ranks_are_terminated": Way("SIGTERM to all ranks", lambda job: _signal(job.pids, signal.SIGTERM)),
    "ranks_are_killed": Way("SIGKILL to all ranks", lambda job: _signal(job.pids, signal.SIGKILL)),
    "ranks_are_warned": Way("SIGUSR1 to ranks without a handler", lambda job: _signal(job.pids, signal.SIGUSR1)),
    "launcher_is_killed_first": Way("SIGKILL to torchrun, a second later to its ranks", _agent_first),
    "grace_is_over": Way("SIGTERM, which ranks ignore, then SIGKILL", _kill_after_a_grace, ignores="SIGTERM"),
    "container_is_stopped": Way(
        "SIGTERM to torchrun, whose ranks ignore it, and SIGKILL to all", _container_stops, ignores="SIGTERM"
    ),
    "ranks_leave_in_turn": Way(
        "SIGTERM to all; each rank saves, and leaves with exit code 0 seconds after the last",
        lambda job: _everything(job, signal.SIGTERM),
        in_turn=True,
    ),
    "ranks_are_asked_in_turn": Way("SIGTERM to one rank after the other, seconds apart", _one_after_the_other),
    "launcher_is_killed": Way(
        "SIGKILL to torchrun alone; its ranks go on",
        lambda job: _signal([job.agent_pid], signal.SIGKILL),
        goes_on=True,
    ),
    "one_rank_is_killed": Way(
        "SIGKILL to rank 1; torchrun ends the others", lambda job: _signal(job.pids[1:2], signal.SIGKILL), told=True
    ),
    "one_rank_is_killed_and_all_restart": Way(
        "SIGKILL to rank 1; torchrun starts all anew",
        lambda job: _signal(job.pids[1:2], signal.SIGKILL),
        told=True,
        options=("--max-restarts=1",),
    ),
    "one_rank_is_terminated": Way(
        "SIGTERM to rank 1; torchrun ends the others by SIGTERM, too: all are gone alike",
        lambda job: _signal(job.pids[1:2], signal.SIGTERM),
    ),
}


class Ending(msgspec.Struct):
    way: str
    before: str
    run: int
    seconds: float = 0.0
    said: tuple[str, ...] = ()  # of each incident that is left
    wrong: str = ""
    was_cut: bool = False

    @property
    def job(self) -> str:
        return f"{self.way}-{self.before}-{self.run}"

    @property
    def line(self) -> str:
        outcome = f"WRONG: {self.wrong}" if self.wrong else "right"
        said = "; ".join(self.said)
        return f"{self.way:26} {self.before:6} run {self.run + 1}, {self.seconds:5.1f} s: {outcome} | {said}"


class Runner:
    def __init__(self, daemon: DaemonChild, folder: Path) -> None:
        self._daemon = daemon
        self._folder = folder
        self.stop = threading.Event()
        self._stepping_since: dict[str, float] = {}

    def run(self, ending: Ending) -> Ending:
        """Start it, wait until it is as it should be, end it, and see what is said."""
        began, way = time.monotonic(), WAYS[ending.way]
        if self.stop.is_set():
            ending.was_cut = True
            return ending
        job = self._launch(ending, way)
        try:
            ready = self._until(lambda: self._is_ready(ending), READY_SECONDS)
            told_before = any(one.severity != "none" for one in self._incidents(ending))
            ranks = [psutil.Process(pid) for pid in job.pids]
            if ready and len(ranks) == RANKS:
                way.strike(job)
                self._until(lambda: way.goes_on or not any(_lives(rank) for rank in ranks), GONE_SECONDS)
                self._until(lambda: False, AFTERMATH_SECONDS)
                self._until(lambda: all(one.verdicts for one in self._incidents(ending)), LOOKS_SECONDS)
                ending.wrong = self._wrong(ending, way, told_before=told_before)
                if way.goes_on and not all(_lives(rank) for rank in ranks):
                    ending.wrong = "its ranks did not go on"
            else:
                ending.wrong = f"it never was so far: {len(ranks)} ranks"
            ending.said = tuple(_said(one) for one in self._incidents(ending))
        finally:
            job.stop()
        ending.was_cut = self.stop.is_set()
        ending.seconds = round(time.monotonic() - began, 1)
        return ending

    def _launch(self, ending: Ending, way: Way) -> Torchrun:
        environment = {
            "PYTHONPATH": search_path(),
            "STALLWATCH_DIR": str(self._daemon.rank_directory),
            "STALLWATCH_JOB": ending.job,
            # A store that outlives its ranks hands gloo the addresses of the life before.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "CONTROL_MARK": str(self._mark(ending)),
            **({"ENDED_IGNORES": way.ignores} if way.ignores else {}),
            **({"ENDED_IN_TURN": str(IN_TURN_SECONDS)} if way.in_turn else {}),
        }
        self._mark(ending).touch()
        os.utime(self._mark(ending), (0, 0))
        kind = InTerminal if way.in_terminal else Torchrun
        options = ["--standalone", f"--nproc-per-node={RANKS}", *way.options]
        return kind([str(PROGRAM), ending.before], environment, self._folder / f"{ending.job}.log", options)

    def _is_ready(self, ending: Ending) -> bool:
        if ending.before == "trains":
            with contextlib.suppress(DaemonUnreachable):
                mine = [rank for rank in self._daemon.client.ranks().ranks if rank.training_job == ending.job]
                if os.environ.get("CONTROL_HOOK") == "off":
                    return len(mine) == RANKS and self._has_stepped_for(ending, SEEN_SECONDS)
                return len(mine) == RANKS and min(rank.step or 0 for rank in mine) > 150
            return False
        decided = [one for one in self._incidents(ending) if one.verdicts and one.verdicts[0].culprits]
        told = ending.before == "stands" and not WAYS[ending.way].in_terminal  # who sits before it is not told
        return any((one.severity != "none") == told for one in decided)

    def _mark(self, ending: Ending) -> Path:
        """A file that its ranks touch at each step."""
        return self._folder / f"{ending.job}.mark"

    def _has_stepped_for(self, ending: Ending, seconds: float) -> bool:
        if self._mark(ending).stat().st_mtime == 0:
            return False
        return time.monotonic() - self._stepping_since.setdefault(ending.job, time.monotonic()) > seconds

    def _incidents(self, ending: Ending) -> list[IncidentDocument]:
        self._daemon.check()
        with contextlib.suppress(DaemonUnreachable):
            return [one for one in self._daemon.client.incidents().incidents if one.training_job == ending.job]
        return []

    def _wrong(self, ending: Ending, way: Way, *, told_before: bool) -> str:
        incidents = self._incidents(ending)
        told = [one for one in incidents if one.severity != "none"]
        stands_again = way.options and ending.before != "trains"  # its new life does as the first
        still = [one for one in incidents if one.state in ("open", "suspect") and one.verdicts]  # it starts slowly
        if still and not stands_again and not way.goes_on:
            return "its incident is still open"
        if any(one.state == "resolved" for one in incidents):
            return "resolved, though it is dead"
        if way.told and not told:
            return "nobody was told"
        if way.told and not told_before and told[0].verdicts[0].culprits != (1,):
            return f"not rank 1: {_said(told[0])}"
        if not way.told and len(told) > told_before:
            return "told of an end from outside"
        if ending.before == "trains" or way.goes_on:
            return ""
        kept = [one for one in incidents if one.verdicts and one.verdicts[0].culprits == (2,)]
        if not kept and not way.told:
            return "what was seen of the standstill is not listed"
        stacks = [path for one in incidents for path in Path(one.bundle).glob("ranks/*/stacks*.json")]
        return "" if stacks else "its evidence is gone"

    def _until(self, true: Callable[[], bool], seconds: float) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.stop.wait(0.5):
            if true():
                return True
        return False


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _said(incident: IncidentDocument) -> str:
    verdict = incident.verdicts[0] if incident.verdicts else None
    cause = f"{verdict.cause} {list(verdict.culprits)}" if verdict else "no verdict"
    return f"{incident.state}, {incident.severity}: {cause}"


def main() -> int:
    options = _options()
    if options.list:
        print("\n".join(f"{name:26} {way.what}" for name, way in WAYS.items()))
        return 0
    if options.no_hook:
        os.environ["CONTROL_HOOK"] = "off"
    endings = [
        Ending(way, before, run)
        for run in range(options.runs)
        for before in options.before or BEFORE
        for way in options.way or WAYS
    ]
    wanted = lanes.part_of(endings, options.lane)
    lines = lanes.Lines(options.lines, [f"{one.way} {one.before}" for one in wanted])
    with tempfile.TemporaryDirectory(prefix="stallwatch-endings-") as name:
        daemon = DaemonChild(Path(name), os.environ)
        daemon.start()
        runner = Runner(daemon, Path(name))
        signal.signal(signal.SIGTERM, lambda *_: runner.stop.set())
        if options.seconds < float("inf"):
            end = threading.Timer(options.seconds, runner.stop.set)
            end.daemon = True
            end.start()
        try:
            with ThreadPoolExecutor(options.at_once) as pool:
                for one in pool.map(runner.run, wanted):
                    print(one.line, flush=True)
                    if not one.was_cut:
                        name_ = f"{one.way} {one.before}"
                        lines.add(name_, right=not one.wrong, said=one.line, seconds_to_verdict=None, detail=one)
        finally:
            daemon.stop()
            if options.keep:
                shutil.copytree(Path(name) / "state/incidents", options.keep, dirs_exist_ok=True)
    right = sum(not one.wrong and not one.was_cut for one in wanted)
    print(f"right in {right} of {len(wanted)} runs; load {os.getloadavg()[0]:.1f}")
    return 0 if right == len(wanted) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", action="append", default=[], choices=tuple(WAYS))
    parser.add_argument("--before", action="append", default=[], choices=BEFORE)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--no-hook", action="store_true", help="ranks do not attach")
    parser.add_argument("--keep", type=Path, help="folder for the bundles of what was looked at")
    parser.add_argument("--list", action="store_true")
    lanes.add_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
