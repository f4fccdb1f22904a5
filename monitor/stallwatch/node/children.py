"""How children are started that talk to their parent over a socket: by the loop itself, or by the privileged side in
its stead (node.privileged_client)."""

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO, NoReturn, Protocol


class Child(Protocol):
    """The part of subprocess.Popen that the loop uses."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended. Raise subprocess.TimeoutExpired after so many seconds."""
        ...

    def terminate(self) -> None:
        """Send it SIGTERM."""

    def kill(self) -> None:
        """Send it SIGKILL."""


class Talking(Protocol):
    """A child and our end of the stream socket that is its standard input and output."""

    @property
    def child(self) -> Child:
        """Its process, to be polled and ended."""

    @property
    def channel(self) -> socket.socket:
        """Our end of the socket; blocking, unless its owner made it otherwise."""


# Raise OSError when it cannot be started.
Start = Callable[[], Talking]
Main = Callable[[list[str]], None]  # of a module that is a program: given its arguments


class PopenChild(subprocess.Popen[bytes]):
    """One that leads a session is killed with all that it started in it; another one is in our own group, for who ends
    us to end too."""

    def __init__(self, command: Sequence[str], *, leads_session: bool, **files: Any) -> None:
        """`files` as Popen has them. Raise OSError."""
        self._leads_session = leads_session
        super().__init__(list(command), start_new_session=leads_session, **files)

    def kill(self) -> None:
        """From any thread: who waits for it sees its end."""
        if self.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._leads_session:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                super().kill()


class OwnChild:
    """A process of ours, with our rights."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        leads_session: bool = True,
        quiet: bool = False,
        lends: Sequence[int] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`leads_session` as in PopenChild. Of a `quiet` one nobody hears what it says on standard error. `lends`:
        descriptors that it keeps, by the same numbers. `variables`: of its environment, beside ours. Raise OSError."""
        self.channel, theirs = socket.socketpair()
        with theirs:
            try:
                self.child: Child = PopenChild(
                    command,
                    leads_session=leads_session,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL if quiet else None,
                    pass_fds=tuple(lends),
                    env={**os.environ, **variables} if variables else None,
                )
            except OSError:
                self.channel.close()
                raise


class ForkedChild:
    """A process that began as a copy of this one; ended as a PopenChild is. Satisfies Child."""

    def __init__(self, pid: int, *, leads_session: bool = True) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._leads_session = leads_session

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """The same once it has ended. Raise subprocess.TimeoutExpired after so many seconds."""
        if self.returncode is None:
            if timeout is not None and not self._has_ended_within(timeout):
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def terminate(self) -> None:
        """Send it SIGTERM."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill it; one that leads a session with all that it started."""
        if self.poll() is None:
            if self._leads_session:
                with contextlib.suppress(ProcessLookupError):  # it has only begun, and leads nobody
                    os.killpg(self.pid, signal.SIGKILL)
            os.kill(self.pid, signal.SIGKILL)  # not reaped: the pid is its own

    def _has_ended_within(self, seconds: float) -> bool:
        descriptor = os.pidfd_open(self.pid)
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            return bool(poll.poll(max(seconds, 0.0) * 1e3))
        finally:
            os.close(descriptor)


class OwnFork:
    """A process of ours, with our rights, that runs what is imported here already: its code is in memory once for all
    that are started so. It has nothing of this process but its environment, standard error, and what it is lent."""

    def __init__(
        self,
        main: Callable[[], object],
        name: Sequence[str],
        lends: Sequence[int] = (),
        *,
        leads_session: bool = True,
        quiet: bool = False,
    ) -> None:
        """`name`: its command line, for people; the others as in OwnChild. Call it where there is one thread. Raise
        OSError."""
        self.channel, theirs = socket.socketpair()
        with theirs:
            # What comes before it has its own handlers is for it, and would be lost on ours.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                pid = os.fork()
                if pid == 0:
                    _be(main, name, theirs.fileno(), lends, before, leads_session=leads_session, quiet=quiet)
            except OSError:
                self.channel.close()
                raise
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self.child: Child = ForkedChild(pid, leads_session=leads_session)


def imported(modules: Iterable[str]) -> dict[str, Main]:
    """The `main` of each module, with all that it will need (its `import_parts`), for who forks those that run it. One
    that cannot be imported is left out: started as a program it says itself why."""
    mains: dict[str, Main] = {}
    for name in modules:
        with contextlib.suppress(Exception):
            module = importlib.import_module(name)
            getattr(module, "import_parts", lambda: None)()
            mains[name] = module.main
    gc.collect()
    gc.freeze()  # a collection in a child writes into all that it walks through, and would make it the child's own
    return mains


def _be(
    main: Callable[[], object],
    name: Sequence[str],
    channel: int,
    lends: Sequence[int],
    mask: Collection[int],
    *,
    leads_session: bool,
    quiet: bool,
) -> NoReturn:
    """What an exec would do, done by hand; never returns into what the parent was at."""
    code = 1
    try:
        # What is garbage of the parent's stays so: an object that is taken apart here would close a descriptor whose
        # number is another's by then.
        gc.freeze()
        if leads_session:
            os.setsid()
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.dup2(channel, 0)
        os.dup2(channel, 1)
        if quiet:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor not in lends:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        _show_as(name)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        main()
        code = 0
    except BaseException:  # noqa: BLE001 - as the interpreter does at its end
        traceback.print_exc()
    finally:
        os._exit(code)


def _show_as(name: Sequence[str]) -> None:
    """Have `ps` show this process under that command line: as much of it as has room in what it was started with."""
    # proc_pid_stat(5): arg_start and arg_end, 0 where we may not know.
    with open("/proc/self/stat", "rb") as file:
        start, end = map(int, file.read().rpartition(b")")[2].split()[45:47])
    if start and end > start:
        words = b"".join(os.fsencode(word) + b"\0" for word in name)
        ctypes.memmove(start, words[: end - start - 1].ljust(end - start, b"\0"), end - start)


def start_logged(command: Sequence[str], log: BinaryIO, environment: Mapping[str, str]) -> PopenChild:
    """Start a whole program, ranks of a job or a daemon, in a session of its own, as under a scheduler: no terminal
    belongs to it, and Ctrl-C is for who has started it. What it says is in `log`. Raise OSError."""
    return PopenChild(
        command,
        leads_session=True,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=dict(environment),
    )


def module_of_ours(module: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs a module of this very installation."""
    return (sys.executable, "-P", "-m", module, *arguments)


def start_own(
    command: Sequence[str],
    *,
    leads_session: bool = True,
    quiet: bool = False,
    lends: Sequence[int] = (),
    variables: Mapping[str, str] | None = None,
) -> Start:
    """Return what starts such a child, as OwnChild does."""
    return partial(OwnChild, command, leads_session=leads_session, quiet=quiet, lends=lends, variables=variables)
