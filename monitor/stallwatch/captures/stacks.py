"""Python stacks by py-spy: first without pausing anything, then, where that is safe, with a pause of milliseconds."""

import contextlib
import functools
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stallwatch.captures import process
from stallwatch.captures.folder import Folder, NotCaptured
from stallwatch.captures.held import Held
from stallwatch.captures.release import end_pause, let_go_on
from stallwatch.config_sections import CaptureSection
from stallwatch.formats.outside_text import text_of
from stallwatch.formats.tolerant import decode_json
from stallwatch.formats.unreadable import Unreadable
from stallwatch.model.evidence import ChildProcess
from stallwatch.model.process import ENDED, STOPPED
from stallwatch.model.snapshot import RankSample
from stallwatch.node.procfs import ProcessDirectory
from stallwatch.node.run_once import Ended, RunOnce

_OUTPUT_LIMIT_BYTES = 64 << 20
# A non-blocking look reads memory that moves under it: what it misses is often there a moment later.
_TRIES = 3
_BETWEEN_TRIES_SECONDS = 0.05
_MOST_CHILDREN = 8
# A tracer's stop ends these with EINTR, handler or not (signal(7)); seen of semop and io_getevents. What a program
# that does not ask again then takes for an answer is no matter for a guest. epoll_wait, which every back end's threads
# call in a loop, is not among them.
_INTERRUPTED = re.compile(r"semtimedop|^read_events|^do_sigtimedwait")
# py-spy reads symbols of libraries: more at once than cores would only make each one slower.
_AT_ONCE = threading.Semaphore(max(2, min(8, os.cpu_count() or 2)))

_NEEDS_PTRACE = (
    "the reader needs CAP_SYS_PTRACE: root, AmbientCapabilities=CAP_SYS_PTRACE in the unit, or "
    "`--cap-add SYS_PTRACE` for a container; kernel.yama.ptrace_scope=1 lets only a parent look"
)
# What py-spy prints, and what it means (py-spy 0.4; the last two are the same message for two causes).
_MEANINGS = (
    (("Permission Denied", "Permission denied", "Operation not permitted", "EPERM"), _NEEDS_PTRACE),
    (("Failed to suspend process",), "the process could not be paused: it is stopped, traced or in the kernel"),
    (
        ("Failed to find a python", "Failed to find python", "Failed to get python version"),
        "it is not a Python process",
    ),
    (("Failed to get stack traces", "Failed to get thread", "Bad address"), "its memory changed while it was read"),
)
_NO_NAME = "get process executable name"


def py_spy(configured: str) -> str:
    """Return py-spy's path: as the privileged side's own configuration says, else the one of this installation; never
    one of PATH, for it runs with our rights. Raise NotCaptured when there is none."""
    found = configured or _installed()
    if not os.path.isabs(found):
        raise NotCaptured(f"capture.py_spy is no absolute path ({found})", "Give the whole path.")
    if not os.access(found, os.X_OK):
        raise NotCaptured(f"py-spy is not there ({found})", "Install stallwatch[daemon] or set capture.py_spy.")
    return found


@functools.cache
def _installed() -> str:
    """Beside our interpreter; else where the distribution that we would import has put it (a user's or a system's
    Python)."""
    beside = Path(sys.executable).parent / "py-spy"
    if not beside.exists():
        # Here: it takes a seventh of the time in which a look's child starts.
        from importlib.metadata import PackageNotFoundError, distribution

        with contextlib.suppress(PackageNotFoundError):
            for file in distribution("py-spy").files or ():
                if file.name == "py-spy":
                    return os.path.normpath(file.locate())
    return str(beside)


_WAYS = {False: ("without a pause", "without a pause"), True: ("with a pause", "with a pause of milliseconds")}


class PySpies:
    """Those under way at one rank; `kill` ends them, from any thread."""

    def __init__(self, section: CaptureSection) -> None:
        self._section = section
        self._running: set[RunOnce] = set()

    @contextlib.contextmanager
    def started(self, *arguments: str, limit_bytes: int, lends: Sequence[int] = ()) -> Iterator[RunOnce]:
        """One that is ended with the body. Raise NotCaptured when it cannot be started."""
        command = [py_spy(self._section.py_spy), *arguments]
        try:
            running = RunOnce(command, leads_group=False, limit_bytes=limit_bytes, lends=lends)
        except OSError as error:
            raise NotCaptured(f"py-spy cannot be started: {error.strerror}") from error
        self._running.add(running)
        try:
            yield running
        finally:
            self._running.discard(running)
            running.end()

    def kill(self) -> None:
        """Kill every py-spy that runs."""
        for running in list(self._running):
            running.kill()


