"""A node that may be broken: daemon and privileged side as two units, started again whenever they end, as systemd does;
and a server that plays Slack and a webhook."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import psutil

from stallwatch.outputs.client import Client, DaemonUnreachable
from stallwatch.outputs.documents import IncidentDocument, RankDocument
from stallwatch.outputs.sockets import SOCKET_NAME
from stallwatch.outputs.spool import Spool
from tests.builders.hooked_ranks import HookedRanks
from tests.integration.outputs.slack_server import SlackServer, slack_server

ROOT = Path(__file__).parents[2]
STEPS = ROOT / "tests" / "programs" / "steps.py"
READY_SECONDS = 180.0
_POLL_SECONDS = 0.1
_AS_MANAGER = 'exec env LISTEN_PID=$$ LISTEN_FDS=1 "$@" 3<&{fd}'  # as systemd hands its socket on
_SPOOL = msgspec.json.Decoder(Spool)
Settings = Mapping[str, Mapping[str, Any]]


class Told(NamedTuple):
    """A message that has arrived."""

    job: str
    incident: str
    step: str
    cause: str
    culprits: tuple[int, ...]


class Unit:
    """A process that is started again when it ends; what it leaves behind dies with it, as in a control group."""

    def __init__(self, command: Sequence[str], folder: Path, log: Path, listening: socket.socket | None = None) -> None:
        self._command, self._folder, self._log, self._listening = list(command), folder, log, listening
        self._process: subprocess.Popen[bytes] | None = None
        self._below: set[psutil.Process] = set()
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("STALLWATCH_")}
        self.environment["PYTHONFAULTHANDLER"] = "1"  # an end without a word is said in the log
        self.starts = 0
        self.wrong_codes: list[int] = []  # of ends that nobody wanted

    @property
    def pid(self) -> int | None:
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def processes(self) -> list[psutil.Process]:
        """Its main process first."""
        if self.pid is None:
            return []
        with contextlib.suppress(psutil.Error):
            main = psutil.Process(self.pid)
            below = main.children(recursive=True)
            self._below.update(below)
            return [main, *below]
        return []

    def look_after(self) -> None:
        if self.pid is not None:
            return
        if self._process is not None:
            code = self._process.returncode
            self.wrong_codes += [] if code in (-signal.SIGKILL, 0) else [code]
            self._end_rest()
        self.start()

    def start(self) -> None:
        self.starts += 1
        command, lends = self._command, tuple[int, ...]()
        if self._listening is not None:
            lends = (self._listening.fileno(),)
            command = ["bash", "-c", _AS_MANAGER.format(fd=lends[0]), "bash", *command]
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=lends,
                env=self.environment,
                start_new_session=True,
            )

    def kill(self) -> None:
        """The main process alone, as the kernel does; the rest when `look_after` finds out."""
        self.processes()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, seconds: float = 15.0) -> None:
        if self._process is None:
            return
        self.processes()
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._end_rest()
        self._process = None

    def _end_rest(self) -> None:
        for one in self._below:
            with contextlib.suppress(psutil.Error):
                one.kill()
        with contextlib.suppress(OSError):  # psutil meets one that goes as it opens it: an hour's run ended by that
            psutil.wait_procs(self._below, timeout=10)
        self._below.clear()


class Node:
    def __init__(self, folder: Path, slack: SlackServer, settings: Settings | None = None) -> None:
        self.folder, self._slack = folder, slack
        self.ranks_directory, self.state, self.run = folder / "ranks", folder / "state", folder / "run"
        for directory in (self.state, self.run):
            directory.mkdir()
        self.ranks_directory.mkdir()
        self.ranks_directory.chmod(0o1777)
        self.log = folder / "daemon.log"
        self.config = folder / "stallwatch.toml"
        self.jobs: list[RankProcesses] = []  # ended with the node
        self._messages: list[Told] = []
        self.slack_texts: list[str] = []
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listening.bind(str(folder / "privileged.socket"))
        listening.listen()
        self._listening = listening
        made: dict[str, dict[str, Any]] = {
            "daemon": {
                "rank_directory": str(self.ranks_directory),
                "state_directory": str(self.state),
                "run_directory": str(self.run),
                "privileged_socket": str(folder / "privileged.socket"),
            },
            "http": {"listen": "127.0.0.1:0"},
            "slack": {"webhook_url": slack.url, "messages_per_hour": 1000},
            "webhook": {"url": slack.url + "/events"},
        }
        for section, body in (settings or {}).items():
            made.setdefault(section, {}).update(body)
        self.config.write_text(toml(made), encoding="utf-8")
        ours = [sys.executable, "-P", "-m", "stallwatch.cli"]
        config = ["--config", str(self.config)]
        self.daemon = Unit([*ours, "daemon", *config], folder, self.log)
        self.side = Unit([*ours, "privileged", *config, "--user", str(os.geteuid())], folder, self.log, listening)
        self.client = Client(self.run / SOCKET_NAME, seconds=10.0)
        self._hasty = Client(self.run / SOCKET_NAME, seconds=2.0)

    def start(self) -> None:
        self.side.start()
        self.daemon.start()
        self.until(self.answers, "the daemon is ready", READY_SECONDS)

    def stop(self) -> None:
        self.daemon.stop()
        self.side.stop()
        self._listening.close()

    def end_jobs(self) -> None:
        for job in self.jobs:
            job.end()

    def look_after(self) -> None:
        self.side.look_after()
        self.daemon.look_after()

    def answers(self) -> bool:
        with contextlib.suppress(Exception):
            self.client.ranks()
            return True
        return False

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 180.0) -> None:
        """Raise TimeoutError with the end of the log. Units that end are started again."""
        end = time.monotonic() + seconds
        while not condition():
            self.look_after()
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: not within {seconds:.0f} s; {self.log_text()[-3000:]}")
            time.sleep(_POLL_SECONDS)

    def log_text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def ranks(self, job: str) -> list[RankDocument]:
        """None while the daemon does not answer."""
        with contextlib.suppress(DaemonUnreachable, OSError, msgspec.MsgspecError):
            return [rank for rank in self._hasty.ranks().ranks if rank.training_job == job]
        return []

    def incidents(self, job: str = "") -> list[IncidentDocument]:
        found = self.client.incidents(past=1000).incidents
        return [one for one in found if job in ("", one.training_job)]

    def told(self) -> list[Told]:
        """Every message of the webhook so far, in order; `slack_texts` are those of Slack."""
        while not self._slack.got.empty():
            body = self._slack.got.get()
            if "specversion" not in body:
                self.slack_texts.append(json.dumps(body))
                continue
            incident = body["data"].get("incident")
            if incident is None:
                continue
            verdicts = incident.get("verdicts") or [{}]
            self._messages.append(
                Told(
                    incident["training_job"],
                    incident["incident_id"],
                    body["data"]["step"],
                    verdicts[0].get("cause", ""),
                    tuple(verdicts[0].get("culprits", ())),
                )
            )
        return self._messages

    def uncommitted(self) -> set[tuple[str, str, str]]:
        """(output, incident, step) of the messages of which an attempt was begun and nothing is written down yet."""
        found: set[tuple[str, str, str]] = set()
        for output in ("slack", "webhook"):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                spool = _SPOOL.decode((self.state / f"{output}.json").read_bytes())
                found |= {(output, one.incident_id, one.step) for one in spool.queue if one.begun}
        return found

    def problems(self) -> list[str]:
        """Tracebacks in the log: what nobody has thought of."""
        return [line for line in self.log_text().splitlines() if line.startswith("Traceback")]


class RankProcesses(HookedRanks):
    """A job of plain processes with the hook."""

    def __init__(self, node: Node, job: str, ranks: int = 2, program: Sequence[str] = (str(STEPS),)) -> None:
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "monitor")}
        command = [sys.executable, "-S", *program]
        super().__init__(command, ranks, job, node.ranks_directory, environment, subprocess.DEVNULL)

    def stopped(self) -> list[int]:
        """The ranks that are stopped now, whoever did it."""
        found = []
        for rank, process in enumerate(self.processes):
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8")
                found += [rank] if stat.rpartition(")")[2].split()[0] in "Tt" else []
        return found


@contextlib.contextmanager
def node_of(settings: Settings | None = None, keep: Path | None = None) -> Iterator[Node]:
    """A node in a folder of its own, not started yet. `keep`: where its logs and state are left."""
    folder = Path(tempfile.mkdtemp(prefix="sw-chaos-"))  # short: sockets lie in it
    with slack_server() as slack:
        node = Node(folder, slack, settings)
        try:
            yield node
        finally:
            node.stop()
            if keep is not None:
                shutil.copytree(folder, keep, symlinks=True, dirs_exist_ok=True, ignore=_no_files)
            shutil.rmtree(folder, ignore_errors=True)


def _no_files(folder: str, names: list[str]) -> list[str]:
    """What cannot be copied: sockets, and FIFOs that a scenario has put somewhere."""
    paths = {name: Path(folder) / name for name in names}
    return [name for name, path in paths.items() if not (path.is_symlink() or path.is_file() or path.is_dir())]


def told_after(
    node: Node, name: str, fault: Literal["stopped", "killed"], *, wait_seen: bool = True, seconds: float = 180.0
) -> float:
    """Start a job, stop or kill one of its ranks once the daemon has seen it, and return how many seconds later that
    was told, in Slack too. With `wait_seen` false it need not be seen to step first. Raise TimeoutError."""
    job = RankProcesses(node, name)
    node.jobs.append(job)
    if wait_seen:
        both = ["stepping"] * len(job.processes)
        node.until(lambda: [rank.state for rank in node.ranks(name)] == both, f"{name} is seen")
    job.send(1, signal.SIGSTOP if fault == "stopped" else signal.SIGKILL)
    began = time.monotonic()
    node.until(lambda: any(one.job == name for one in node.told()), f"{name} is told", seconds)
    after = time.monotonic() - began
    (first, *_) = [one for one in node.told() if one.job == name]
    assert first.culprits == (1,), f"{name}: told {first}"
    node.until(lambda: node.told() is not None and any(name in text for text in node.slack_texts), f"{name} in Slack")
    return after


def toml(sections: Settings) -> str:
    """A JSON string is a TOML basic string."""
    return "".join(
        f"[{section}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in body.items())
        for section, body in sections.items()
    )


def twice(messages: Sequence[Told]) -> Counter[tuple[str, str]]:
    """By (incident, step) how often one has arrived beyond once; a verdict that changes may be told again."""
    counted = Counter((one.incident, one.step) for one in messages if one.step != "updated")
    return Counter({key: count - 1 for key, count in counted.items() if count > 1})
