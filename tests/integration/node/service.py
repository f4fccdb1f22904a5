"""The daemon as the unit runs it: a user of its own, exactly the unit's capabilities, directories as systemd makes
them. And ranks of other users. Users are mere numbers: nothing is added to the machine."""

import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO

import psutil
import pytest

from stallwatch.demo.daemon_child import DaemonChild
from stallwatch.outputs.documents import IncidentDocument, RankDocument
from tests.builders.hooked_ranks import HookedRanks
from tests.programs import sandbox
from tests.programs.everybody import PythonForEverybody, python_for_everybody

UNITS = Path(__file__).parents[3] / "deploy" / "systemd"
UNIT, PRIVILEGED_UNIT = UNITS / "stallwatch.service", UNITS / "stallwatch-privileged.service"
SANDBOX = Path(__file__).parents[2] / "programs" / "sandbox.py"
STEPS = Path(__file__).parents[2] / "programs" / "steps.py"
PRIVILEGED, SERVICE, ALICE, BOB = 64209, 64210, 64211, 64212
OWN_MOUNTS = ("unshare", "--mount", "--propagation", "slave")
SECONDS = 60.0  # a machine that tests run on may be busy


def unit(section: str, path: Path = UNIT) -> dict[str, list[str]]:
    """A unit's directives of a section; one that is repeated has several values."""
    found: dict[str, list[str]] = {}
    current = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            current = line.strip("[]")
        elif current == section and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def as_user(uid: int) -> list[str]:
    return ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]


