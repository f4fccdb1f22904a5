"""What jobs, disks and servers do to a running daemon: it says what is wrong, and goes on with all the rest."""

import contextlib
import http.server
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stallwatch.hook import layout
from stallwatch.outputs.documents import RankList
from tests.integration.node.service import ALICE, BOB, SERVICE, ServiceDaemon, UserJob
from tests.programs.everybody import PythonForEverybody

pytestmark = pytest.mark.slow
JOB = "alices-job"


@pytest.fixture
def job(daemon: ServiceDaemon, python: PythonForEverybody) -> Iterator[UserJob]:
    with job_of(ALICE, JOB, daemon, python) as running:
        daemon.until(lambda: daemon.steps(JOB), "the ranks step")
        yield running


@contextmanager
def job_of(uid: int, name: str, daemon: ServiceDaemon, python: PythonForEverybody) -> Iterator[UserJob]:
    running = UserJob(python, uid, name, 2, daemon.rank_directory)
    yield running
    running.end()


def record_of(directory: Path, rank: int, pid: int) -> Path:
    (path,) = directory.glob(f"rank-{rank}-{pid}-*.beat")
    return path


def said(ranks: RankList) -> str:
    return next(sensor.reason for sensor in ranks.sensors if sensor.sensor == "heartbeats")


def put(directory: Path, name: str, data: bytes, uid: int = BOB) -> None:
    (directory / name).write_bytes(data)
    os.chown(directory / name, uid, uid)


def test_files_that_are_no_records_are_named_and_hide_nothing(daemon: ServiceDaemon, job: UserJob) -> None:
    ranks = daemon.rank_directory
    real = record_of(ranks, 0, job.pid(0)).read_bytes()
    (ranks / "rank-7-1.beat").symlink_to("/etc/shadow")
    os.mkfifo(ranks / "rank-7-2.beat")
    put(ranks, "rank-7-3.beat", os.urandom(4096))
    put(ranks, "rank-7-4.beat", real[:100])
    put(ranks, "rank-7-5.beat", b"")
    put(ranks, "rank-7-6.beat", b"x" * (2 << 20))
    (ranks / "rank-7-7.beat").mkdir()
    (ranks / "rank-7-8.beat").symlink_to("rank-7-8.beat")
    daemon.until(lambda: said(daemon.client.ranks()).startswith("8 ignored"), "every one of them is counted")
    assert "rank-7-1.beat: a symbolic link; not followed" in said(daemon.client.ranks())
    daemon.until(lambda: "sensor=heartbeats up=true | 8 ignored: " in daemon.log_text(), "the log says so")
    assert daemon.steps(JOB)
    for path in ranks.glob("rank-7-*"):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    daemon.until(lambda: said(daemon.client.ranks()) == "", "and forgotten with the files")
    assert daemon.log_text().count("Traceback") == 0


def test_a_record_that_claims_another_users_process_is_not_believed(daemon: ServiceDaemon, job: UserJob) -> None:
    """BOB copies a record of ALICE's: her rank would seem to be a job of his, and to hang when he likes."""
    real = record_of(daemon.rank_directory, 1, job.pid(1)).read_bytes()
    put(daemon.rank_directory, layout.record_name(5, job.pid(1)), real)
    daemon.until(lambda: f"written by uid {BOB}" in said(daemon.client.ranks()), "the reason is said")
    assert f"process {job.pid(1)} runs as {ALICE}" in said(daemon.client.ranks())
    assert {(rank.rank, rank.pid) for rank in daemon.ranks(JOB)} == {(0, job.pid(0)), (1, job.pid(1))}
    assert daemon.steps(JOB)


def test_a_rank_that_vanishes_while_it_is_looked_at(daemon: ServiceDaemon, job: UserJob) -> None:
    job.send(0, signal.SIGUSR1)
    incident_id = daemon.client.capture(JOB)
    bundle = daemon.folder / "state" / "incidents" / incident_id
    daemon.until(lambda: (bundle / "bundle.json").exists(), "the look begins")
    for process in job.processes:
        process.kill()
    daemon.until(lambda: bool(daemon.client.incident(incident_id).verdicts), "a verdict about what was left")
    assert daemon.log_text().count("Traceback") == 0
    daemon.until(lambda: {rank.state for rank in daemon.ranks(JOB)} <= {"gone"}, "its ranks are gone")