def whole(ended: Ended | None, seconds: float, limit_bytes: int) -> Ended:
    """Given what came of a py-spy within its time and its room, return it. Raise NotCaptured when that is nothing."""
    if ended is None:
        raise NotCaptured(f"py-spy did not answer within {seconds:.0f} s")
    if ended.said_too_much:
        raise NotCaptured(f"py-spy printed more than the {limit_bytes >> 20} MiB that are read")
    return ended


class StackCapture:
    """Takes the stacks of one rank and of the Python children that it may wait for."""

    def __init__(self, sample: RankSample, folder: Folder, section: CaptureSection, held: Held) -> None:
        """`held` is told of this rank while it is paused."""
        self._sample = sample
        self._folder = folder
        self._section = section
        self._held = held
        self._py_spies = PySpies(section)
        self._pausing: RunOnce | None = None
        self.answered = False
        self.frames: list[Any] = []  # the decoded stacks, for the source lines

    def capture(self, children: tuple[ChildProcess, ...]) -> None:
        """Keep the stacks of the process, whatever py-spy's failure was, and those of its children.

        Without a pause, which tells something at once, and with one, which tells more and takes its place. At a later
        look, for which a verdict waits, with one first: once that has answered the other adds nothing.
        """
        ways = (False, True) if self._section.pause_for_stacks else (False,)
        failures: dict[bool, NotCaptured] = {}
        for pauses in ways if self._folder.look == 1 else ways[::-1]:
            asked_ns = time.monotonic_ns()
            try:
                self._keep("stacks.json", self._look(pauses=pauses))
            except NotCaptured as error:
                failures[pauses] = error
                self._folder.note("stacks", asked_ns, False, f"{_WAYS[pauses][0]}: {error}. {error.help}")
                continue
            self._folder.note("stacks", asked_ns, True, _WAYS[pauses][1])
            if pauses:
                break
        failure = failures.get(False) or failures.get(True)
        if not self.answered and failure is not None:
            body = {"error": str(failure), "help": failure.help, "pid": self._sample.pid}
            self._folder.write_json("stacks.error.json", body)
        self._capture_children(children)

    def _look(self, *, pauses: bool) -> bytes:
        pid = self._sample.pid
        return self._look_with_pause(pid, self._sample.start_ticks) if pauses else self._look_without_pause(pid)

    def keep_of_hook(self, data: bytes) -> None:
        """Keep what the rank's own hook saw, where nobody else may look. Raise NotCaptured when it is no stack."""
        try:
            threads = decode_json(data)
        except Unreadable as error:
            raise NotCaptured(f"its hook answered no stacks: {error}") from error
        if not isinstance(threads, list) or not threads:
            raise NotCaptured("its hook saw no thread")
        self._keep("stacks.json", data)
        self._folder.remove("stacks.error.json")

    def _capture_children(self, children: tuple[ChildProcess, ...]) -> None:
        """Those that stand still for a reason first: a loader's worker in the kernel tells more than an idle one."""
        python = [child for child in children if child.state not in ENDED and process.is_python(child.pid)]
        python.sort(key=lambda child: (child.state not in "DTt", child.pid))
        for child in python[:_MOST_CHILDREN]:
            with self._folder.attempt(f"stacks.child-{child.pid}"):
                self._folder.write(f"stacks.child-{child.pid}.json", self._look_without_pause(child.pid))

    def _keep(self, name: str, data: bytes) -> None:
        self._folder.write(name, data)
        self.frames = [thread for thread in decode_json(data) if isinstance(thread, dict)]
        self.answered = True

    def _look_without_pause(self, pid: int) -> bytes:
        for left in reversed(range(_TRIES)):
            try:
                return self._run(pid, "--nonblocking")
            except NotCaptured as error:
                if not left or "changed while" not in str(error):
                    raise
            time.sleep(_BETWEEN_TRIES_SECONDS)
        raise AssertionError("the last try returns or raises")

    def _look_with_pause(self, pid: int, start_ticks: int) -> bytes:
        """Never in D state, where py-spy would wait for ever, and never when somebody else has stopped it."""
        try:
            _check_pausable(pid, start_ticks)
        except ProcessLookupError as error:
            raise NotCaptured(f"process {pid} has ended") from error
        with self._held.paused(pid, start_ticks):
            return self._run(pid, pauses=start_ticks)

    def abandon(self) -> None:
        """End what is under way and leave the rank running; called when the capture itself has to end."""
        pausing = self._pausing
        if pausing is not None:
            end_pause(self._sample.pid, self._sample.start_ticks, pausing.pid, pausing.kill)
        self._py_spies.kill()

    def _run(self, pid: int, *flags: str, pauses: int | None = None) -> bytes:
        """`pauses`: the start ticks of a process that py-spy is to pause."""
        seconds = self._section.stack_seconds
        arguments = ("dump", "--json", "--pid", str(_readable(pid)), *flags)
        with _AT_ONCE, self._py_spies.started(*arguments, limit_bytes=_OUTPUT_LIMIT_BYTES) as running:
            self._pausing = None if pauses is None else running
            try:
                running.wait(seconds)
                ended = running.poll()
                if pauses is not None and ended is None:
                    self._said_released(end_pause(pid, pauses, running.pid, running.kill))
            finally:
                self._pausing = None
        if pauses is not None and ended is not None and ended.code < 0:  # killed, in the middle for all we know
            self._said_released(let_go_on(pid, pauses))
        ended = whole(ended, seconds, _OUTPUT_LIMIT_BYTES)
        if ended.code != 0:
            raise explain_failure(text_of(ended.errors), pid)
        stdout = ended.output
        try:
            threads = decode_json(stdout)
        except Unreadable as error:
            raise NotCaptured(f"py-spy printed no stacks: {error}") from error
        if not threads:
            raise NotCaptured("py-spy saw no Python thread: the interpreter is starting or ending")
        return stdout

    def _said_released(self, sent: bool) -> None:
        if sent:
            said = f"py-spy left {self._sample.pid} stopped; SIGCONT sent"
            self._folder.note("release", time.monotonic_ns(), True, said)


