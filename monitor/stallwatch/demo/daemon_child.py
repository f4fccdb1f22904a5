"""A real `stallwatch daemon` with directories of its own and otherwise its default configuration; told nothing."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from stallwatch.demo.job import end_processes
from stallwatch.encoding import json_of
from stallwatch.errors import DeadlineExceeded, StallwatchError
from stallwatch.node.children import PopenChild, start_logged
from stallwatch.outputs.client import Client, DaemonUnreachable
from stallwatch.outputs.sockets import SOCKET_NAME

READY_SECONDS = 30.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.1


class DaemonChild:
    """Raise StallwatchError, with the end of its log, when the daemon does not run."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        settings: Mapping[str, Mapping[str, str]] | None = None,
        command: Sequence[str] = (sys.executable, "-m", "stallwatch.cli"),
    ) -> None:
        self._command = (*command, "daemon", "--config", str(folder / "stallwatch.toml"))
        self.rank_directory = folder / "ranks"
        self.log = folder / "daemon.log"
        self._config = folder / "stallwatch.toml"
        run_directory = folder / "run"
        for directory in (folder / "state", run_directory):
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._config.write_text(
            _toml(
                {
                    "daemon": {
                        "rank_directory": str(self.rank_directory),
                        "state_directory": str(folder / "state"),
                        "run_directory": str(run_directory),
                    },
                    "http": {"listen": "127.0.0.1:0"},
                    **(settings or {}),
                }
            ),
            encoding="utf-8",
        )
        self.client = Client(run_directory / SOCKET_NAME, seconds=15.0)
        self._environment = {k: v for k, v in environment.items() if not k.startswith("STALLWATCH_")}
        source = str(Path(__file__).parents[2])  # this very stallwatch, wherever the shell stands
        self._environment["PYTHONPATH"] = os.pathsep.join(filter(None, (source, environment.get("PYTHONPATH", ""))))
        self._process: PopenChild | None = None

    def start(self) -> None:
        """Start it with its output in the log, and wait until it has looked at the node once. Raise StallwatchError
        where it ends before, DeadlineExceeded where it takes too long."""
        with self.log.open("ab") as output:
            self._process = start_logged(self._command, output, self._environment)
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until:
            self.check()
            with contextlib.suppress(DaemonUnreachable):
                self.client.ranks()  # answered once it has looked at the node
                return
            time.sleep(POLL_SECONDS)
        raise DeadlineExceeded(f"the daemon was not ready after {READY_SECONDS:.0f} s", tail(self.log))

    @property
    def pid(self) -> int | None:
        """The daemon's process id, None before it was started."""
        return self._process.pid if self._process else None

    def check(self) -> None:
        """Raise StallwatchError when the daemon has ended."""
        assert self._process is not None
        if (code := self._process.poll()) is not None:
            raise StallwatchError(f"the daemon ended with exit code {code}", tail(self.log))

    def stop(self) -> None:
        """End it and everything that it started, in order if it goes within seconds, else by SIGKILL."""
        if self._process is None:
            return
        below: set[psutil.Process] = set()
        with contextlib.suppress(psutil.Error):
            below.update(psutil.Process(self._process.pid).children(recursive=True))
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        end_processes(below)


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log, for a message; "" when there is none."""
    try:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def _toml(sections: Mapping[str, Mapping[str, str]]) -> str:
    # A JSON string is a TOML basic string.
    return "".join(
        f"[{section}]\n" + "".join(f"{key} = {json_of(value).decode()}\n" for key, value in body.items())
        for section, body in sections.items()
    )