def test_a_rank_directory_that_is_removed_is_missed_and_read_again_once_it_is_there(
    daemon: ServiceDaemon, job: UserJob, python: PythonForEverybody
) -> None:
    while daemon.rank_directory.exists():  # a rank may make its answer anew while we remove it
        with contextlib.suppress(OSError):
            shutil.rmtree(daemon.rank_directory)
    daemon.until(lambda: "deploy/systemd/stallwatch.tmpfiles" in daemon.log_text(), "what to do is said")
    daemon.make_rank_directory()
    daemon.until(lambda: (daemon.rank_directory / ".daemon").is_dir(), "it is read again")
    with job_of(BOB, "bobs-job", daemon, python):
        daemon.until(lambda: daemon.steps("bobs-job"), "a new job is seen in it")
    daemon.until(lambda: daemon.steps(JOB), "the old one publishes again")


@contextmanager
def webhook(status: int | None) -> Iterator[str]:
    """A server that answers with this status, or takes the connection and never answers."""
    if status is None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            yield f"http://127.0.0.1:{silent.getsockname()[1]}/"
        return

    class Endpoint(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status or 500)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize(("status", "reason"), [(500, "500"), (None, "")])
def test_a_webhook_that_fails_is_named_and_stops_nothing(
    folder: Path, python: PythonForEverybody, status: int | None, reason: str
) -> None:
    with webhook(status) as url:
        daemon = ServiceDaemon(folder, python, {"webhook": {"url": url, "attempt_seconds": "2"}})
        daemon.start()
        try:
            with job_of(ALICE, JOB, daemon, python) as job:
                daemon.until(lambda: daemon.steps(JOB), "the ranks step")
                job.send(1, signal.SIGSTOP)
                daemon.until(lambda: any(one.severity == "critical" for one in daemon.incidents(JOB)), "it is told")
                daemon.until(lambda: "webhook" in str(daemon.client.ranks().problems), "the failure is said")
                (problem,) = daemon.client.ranks().problems
                assert problem.startswith("webhook: not delivered yet: ")
                assert reason in problem
                assert daemon.client.healthy()
                job.send(1, signal.SIGCONT)
                daemon.until(lambda: daemon.incidents(JOB)[0].state == "resolved", "the loop goes on")
        finally:
            daemon.stop()


def test_an_unknown_key_is_a_warning(folder: Path, python: PythonForEverybody) -> None:
    daemon = ServiceDaemon(folder, python, {"slack": {"webhok_url": "https://example.org"}})
    daemon.start()
    daemon.stop()
    assert "unknown key slack.webhok_url (line" in daemon.log_text()


def test_a_store_that_belongs_to_somebody_else_is_refused(folder: Path, python: PythonForEverybody) -> None:
    """As it is after somebody ran the daemon by hand as root."""
    daemon = ServiceDaemon(folder, python)
    (folder / "state" / "incidents").mkdir(mode=0o700)
    with pytest.raises(Exception, match="exit code 64") as caught:
        daemon.start()
    assert "incidents: Permission denied" in str(getattr(caught.value, "help", ""))


def fill(path: Path) -> None:
    """Take what is left of a file system."""
    with path.open("ab", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"x" * 1024)


def test_a_full_disk_costs_evidence_and_not_the_verdict(folder: Path, python: PythonForEverybody) -> None:
    daemon = ServiceDaemon(folder, python)
    options = f"size=64k,uid={SERVICE},gid={SERVICE},mode=0750"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder / "state")], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no mount here: {mounted.stderr.decode()}")
    try:
        daemon.start()
        with job_of(ALICE, JOB, daemon, python) as job:
            daemon.until(lambda: daemon.steps(JOB), "the ranks step")
            fill(folder / "state" / "filler")
            job.send(1, signal.SIGSTOP)
            daemon.until(lambda: bool(daemon.incidents(JOB)), "the incident is known")
            daemon.until(lambda: "No space left on device" in daemon.log_text(), "and why it is poor")
            (folder / "state" / "filler").unlink()
            job.send(1, signal.SIGCONT)
            daemon.until(lambda: daemon.steps(JOB), "the loop goes on")
            assert daemon.client.healthy()
    finally:
        daemon.stop()
        subprocess.run(["umount", str(folder / "state")], check=False)
