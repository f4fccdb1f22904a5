"""The daemon's own life: what systemd hears, how it ends, what a restart finds."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from stallwatch.outputs.spool import Spool
from tests.e2e.webhook import Webhook
from tests.integration.node.service import ALICE, PRIVILEGED, ServiceDaemon, UserJob
from tests.programs.everybody import PythonForEverybody

pytestmark = pytest.mark.slow
JOB = "alices-job"


class NotifySocket:
    """systemd's end of NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(str(path))
        path.chmod(0o666)
        self.senders: set[int] = set()

    def next(self, seconds: float) -> str | None:
        """The next message, None when there is none in time."""
        self._socket.settimeout(seconds)
        try:
            data, ancillary, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(12))
        except TimeoutError:
            return None
        self.senders.add(int.from_bytes(ancillary[0][2][:4], "little"))
        return data.decode()

    def heard(self, seconds: float) -> list[str]:
        """All messages of this time."""
        messages = []
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and (message := self.next(left)) is not None:
            messages.append(message)
        return messages

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(folder: Path) -> Iterator[NotifySocket]:
    notify = NotifySocket(folder / "notify")
    yield notify
    notify.close()


@pytest.fixture
def job(daemon: ServiceDaemon, python: PythonForEverybody) -> Iterator[UserJob]:
    running = UserJob(python, ALICE, JOB, 2, daemon.rank_directory)
    daemon.until(lambda: daemon.steps(JOB), "the ranks step")
    yield running
    running.end()


def test_systemd_hears_of_the_loop_and_of_nothing_else(
    folder: Path, python: PythonForEverybody, systemd: NotifySocket
) -> None:
    daemon = ServiceDaemon(folder, python, environment={"NOTIFY_SOCKET": str(folder / "notify")})
    daemon.start()
    try:
        assert daemon.pid is not None
        first = systemd.next(20)
        assert first is not None
        assert first.startswith("READY=1")
        assert "WATCHDOG=1" in systemd.heard(4)
        # The web server's thread and the children go on without the loop, and feed nothing.
        sensors = psutil.Process(daemon.pid).children()
        os.kill(daemon.pid, signal.SIGSTOP)
        systemd.heard(0.5)
        assert systemd.heard(3) == []
        os.kill(daemon.pid, signal.SIGCONT)
        daemon.until(lambda: systemd.next(5) == "WATCHDOG=1", "the loop feeds again")
        assert all("NOTIFY_SOCKET" not in child.environ() for child in sensors)
        assert systemd.senders == {daemon.pid}, "NotifyAccess=main hears nobody else"
    finally:
        daemon.stop()
    assert "STOPPING=1" in systemd.heard(1)


def test_sigterm_ends_it_with_all_its_children_in_mid_capture(daemon: ServiceDaemon, job: UserJob) -> None:
    assert daemon.pid is not None
    job.send(1, signal.SIGUSR1)
    daemon.client.capture(JOB)
    process = psutil.Process(daemon.pid)
    daemon.until(lambda: len(process.children(recursive=True)) > 2, "a capture is under way")
    children = process.children(recursive=True)
    began = time.monotonic()
    process.terminate()
    _, alive = psutil.wait_procs([process, *children], timeout=10)
    assert not alive
    assert time.monotonic() - began < 10, "TimeoutStopSec= of the unit"
    assert "logger=stallwatch.daemon stopped" in daemon.log_text()
    for rank in job.processes:
        assert psutil.Process(rank.pid).status() != psutil.STATUS_STOPPED


def test_sighup_takes_new_limits_and_keeps_the_jobs(daemon: ServiceDaemon, job: UserJob) -> None:
    assert daemon.pid is not None
    config = daemon.folder / "stallwatch.toml"
    config.write_text(config.read_text() + "[daemon2]\n[stall]\nfloor_seconds = 17.0\n")
    os.kill(daemon.pid, signal.SIGHUP)
    daemon.until(lambda: "configuration read again" in daemon.log_text(), "it is read")
    assert "unknown key daemon2 (line" in daemon.log_text()
    daemon.until(lambda: {rank.limit_seconds for rank in daemon.ranks(JOB)} != {None}, "limits are known")
    daemon.until(
        lambda: all((rank.limit_seconds or 0) >= 17.0 for rank in daemon.ranks(JOB)), "the new floor holds for ranks"
    )
    config.write_text('[stall]\nfloor_seconds = "soon"\n')
    os.kill(daemon.pid, signal.SIGHUP)
    daemon.until(lambda: "stall.floor_seconds" in daemon.log_text(), "a bad file is named")
    assert daemon.steps(JOB)
    assert daemon.client.healthy()


def test_a_daemon_that_was_killed_knows_a_running_job_again(daemon: ServiceDaemon, job: UserJob) -> None:
    before = {(rank.rank, rank.pid, rank.epoch) for rank in daemon.ranks(JOB)}
    inode = daemon.rank_directory.stat().st_ino
    daemon.kill()
    daemon.start()
    daemon.until(lambda: daemon.steps(JOB), "the ranks step")
    assert {(rank.rank, rank.pid, rank.epoch) for rank in daemon.ranks(JOB)} == before
    assert daemon.incidents(JOB) == []
    assert (daemon.rank_directory.stat().st_ino, daemon.rank_directory.stat().st_uid) == (inode, PRIVILEGED)
    job.send(1, signal.SIGSTOP)
    daemon.until(lambda: any(one.verdicts for one in daemon.incidents(JOB)), "and sees what happens to it")


@contextlib.contextmanager
def told(folder: Path, python: PythonForEverybody) -> Iterator[tuple[ServiceDaemon, Webhook]]:
    with Webhook().running() as webhook:
        daemon = ServiceDaemon(folder, python, {"webhook": {"url": webhook.url}})
        daemon.start()
        try:
            yield daemon, webhook
        finally:
            daemon.stop()


def test_a_daemon_that_was_killed_in_mid_incident_does_not_speak_twice(
    folder: Path, python: PythonForEverybody
) -> None:
    with told(folder, python) as (daemon, webhook):
        job = UserJob(python, ALICE, JOB, 2, daemon.rank_directory)
        try:
            daemon.until(lambda: daemon.steps(JOB), "the ranks step")
            job.send(1, signal.SIGSTOP)
            daemon.until(lambda: len(webhook.received) == 1, "it is told")
            daemon.until(lambda: any(one.verdicts for one in daemon.incidents(JOB)), "a verdict")
            # Between sending and writing down that it was sent a message may be sent twice: at least once is promised.
            spool = folder / "state" / "webhook.json"
            daemon.until(
                lambda: spool.exists() and not msgspec.json.decode(spool.read_bytes(), type=Spool).queue,
                "it is written down that it was told",
            )
            before = daemon.incidents(JOB)[0]
            daemon.kill()
            daemon.start()
            daemon.until(lambda: daemon.incidents(JOB)[0].state == "open", "the incident goes on")
            after = daemon.incidents(JOB)[0]
            assert (after.incident_id, after.opened_at) == (before.incident_id, before.opened_at)
            job.send(1, signal.SIGCONT)
            daemon.until(lambda: daemon.incidents(JOB)[0].state == "resolved", "it ends")
            daemon.until(lambda: len(webhook.received) >= 2, "its end is told")
            assert [message["data"]["incident"]["state"] for message in webhook.received] == ["open", "resolved"]
        finally:
            job.end()