def as_unit(path: Path, uid: int, python: PythonForEverybody, listen: int | None = None) -> list[str]:
    """How systemd starts the unit's process, as a command to put before it: its user, exactly its capabilities, its
    umask, its filter of system calls, and of its tree of files what a test can see: a /tmp of its own, where root may
    mount."""
    service = unit("Service", path)
    bounding, ambient = (
        ",".join(
            ["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in " ".join(service.get(key, [])).split())]
        )
        for key in ("CapabilityBoundingSet", "AmbientCapabilities")
    )
    assert service["NoNewPrivileges"] == ["yes"]
    privileges = [f"--inh-caps={ambient}", f"--ambient-caps={ambient}", f"--bounding-set={bounding}", "--no-new-privs"]
    tree = own_tmp(python) if service["PrivateTmp"] == ["yes"] else ":"
    if service.get("ProtectProc") == ["invisible"]:
        tree += " && mount -t proc -o hidepid=invisible proc /proc"
    mounts = [*OWN_MOUNTS, "sh", "-c", f'{tree} && exec "$@"', "sh"] if may_mount() else []
    with_umask = ["sh", "-c", f'umask {service["UMask"][0]}; exec "$@"', "sh"]
    user = ["setpriv", "--reuid", str(uid), "--regid", str(SERVICE), "--clear-groups"]
    command = [*mounts, *user, *privileges, *with_umask]
    if not sandbox.is_possible():
        return command
    listens = [] if listen is None else ["--listen", str(listen)]
    return [*command, *python.command, str(SANDBOX), str(path), *listens, "--"]


@cache
def may_mount() -> bool:
    """Root of a container often may not."""
    return subprocess.run([*OWN_MOUNTS, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode == 0


def own_tmp(python: PythonForEverybody) -> str:
    """A shell command that gives /tmp anew and empty, but for what is run: a contributor may have cloned us there."""
    runs = (*python.environment["PYTHONPATH"].split(os.pathsep), python.command[0], str(UNITS.parents[1]))
    folders = dict.fromkeys(path.parent if path.is_file() else path for path in map(Path, runs))
    kept = [folder for folder in folders if folder.is_relative_to("/tmp")]
    commands = ["mount -t tmpfs tmpfs /mnt"]  # made there, for what is kept is not to be seen once it lies on /tmp
    for folder in kept:
        place = shlex.quote(f"/mnt/{folder.relative_to('/tmp')}")
        commands.append(f"mkdir -p {place} && mount --bind {shlex.quote(str(folder))} {place}")
    return " && ".join([*commands, "mount --move /mnt /tmp"])


def need_root() -> PythonForEverybody:
    """Skip the test where other users cannot be played."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("running as several users needs root and setpriv")
    return python_for_everybody() or pytest.skip("no Python here that another user may run")


class PrivilegedSide:
    """The other unit, with the socket that systemd makes for it."""

    def __init__(self, folder: Path, python: PythonForEverybody) -> None:
        self.path = folder / "privileged.socket"
        self._folder, self._python = folder, python
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        if self._process is not None:
            return
        if self._socket is None:
            self.path.unlink(missing_ok=True)
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._socket.bind(str(self.path))
            self._socket.listen()
            os.chown(self.path, SERVICE, SERVICE)
            self.path.chmod(0o600)
        command = [*self._python.command, "-m", "stallwatch.cli", "privileged", "--config", "stallwatch.toml"]
        number = self._socket.fileno()
        self._process = subprocess.Popen(
            [*as_unit(PRIVILEGED_UNIT, PRIVILEGED, self._python, number), *command, "--user", str(SERVICE)],
            cwd=self._folder,
            env=dict(self._python.environment),
            pass_fds=(number,),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill(self) -> None:
        """As the kernel would, out of memory; the manager's socket stays."""
        if self._process is not None:
            side = psutil.Process(self._process.pid)
            for one in (*side.children(recursive=True), side):
                one.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class ServiceDaemon(DaemonChild):
    """Its state is closed to others, its run directory open to look into, both its own; and its privileged side, which
    has the directory of records."""

    def __init__(
        self,
        folder: Path,
        python: PythonForEverybody,
        settings: Mapping[str, Mapping[str, str]] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.side = PrivilegedSide(folder, python)
        where = f"STALLWATCH_DAEMON_PRIVILEGED_SOCKET={self.side.path}"
        command = (*as_unit(UNIT, SERVICE, python), "env", where, *python.command, "-m", "stallwatch.cli")
        super().__init__(folder, {**python.environment, **(environment or {})}, settings, command)
        self.folder = folder
        for name, mode in (("state", 0o750), ("run", 0o755)):
            os.chown(folder / name, SERVICE, SERVICE)
            (folder / name).chmod(mode)
        (folder / "stallwatch.toml").chmod(0o640)
        os.chown(folder / "stallwatch.toml", 0, SERVICE)
        self.make_rank_directory()

    def make_rank_directory(self) -> None:
        """As deploy/systemd/stallwatch.tmpfiles."""
        self.rank_directory.mkdir()
        os.chown(self.rank_directory, PRIVILEGED, SERVICE)
        self.rank_directory.chmod(0o1777)

    def start(self) -> None:
        self.side.start()
        try:
            super().start()
        except BaseException:
            self.side.stop()
            raise

    def stop(self) -> None:
        super().stop()
        self.side.stop()

    def until(self, condition: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
        end = time.monotonic() + seconds
        while not condition():
            self.check()
            if time.monotonic() > end:
                pytest.fail(f"{what}: not within {seconds:.0f} s; daemon: {self.log_text()[-4000:]}")
            time.sleep(0.1)

    def log_text(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def kill(self) -> None:
        """As the kernel would, out of memory."""
        assert self.pid is not None
        os.kill(self.pid, signal.SIGKILL)
        super().stop()

    def incidents(self, job: str) -> list[IncidentDocument]:
        """A job's incidents, oldest first."""
        found = [one for one in self.client.incidents(past=50).incidents if one.training_job == job]
        return sorted(found, key=lambda one: one.opened_at)

    def ranks(self, job: str) -> list[RankDocument]:
        return [rank for rank in self.client.ranks().ranks if rank.training_job == job]

    def steps(self, job: str) -> bool:
        states = [rank.state for rank in self.ranks(job)]
        return bool(states) and set(states) == {"stepping"}


@contextmanager
def node_folder() -> Iterator[Path]:
    """Not below pytest's own, which other users cannot enter; short, for a socket lies in it."""
    folder = Path(tempfile.mkdtemp(prefix="sw-node-", dir="/run"))  # not /tmp, of which the units have their own
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class UserJob(HookedRanks):
    """A job of a user, of ranks that step until they are told otherwise."""

    def __init__(
        self,
        python: PythonForEverybody,
        uid: int,
        job: str,
        ranks: int,
        directory: Path,
        stderr: IO[str] | None = None,
    ) -> None:
        command = [*as_user(uid), *python.command, str(STEPS)]
        super().__init__(command, ranks, job, directory, python.environment, stderr)

    def pid(self, rank: int) -> int:
        return self.processes[rank].pid
