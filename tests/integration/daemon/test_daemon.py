"""A real daemon process over real ranks (without torch): what its life and its children do."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from stallwatch.demo.daemon_child import DaemonChild
from stallwatch.outputs.documents import IncidentDocument
from tests.integration.daemon.steppers import Steppers

pytestmark = pytest.mark.slow
JOB, SECONDS = "steppers", 40.0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonChild]:
    child = DaemonChild(tmp_path, os.environ)
    child.start()
    yield child
    child.stop()


@pytest.fixture
def job(daemon: DaemonChild) -> Iterator[Steppers]:
    steppers = Steppers(daemon.rank_directory, 3, JOB)
    yield steppers
    steppers.end()


def until(daemon: DaemonChild, condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        daemon.check()
        if time.monotonic() > end:
            pytest.fail(f"{what}: not within {SECONDS:.0f} s; daemon: {daemon.log.read_text()[-3000:]}")
        time.sleep(0.1)


def incidents(daemon: DaemonChild) -> list[IncidentDocument]:
    return [one for one in daemon.client.incidents().incidents if one.training_job == JOB]


def stepping(daemon: DaemonChild) -> bool:
    states = [rank.state for rank in daemon.client.ranks().ranks]
    return states == ["stepping"] * 3


def test_a_stopped_rank_is_told_and_resolved_when_it_goes_on(daemon: DaemonChild, job: Steppers) -> None:
    until(daemon, lambda: stepping(daemon), "three ranks step")
    os.kill(job.processes[1].pid, signal.SIGSTOP)
    until(daemon, lambda: any(one.verdicts for one in incidents(daemon)), "a verdict")
    (incident,) = incidents(daemon)
    assert (incident.verdicts[0].cause, incident.verdicts[0].culprits) == ("process_stopped", (1,))
    until(daemon, lambda: incidents(daemon)[0].severity == "critical", "the patience of a stop is over")
    os.kill(job.processes[1].pid, signal.SIGCONT)
    until(daemon, lambda: incidents(daemon)[0].state == "resolved", "resolution")


def test_a_killed_rank_is_told(daemon: DaemonChild, job: Steppers) -> None:
    until(daemon, lambda: stepping(daemon), "three ranks step")
    job.processes[2].kill()
    until(daemon, lambda: any(one.verdicts for one in incidents(daemon)), "a verdict")
    verdict = incidents(daemon)[0].verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("rank_exited", (2,))


def test_a_daemon_killed_in_mid_incident_goes_on_with_it_after_a_restart(daemon: DaemonChild, job: Steppers) -> None:
    until(daemon, lambda: stepping(daemon), "three ranks step")
    os.kill(job.processes[1].pid, signal.SIGSTOP)
    until(daemon, lambda: any(one.verdicts for one in incidents(daemon)), "a verdict")
    before = incidents(daemon)[0]
    assert daemon.pid is not None
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.stop()
    daemon.start()
    until(daemon, lambda: bool(incidents(daemon)), "the incident is known again")
    after = incidents(daemon)[0]
    assert after.incident_id == before.incident_id
    assert after.events[: len(before.events)] == before.events
    assert psutil.Process(job.processes[1].pid).status() == psutil.STATUS_STOPPED, "we continue nobody we did not stop"


def test_sigterm_ends_the_daemon_and_all_its_children(daemon: DaemonChild, job: Steppers) -> None:
    until(daemon, lambda: stepping(daemon), "three ranks step")
    assert daemon.pid is not None
    process = psutil.Process(daemon.pid)
    children = process.children(recursive=True)
    assert children
    process.terminate()
    _, alive = psutil.wait_procs([process, *children], timeout=10)
    assert not alive


def test_sighup_reads_the_configuration_again(daemon: DaemonChild) -> None:
    assert daemon.pid is not None
    os.kill(daemon.pid, signal.SIGHUP)
    until(daemon, lambda: "configuration read again" in daemon.log.read_text(), "the log says so")
