"""Evidence about another user's rank with exactly what the unit grants."""

import contextlib
import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stallwatch.model.evidence import Attempt, SourceLine
from tests.bench import jobs
from tests.integration.node.service import (
    ALICE,
    PRIVILEGED,
    PRIVILEGED_UNIT,
    SERVICE,
    ServiceDaemon,
    UserJob,
    as_user,
    unit,
)
from tests.programs.everybody import PythonForEverybody

pytestmark = pytest.mark.slow
JOB = "alices-job"
TRAINING = """
import threading
import time
import torch
import torch.distributed as dist
import stallwatch

taken = threading.Lock()
taken.acquire()

def ask_licence_server(step):
    if step == 40 and dist.get_rank() == 1:
        taken.acquire()

beat = stallwatch.attach()
dist.init_process_group("gloo")
numbers = torch.ones(100)
for step in range(1_000_000):
    ask_licence_server(step)
    dist.all_reduce(numbers)
    numbers.fill_(1)
    time.sleep(0.05)
    beat.step()
"""


@pytest.fixture
def job(daemon: ServiceDaemon, python: PythonForEverybody) -> Iterator[UserJob]:
    running = UserJob(python, ALICE, JOB, 2, daemon.rank_directory)
    yield running
    running.end()


def attempts(rank: Path) -> list[Attempt]:
    return [Attempt(**one) for one in json.loads((rank / "attempts.json").read_text())]


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}


def sets_of(pid: int, *names: str) -> tuple[int, ...]:
    status = status_of(pid)
    return tuple(int(status[name], 16) for name in names)


def called(root: psutil.Process, word: str) -> list[psutil.Process]:
    found = []
    for child in root.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            found += [child] if word in child.cmdline() else []
    return found


def test_who_talks_to_the_network_has_no_capability_and_who_has_them_has_no_network(daemon: ServiceDaemon) -> None:
    assert daemon.pid is not None
    granted = unit("Service", PRIVILEGED_UNIT)["AmbientCapabilities"][0].split()
    numbers = {"CAP_KILL": 5, "CAP_DAC_READ_SEARCH": 2, "CAP_SYS_PTRACE": 19, "CAP_SYSLOG": 34}
    whole = sum(1 << numbers[name] for name in granted)
    root, side = psutil.Process(daemon.pid), psutil.Process(daemon.side.pid)

    def holders() -> list[psutil.Process]:
        return [side, *called(side, "ranks"), *called(side, "host")]

    daemon.until(lambda: len(holders()) == 3, "each reader has been started")
    for holder in holders():
        assert sets_of(holder.pid, "CapPrm", "CapEff", "CapBnd") == (whole,) * 3
    for one in (side, *side.children(recursive=True)):
        assert status_of(one.pid)["Seccomp"] == "2", "no network"
        assert status_of(one.pid)["Uid"].split() == [str(PRIVILEGED)] * 4
    # A reader of the driver gives up what it was started with.
    drops = "CapInh", "CapPrm", "CapEff", "CapAmb"
    daemon.until(lambda: all(sets_of(one.pid, *drops) == (0,) * 4 for one in called(side, "gpus")), "it has given up")
    for other in (root, *root.children(recursive=True)):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            assert sets_of(other.pid, *drops) == (0,) * 4, other
            assert status_of(other.pid)["NoNewPrivs"] == "1", other
            assert status_of(other.pid)["Uid"].split() == [str(SERVICE)] * 4


@pytest.mark.parametrize(
    "does",
    [
        "open('/proc/{pid}/mem', 'rb')",
        "import os; os.kill({pid}, 19)",  # a py-spy that it stopped would hold a rank
        "import os; os.pidfd_open({pid}); os.setpriority(os.PRIO_PROCESS, {pid}, 19)",
        "open('{ranks}/.daemon/x', 'w')",
        "import os; os.rename('{ranks}', '{ranks}-mine')",
        "import os; os.unlink('{ranks}/.daemon')",
    ],
)
def test_the_daemons_user_can_do_nothing_to_the_privileged_side_nor_to_what_is_its_own(
    daemon: ServiceDaemon, python: PythonForEverybody, does: str
) -> None:
    program = does.format(pid=daemon.side.pid, ranks=daemon.rank_directory)
    without = [*as_user(SERVICE), "--bounding-set=-all", "--no-new-privs", *python.command, "-c", program]
    done = subprocess.run(without, env=python.environment, capture_output=True, text=True, check=False)
    assert "PermissionError" in done.stderr


def test_when_the_privileged_side_ends_that_is_said_and_the_next_one_is_found(
    daemon: ServiceDaemon, job: UserJob
) -> None:
    daemon.until(lambda: daemon.steps(JOB), "the ranks step")
    daemon.side.kill()
    daemon.until(lambda: not daemon.steps(JOB), "nothing is known of them")
    daemon.side.start()
    daemon.until(lambda: daemon.steps(JOB), "they are seen again")


