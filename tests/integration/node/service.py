"""The daemon as the unit runs it: a user of its own, exactly the unit's capabilities, directories as systemd makes
them. And ranks of other users. Users are mere numbers: nothing is added to the machine."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from stallwatch.demo.daemon_child import DaemonChild
from stallwatch.outputs.documents import IncidentDocument, RankDocument
from tests.programs.everybody import PythonForEverybody, python_for_everybody

UNIT = Path(__file__).parents[3] / "deploy" / "systemd" / "stallwatch.service"
STEPS = Path(__file__).parents[2] / "programs" / "steps.py"
SERVICE, ALICE, BOB = 64210, 64211, 64212
SECONDS = 60.0  # a machine that tests run on may be busy


def unit(section: str) -> dict[str, list[str]]:
    """The unit's directives of a section; one that is repeated has several values."""
    found: dict[str, list[str]] = {}
    current = ""
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            current = line.strip("[]")
        elif current == section and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def as_user(uid: int) -> list[str]:
    return ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]


def as_service() -> list[str]:
    """How systemd starts the unit's process, as a command to put before it."""
    service = unit("Service")
    ambient, bounding = (
        ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in service[key][0].split())])
        for key in ("AmbientCapabilities", "CapabilityBoundingSet")
    )
    assert service["NoNewPrivileges"] == ["yes"]
    privileges = [f"--inh-caps={ambient}", f"--ambient-caps={ambient}", f"--bounding-set={bounding}", "--no-new-privs"]
    with_umask = ["sh", "-c", f'umask {service["UMask"][0]}; exec "$@"', "sh"]
    return [*as_user(SERVICE), *privileges, *with_umask]


def need_root() -> PythonForEverybody:
    """Skip the test where other users cannot be played."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("running as several users needs root and setpriv")
    return python_for_everybody() or pytest.skip("no Python here that another user may run")


class ServiceDaemon(DaemonChild):
    """Its state is closed to others, its run directory open to look into, both its own."""

    def __init__(
        self,
        folder: Path,
        python: PythonForEverybody,
        settings: Mapping[str, Mapping[str, str]] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        command = (*as_service(), *python.command, "-m", "stallwatch.cli")
        super().__init__(folder, {**python.environment, **(environment or {})}, settings, command)
        self.folder = folder
        for name, mode in (("state", 0o750), ("run", 0o755)):
            os.chown(folder / name, SERVICE, SERVICE)
            (folder / name).chmod(mode)
        # RuntimeDirectory= of the unit: the daemon makes the rank directory in it.
        os.chown(folder, SERVICE, SERVICE)

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
        self.stop()

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
    folder = Path(tempfile.mkdtemp(prefix="sw-node-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class UserJob:
    """A job of a user, of ranks that step until they are told otherwise."""

    def __init__(self, python: PythonForEverybody, uid: int, job: str, ranks: int, directory: Path) -> None:
        self.job = job
        self.processes = [
            subprocess.Popen(
                [*as_user(uid), *python.command, str(STEPS)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env={
                    **python.environment,
                    "STALLWATCH_DIR": str(directory),
                    "STALLWATCH_JOB": job,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": "29500",
                },
                start_new_session=True,
            )
            for rank in range(ranks)
        ]
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"

    def pid(self, rank: int) -> int:
        return self.processes[rank].pid

    def send(self, rank: int, number: signal.Signals) -> None:
        self.processes[rank].send_signal(number)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
