"""The commands of a person on call, each a process of its own, at a real daemon with a job that hangs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stallwatch.errors import EXIT_USAGE, EXIT_VERDICT
from stallwatch.outputs.client import EXIT_UNAVAILABLE
from tests.e2e.webhook import Webhook
from tests.integration.node.service import ALICE, SERVICE, ServiceDaemon, UserJob, as_user, node_folder
from tests.programs.everybody import PythonForEverybody

pytestmark = pytest.mark.slow
JOB, OTHER = "alices-job", "another-job"


class Node:
    """A daemon that has told of a stopped rank, its webhook, and the command line as root."""

    def __init__(self, daemon: ServiceDaemon, python: PythonForEverybody, webhook: Webhook) -> None:
        self.daemon = daemon
        self.webhook = webhook
        self._python = python

    def stallwatch(self, *arguments: str, uid: int = 0, group: int | None = None) -> subprocess.CompletedProcess[str]:
        user = [] if uid == 0 else as_user(uid)
        if group is not None:
            user = [word for word in user if word != "--clear-groups"] + ["--groups", str(group)]
        environment = {
            **self._python.environment,
            "STALLWATCH_DAEMON_RUN_DIRECTORY": str(self.daemon.folder / "run"),
            "COLUMNS": "250",
        }
        command = [*user, *self._python.command, "-m", "stallwatch.cli", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)

    def said(self, *arguments: str) -> str:
        done = self.stallwatch(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def job_of(name: str, daemon: ServiceDaemon, python: PythonForEverybody) -> Iterator[UserJob]:
    job = UserJob(python, ALICE, name, 2, daemon.rank_directory)
    yield job
    job.end()


@pytest.fixture(scope="module")
def node(python: PythonForEverybody) -> Iterator[Node]:
    with Webhook().running() as webhook, node_folder() as folder:
        daemon = ServiceDaemon(folder, python, {"webhook": {"url": webhook.url}})
        daemon.start()
        try:
            with job_of(JOB, daemon, python) as job, job_of(OTHER, daemon, python):
                daemon.until(lambda: daemon.steps(JOB) and daemon.steps(OTHER), "all step")
                job.send(1, signal.SIGSTOP)
                daemon.until(lambda: any(one.severity == "critical" for one in daemon.incidents(JOB)), "it is told")
                yield Node(daemon, python, webhook)
        finally:
            daemon.stop()


def test_status_shows_ranks_and_what_stands_open(node: Node) -> None:
    said = node.said("status")
    assert "stopped" in said
    assert "stepping" in said
    assert node.daemon.incidents(JOB)[0].verdicts[0].summary in said
    document = json.loads(node.said("status", "--json"))
    assert {rank["training_job"] for rank in document["ranks"]} >= {JOB, OTHER}


def test_incidents_lists_and_shows_one(node: Node) -> None:
    (incident,) = node.daemon.incidents(JOB)
    assert f"process_stopped: {incident.verdicts[0].summary}" in node.said("incidents")
    said = node.said("incidents", incident.incident_id)
    verdict = incident.verdicts[0]
    for part in (verdict.summary, verdict.because[0].fact, verdict.next_steps[0], "told as critical", incident.bundle):
        assert part in said
    assert json.loads(node.said("incidents", incident.incident_id, "--json"))["incident_id"] == incident.incident_id


def test_analyze_says_of_the_bundle_what_the_daemon_said(node: Node) -> None:
    (incident,) = node.daemon.incidents(JOB)
    done = node.stallwatch("analyze", incident.bundle, "--json")
    assert done.returncode == EXIT_VERDICT, done.stderr
    verdict = json.loads(done.stdout)["verdicts"][0]
    assert (verdict["cause"], verdict["culprits"]) == ("process_stopped", [1])
    assert verdict["summary"] == incident.verdicts[0].summary


def test_capture_takes_evidence_of_a_healthy_job(node: Node) -> None:
    several = node.stallwatch("capture")
    assert several.returncode == EXIT_USAGE
    assert f"{JOB}, {OTHER}" in several.stderr
    incident_id = json.loads(node.said("capture", "--job", OTHER, "--json"))["incident_id"]
    node.daemon.until(lambda: node.daemon.client.incident(incident_id).state == "resolved", "it is judged")
    incident = node.daemon.client.incident(incident_id)
    assert {verdict.cause for verdict in incident.verdicts} <= {"healthy", "undecided"}
    assert not [message for message in node.webhook.received if "incident" in message["data"]
                and message["data"]["incident"]["training_job"] == OTHER], "nobody is told"  # fmt: skip


def test_notify_test_says_what_became_of_it(node: Node) -> None:
    before = len(node.webhook.received)
    assert node.said("notify-test").startswith("webhook: delivered")
    assert "test" in [
        message["data"]["step"] for message in node.webhook.received[before:]
    ]  # others' may arrive meanwhile


def test_mute_keeps_a_job_quiet_and_is_over_when_it_is_ended(node: Node) -> None:
    assert f"Nobody is told about {OTHER} of uid {ALICE} for 30 min." in node.said("mute", OTHER)
    assert f"{OTHER} of uid {ALICE} is told about again." in node.said("mute", OTHER, "--for", "0")


def test_the_socket_is_open_to_the_daemons_group_alone(node: Node) -> None:
    refused = node.stallwatch("status", uid=ALICE)
    assert refused.returncode == EXIT_UNAVAILABLE
    assert "permission denied" in refused.stderr
    assert "It is for the group " in refused.stderr
    assert node.stallwatch("status", uid=ALICE, group=SERVICE).returncode == 0


def test_without_a_daemon_the_commands_say_how_to_start_one(
    node: Node, tmp_path_factory: pytest.TempPathFactory
) -> None:
    nowhere = str(tmp_path_factory.mktemp("run") / "control.sock")
    for command in (["status"], ["incidents"], ["capture"], ["mute", "x"], ["notify-test"]):
        done = node.stallwatch(*command, "--socket", nowhere)
        assert done.returncode == EXIT_UNAVAILABLE
        assert "systemctl start stallwatch" in done.stderr


def test_top_ends_quietly_on_ctrl_c(node: Node) -> None:
    main, terminal = os.openpty()
    environment = {**os.environ, "STALLWATCH_DAEMON_RUN_DIRECTORY": str(node.daemon.folder / "run"), "TERM": "xterm"}
    # A shell without job control starts what runs in its background with SIGINT ignored, and that is inherited.
    heeds = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = ["-c", f"{heeds}; import sys; from stallwatch.cli import main; sys.exit(main())", "top"]
    top = subprocess.Popen(
        [sys.executable, *command], stdin=terminal, stdout=terminal, stderr=terminal, env=environment
    )
    os.close(terminal)
    shown = b""
    while JOB.encode() not in shown:
        shown += os.read(main, 4096)
    top.send_signal(signal.SIGINT)
    try:
        while part := os.read(main, 4096):
            shown += part
    except OSError:
        pass  # EIO: nobody holds the other end any more
    os.close(main)
    assert top.wait(30) in (0, 130)
    assert b"Traceback" not in shown