def test_the_log_of_a_rank_that_has_ended_is_found_where_the_rank_saw_it(
    daemon: ServiceDaemon, python: PythonForEverybody, folder_for_all: Path
) -> None:
    """In /tmp, of which the service has one of its own."""
    log = folder_for_all / "log"
    log.write_text("ValueError: bad batch\n")
    os.chown(log, ALICE, ALICE)
    log.chmod(0o600)
    with log.open("a") as file:
        running = UserJob(python, ALICE, JOB, 2, daemon.rank_directory, stderr=file)
    try:
        daemon.until(lambda: daemon.steps(JOB), "the ranks step")
        running.send(1, signal.SIGKILL)
        incident_id = daemon.client.capture(JOB)
        rank = daemon.folder / "state" / "incidents" / incident_id / "ranks" / "1"
        daemon.until(lambda: (rank / "log.txt").exists(), "its log")
        assert (rank / "log.txt").read_text() == "ValueError: bad batch\n"
    finally:
        running.end()


def test_ranks_of_every_user_have_a_place_that_the_daemon_owns(daemon: ServiceDaemon) -> None:
    directory, requests = (path.stat() for path in (daemon.rank_directory, daemon.rank_directory / ".daemon"))
    assert (directory.st_uid, stat.S_IMODE(directory.st_mode)) == (PRIVILEGED, 0o1777)
    assert (requests.st_uid, stat.S_IMODE(requests.st_mode)) == (PRIVILEGED, 0o755)


def test_evidence_of_another_users_rank(daemon: ServiceDaemon, job: UserJob) -> None:
    daemon.until(lambda: daemon.steps(JOB), "the ranks step")
    job.send(1, signal.SIGUSR1)
    incident_id = daemon.client.capture(JOB)
    daemon.until(lambda: bool(daemon.client.incident(incident_id).verdicts), "a verdict")
    rank = daemon.folder / "state" / "incidents" / incident_id / "ranks" / "1"
    daemon.until(lambda: (rank / "sources-2.json").exists(), "the second look")
    frames = [
        frame["name"] for thread in json.loads((rank / "stacks-2.json").read_text()) for frame in thread["frames"]
    ]
    assert "wait_for_licence" in frames
    sources = [SourceLine(**one) for one in json.loads((rank / "sources-2.json").read_text())]
    assert "time.sleep(3600)" in {source.text for source in sources}
    asked = {(one.what, one.answered) for one in attempts(rank)}
    assert {("stacks", True), ("flight_recorder", True), ("process", True), ("heartbeat", True)} <= asked
    assert psutil.Process(job.pid(1)).status() == psutil.STATUS_SLEEPING, "nothing stays stopped"


def test_evidence_is_closed_to_others(daemon: ServiceDaemon, job: UserJob) -> None:
    daemon.until(lambda: daemon.steps(JOB), "the ranks step")
    incident_id = daemon.client.capture(JOB)
    state = daemon.folder / "state"
    daemon.until(lambda: bool(daemon.client.incident(incident_id).verdicts), "a verdict")
    assert stat.S_IMODE((state / "incidents").stat().st_mode) == 0o700
    assert {path.stat().st_uid for path in (state / "incidents").rglob("*")} == {SERVICE}
    assert stat.S_IMODE((daemon.folder / "run" / "control.sock").stat().st_mode) == 0o660
    assert stat.S_IMODE((daemon.folder / "run" / "token").stat().st_mode) == 0o600


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_the_verdict_about_another_users_job_is_certain(daemon: ServiceDaemon, python: PythonForEverybody) -> None:
    """Its code lies in a home that is closed to all others: stacks, recorder dumps and the source line need the
    rights of the unit."""
    pytest.importorskip("torch", reason="the job trains with torch")
    home = daemon.folder / "home"
    home.mkdir(mode=0o700)
    program = home / "train.py"
    program.write_text(TRAINING)
    program.chmod(0o600)
    for path in (home, program):
        os.chown(path, ALICE, ALICE)
    server = jobs.Server((*as_user(ALICE), *python.command), python.environment)
    try:
        environment = {"STALLWATCH_DIR": str(daemon.rank_directory), "STALLWATCH_JOB": JOB}
        server.launch(program, ranks=2, environment=environment, log=home / "log")
        daemon.until(lambda: any(one.verdicts for one in daemon.incidents(JOB)), "a verdict", 120)
        (incident,) = daemon.incidents(JOB)
        verdict = incident.verdicts[0]
        assert (verdict.cause, verdict.culprits, verdict.confidence) == ("not_entered", (1,), "certain")
        (culprit,) = verdict.culprit_processes
        assert culprit.frame is not None
        assert (culprit.frame.file, culprit.frame.function) == (str(program), "ask_licence_server")
        rank = daemon.folder / "state" / "incidents" / incident.incident_id / "ranks" / "1"
        assert any(path.stat().st_size for path in rank.glob("flight_recorder.gloo*"))
        # On a busy machine the verdict does not wait for the texts of lines.
        lines = [line for path in rank.glob("sources*.json") for line in json.loads(path.read_text())]
        texts = {(line["file"], line["line"]): line["text"] for line in lines}
        assert texts[str(program), culprit.frame.line] == "taken.acquire()"
        daemon.until(lambda: "look 2 done" in [event.what for event in daemon.incidents(JOB)[0].events], "look 2's end")
        own = json.loads((rank / "process-2.json").read_text())["own_write_bytes"]
        assert own > 0, "the dumps that it wrote for us are counted as ours"
    finally:
        server.close()