def _readable(pid: int) -> int:
    """Of a process whose main thread has ended, a thread that lives: py-spy finds no program by its pid."""
    try:
        with ProcessDirectory(pid) as directory:
            return directory.living_thread()
    except (OSError, ValueError):
        return pid


def explain_failure(stderr: str, pid: int) -> NotCaptured:
    """Given what py-spy printed, return what it means and what to do; its own words are kept."""
    # A Rust backtrace follows the message and its causes where RUST_BACKTRACE or anyhow asks for it.
    said = " ".join(stderr.partition("Stack backtrace")[0].split())[:500]
    for texts, meaning in _MEANINGS:
        if any(text in said for text in texts):
            return NotCaptured(f"no stack of process {pid}: {meaning}", f'py-spy said: "{said}"')
    if _NO_NAME in said:
        # Root without CAP_SYS_PTRACE (a container) gets this for a process that is well alive.
        alive = os.path.exists(f"/proc/{pid}")
        meaning = _NEEDS_PTRACE if alive else "it has ended"
        return NotCaptured(f"no stack of process {pid}: {meaning}", f'py-spy said: "{said}"')
    return NotCaptured(f"no stack of process {pid}", f'py-spy said: "{said}"')


def _check_pausable(pid: int, start_ticks: int) -> None:
    with ProcessDirectory(pid) as directory:
        if directory.stat().start_ticks != start_ticks:
            raise ProcessLookupError(f"pid {pid} belongs to another process now")
        look = process.look_at(pid, start_ticks, 1)
        tracer = directory.status().tracer_pid
    if tracer:
        raise NotCaptured(f"not paused: process {tracer} traces it")
    states = {thread.state for thread in look.threads} | {look.state}
    if states & STOPPED:
        raise NotCaptured("not paused: somebody has stopped it")
    if "D" in states:
        raise NotCaptured("not paused: a thread of it is in an uninterruptible wait (D)")
    if any(_INTERRUPTED.search(thread.wchan or "") for thread in look.threads):
        raise NotCaptured("not paused: a system call in which a thread of it waits would end with EINTR")
    if states & ENDED and look.state in ENDED:
        raise NotCaptured("not paused: it has ended")
