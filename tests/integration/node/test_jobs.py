"""Several jobs of several users on one node, one restarted by its launcher: each has its own ranks and incidents."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from stallwatch.demo.job import end_processes
from stallwatch.outputs.documents import RankDocument
from tests.integration.node.service import ALICE, BOB, STEPS, ServiceDaemon, UserJob, as_user
from tests.programs.everybody import PythonForEverybody

pytestmark = pytest.mark.slow
CAROL = 64213
LAUNCH_SECONDS = 120.0  # the launcher imports torch


@contextmanager
def job_of(uid: int, name: str, daemon: ServiceDaemon, python: PythonForEverybody) -> Iterator[UserJob]:
    running = UserJob(python, uid, name, 2, daemon.rank_directory)
    yield running
    running.end()


def test_jobs_of_two_users_do_not_mix(daemon: ServiceDaemon, python: PythonForEverybody) -> None:
    with (
        job_of(ALICE, "stops", daemon, python) as stops,
        job_of(BOB, "dies", daemon, python) as dies,
        job_of(ALICE, "goes-on", daemon, python),
    ):
        names = ("stops", "dies", "goes-on")
        daemon.until(lambda: all(daemon.steps(name) for name in names), "all step")
        stops.send(1, signal.SIGSTOP)
        dies.send(0, signal.SIGUSR2)
        daemon.until(
            lambda: all(any(one.verdicts for one in daemon.incidents(name)) for name in names[:2]), "two verdicts"
        )
        (stopped,), (died,) = daemon.incidents("stops"), daemon.incidents("dies")
        assert (stopped.verdicts[0].cause, stopped.verdicts[0].culprits) == ("process_stopped", (1,))
        assert (died.verdicts[0].cause, died.verdicts[0].culprits) == ("rank_exited", (0,))
        assert "exited with code 3" in died.verdicts[0].summary
        assert {process.pid for process in stopped.verdicts[0].culprit_processes} == {stops.pid(1)}
        assert {process.pid for process in died.verdicts[0].culprit_processes} == {dies.pid(0)}
        assert daemon.incidents("goes-on") == []
        assert daemon.steps("goes-on")


@pytest.mark.torch
@pytest.mark.timeout(240)
def test_a_restarted_job_is_a_new_epoch_with_an_incident_of_its_own(
    daemon: ServiceDaemon, python: PythonForEverybody
) -> None:
    """torchrun --max-restarts=1: rank 1 fails in the first life, and hangs in the second."""
    pytest.importorskip("torch", reason="torchrun comes with torch")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    with job_of(BOB, "goes-on", daemon, python), (daemon.folder / "torchrun.log").open("wb") as log:
        agent = subprocess.Popen(
            [*as_user(CAROL), *python.command, *torchrun, str(STEPS), "1"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={
                **python.environment,
                "STALLWATCH_DIR": str(daemon.rank_directory),
                "STALLWATCH_JOB": "restarts",
                "TMPDIR": str(daemon.folder),
                "OMP_NUM_THREADS": "1",
            },
            start_new_session=True,
        )
        try:
            daemon.until(lambda: len(daemon.incidents("restarts")) > 0, "the failure", LAUNCH_SECONDS)
            first_epoch = daemon.incidents("restarts")[0].epoch
            daemon.until(lambda: len(not_of(daemon, first_epoch)) == 2, "the second life")
            second = not_of(daemon, first_epoch)[0]
            daemon.until(lambda: second_stands(daemon, second.epoch), "rank 1 stands still in it")
            rank_1 = next(r for r in daemon.ranks("restarts") if r.epoch == second.epoch and r.rank == 1)
            os.kill(rank_1.pid, signal.SIGSTOP)
            daemon.until(lambda: len(daemon.incidents("restarts")) == 2, "an incident of the second life")
            daemon.until(lambda: bool(daemon.incidents("restarts")[1].verdicts), "its verdict")
            first, later = daemon.incidents("restarts")
            assert (first.verdicts[0].cause, first.verdicts[0].culprits) == ("rank_exited", (1,))
            assert "exited with code 3" in first.verdicts[0].summary
            assert first.state == "ended"
            assert (later.verdicts[0].cause, later.verdicts[0].culprits) == ("process_stopped", (1,))
            assert first.epoch != later.epoch == second.epoch
            assert first.incident_id != later.incident_id
            assert daemon.incidents("goes-on") == []
        finally:
            ranks = set(psutil.Process(agent.pid).children(recursive=True))
            agent.kill()
            end_processes(ranks)
            agent.wait()


def not_of(daemon: ServiceDaemon, epoch: str) -> list[RankDocument]:
    """The job's ranks of another life than this."""
    return [rank for rank in daemon.ranks("restarts") if rank.epoch != epoch]


def second_stands(daemon: ServiceDaemon, epoch: str) -> bool:
    ranks = [rank for rank in daemon.ranks("restarts") if rank.epoch == epoch and rank.rank == 1]
    return bool(ranks) and ranks[0].step is not None and ranks[0].step > 60
