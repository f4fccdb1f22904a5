"""A child that is asked one thing, answers and ends, within a deadline; who is willing to lose it loses nothing else.

Request and answer are whole: its standard input and output to their ends. Both are files in memory, no pipes: a child
that says much waits for nobody, and a disk that is full or hangs has no part in it."""

import contextlib
import os
import resource
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import BinaryIO, NamedTuple

from stallwatch.node.children import PopenChild
from stallwatch.node.memory_file import memory_file

_END_SECONDS = 1.0
_LAST_WORDS_BYTES = 4 << 10

# Children that not even SIGKILL has ended (in the kernel's hands): nothing waits for them, the interpreter's end
# included.
_LEFT_BEHIND: list[PopenChild] = []


class Ended(NamedTuple):
    """A child that has ended."""

    code: int  # negative: the signal that ended it
    output: bytes
    errors: bytes

    @property
    def said_too_much(self) -> bool:
        """Whether it wrote more than it may."""
        return self.code == -signal.SIGXFSZ

    @property
    def last_words(self) -> str:
        """The last line that it said on standard error, "" when it said none."""
        lines = self.errors[-_LAST_WORDS_BYTES:].decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""


class RunOnce:
    """Starts at construction. Raise OSError when it cannot."""

    def __init__(
        self,
        command: Sequence[str],
        request: bytes | None = b"",
        *,
        lends: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        leads_group: bool = True,
        memory_bytes: int | None = None,
        limit_bytes: int = 64 << 20,
    ) -> None:
        """`request` None: it is given later (`give`), to a child that imports meanwhile. `lends`: descriptors that it
        keeps, by the same numbers. One that `leads_group` is ended with all that it started; another one is in our own
        group, for who ends us to end too. No file that it writes, its output and its errors among them, grows beyond
        `limit_bytes`: one that goes on all the same is ended by the system (SIGXFSZ), a Python one has EFBIG."""
        self._limit_bytes = limit_bytes
        self._ended: Ended | None = None
        self._output, self._errors = memory_file(), memory_file()
        try:
            with contextlib.ExitStack() as given:
                stdin = subprocess.PIPE if request is None else given.enter_context(memory_file(request)).fileno()
                self._child = PopenChild(
                    command,
                    leads_session=leads_group,
                    stdin=stdin,
                    stdout=self._output,
                    stderr=self._errors,
                    env=environment,
                    pass_fds=tuple(lends),
                )
        except OSError:
            self._close()
            raise
        # After the start, since preexec_fn is unsafe with threads; nothing big is written in the first moments.
        limits = {resource.RLIMIT_FSIZE: limit_bytes, resource.RLIMIT_CORE: 0}
        if memory_bytes is not None:
            limits[resource.RLIMIT_AS] = memory_bytes
        for number, most in limits.items():
            with contextlib.suppress(ProcessLookupError):  # ended already: its exit code will tell
                resource.prlimit(self._child.pid, number, (most, most))

    @property
    def pid(self) -> int:
        """The child's pid."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._child.poll() is None

    def give(self, request: bytes, *, whole: bool = True) -> None:
        """Give a child its request that was started without one; not `whole`: the rest is given later."""
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # ended already: its exit code will tell
            self._child.stdin.write(request)
            self._child.stdin.flush()
            if whole:
                self._child.stdin.close()

    def poll(self) -> Ended | None:
        """Return what came of it, None while it runs. Never waits."""
        code = self._child.poll()
        if self._ended is None and code is not None:
            self._ended = Ended(code, self._read(self._output), self._read(self._errors))
            self._close()
        return self._ended

    def finish(self, seconds: float) -> Ended | None:
        """Wait for what comes of it; one that does not end in time is ended, and there is none."""
        self.wait(seconds)
        ended = self.poll()
        if ended is None:
            self.end()
        return ended

    def kill(self) -> None:
        """From any thread: who waits for it sees its end."""
        self._child.kill()

    def end(self) -> None:
        """Kill it, with what it started; one that does not die of it is left behind."""
        if self._child.returncode is None:
            self.kill()
            self.wait(_END_SECONDS)
            if self._child.poll() is None:
                _LEFT_BEHIND.append(self._child)
        self._close()

    def wait(self, seconds: float) -> None:
        """Return when it has ended, or the time is over."""
        if self._child.poll() is None:
            descriptor = os.pidfd_open(self._child.pid)
            try:
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                poll.poll(max(seconds, 0) * 1e3)
            finally:
                os.close(descriptor)

    def _read(self, file: BinaryIO) -> bytes:
        if file.closed:
            return b""
        file.seek(0)
        return file.read(self._limit_bytes)

    def _close(self) -> None:
        child = getattr(self, "_child", None)
        for file in (None if child is None else child.stdin, self._output, self._errors):
            with contextlib.suppress(OSError):
                if file is not None:
                    file.close()


def run_once(
    command: Sequence[str],
    seconds: float,
    request: bytes = b"",
    *,
    environment: Mapping[str, str] | None = None,
    leads_group: bool = True,
) -> Ended | None:
    """Run it to its end, for who has nothing else to do; None when that does not come within `seconds`. Raise OSError
    when it cannot be started."""
    return RunOnce(command, request, environment=environment, leads_group=leads_group).finish(seconds)
