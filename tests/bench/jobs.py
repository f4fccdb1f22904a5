"""Jobs without the wait for torch: a preloaded process forks the ranks (0.4 s a job instead of 12 s).

    with jobs.server() as server:
        job = server.launch(program, arguments=[], ranks=4, environment={...}, log=path)

The server (fork_server.py) is its own process, started by exec, so that ranks inherit no thread and no lock of the
tests. It speaks JSON, a line a message.
"""

import contextlib
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

READY_SECONDS = 180.0  # torch's import on a busy machine
START_SECONDS = 30.0
STOP_SECONDS = 5.0
ENOUGH_RANKS = 1024
ROOM = {"FORK_SERVER_ROOM": "x" * 16_384}  # for the variables that its ranks show


class ForkedJob:
    """A job of the server; satisfies stallwatch.demo.job.Job."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.pids: tuple[int, ...] = ()  # by rank
        self.ended: dict[int, int] = {}  # pid -> exit code; negative: signal
        self.changed = threading.Condition()

    def exit_code(self) -> int | None:
        if not self.pids or len(self.ended) < len(self.pids):
            return None
        return next((code for code in self.ended.values() if code), 0)

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, or None when the job still runs after this time."""
        with self.changed:
            self.changed.wait_for(lambda: self.exit_code() is not None, seconds)
        return self.exit_code()

    def stop(self) -> None:
        for pid in set(self.pids) - set(self.ended):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.pids:
            # Each rank leads a process group, once it got that far; its data loader workers are in it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        self.wait(STOP_SECONDS)


class Server:
    """The client's side of the fork server."""

    def __init__(self, python: Sequence[str] = (sys.executable,), environment: Mapping[str, str] | None = None) -> None:
        """`python` and `environment` run it as somebody else."""
        self._jobs: dict[int, ForkedJob] = {}
        self._numbers = itertools.count(1)
        self._ready = threading.Event()
        self._process = subprocess.Popen(
            [*python, str(Path(__file__).with_name("fork_server.py"))],
            env={**(os.environ if environment is None else environment), **ROOM},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._listen, name="fork-server-events", daemon=True).start()
        if not self._ready.wait(READY_SECONDS) or self._process.poll() is not None:
            self.close()
            raise RuntimeError("the fork server did not start; its own message is on stderr")

    def launch(
        self,
        program: Path,
        arguments: Sequence[str] = (),
        ranks: int = 4,
        environment: Mapping[str, str] | None = None,
        log: Path = Path(os.devnull),
        *,
        shows_environment: bool = False,
    ) -> ForkedJob:
        """Start a program's ranks as torchrun would: same variables, and all ended soon after the first that failed.
        `shows_environment`: /proc tells these variables, by which ranks without a hook are found."""
        assert 0 < ranks <= ENOUGH_RANKS
        assert self._process.stdin
        number = next(self._numbers)
        job = self._jobs[number] = ForkedJob(log)
        request = {
            "job": number,
            "program": str(program),
            "arguments": list(arguments),
            "ranks": ranks,
            "environment": dict(environment or {}),
            "log": str(log),
            "port": free_port(),
            "shows_environment": shows_environment,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        with job.changed:
            if not job.changed.wait_for(lambda: job.pids, START_SECONDS):
                raise RuntimeError("the fork server did not answer")
        return job

    def close(self) -> None:
        for job in self._jobs.values():
            job.stop()
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout
        with self._process.stdout as events:
            for line in events:
                event = json.loads(line)
                if event["what"] == "ready":
                    self._ready.set()
                    continue
                job = self._jobs[event["job"]]
                with job.changed:
                    if event["what"] == "started":
                        job.pids = tuple(event["pids"])
                    else:
                        job.ended[event["pid"]] = event["code"]
                    job.changed.notify_all()
        self._ready.set()  # or a server that died would be waited for


def free_port() -> int:
    """Below those that the kernel hands out: between this look and the job's own, nobody connects from it by chance,
    and jobs that start side by side seldom draw the same."""
    while True:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """A fork server that ends, with all its jobs, when the block does."""
    running = Server()
    try:
        yield running
    finally:
        running.close()
