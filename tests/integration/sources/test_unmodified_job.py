"""A real torchrun job without a line of ours: found, and its hang reported with what can be had."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stallwatch.demo.daemon_child import DaemonChild
from stallwatch.demo.job import end_processes
from stallwatch.outputs.documents import IncidentDocument, RankDocument

pytestmark = [pytest.mark.torch, pytest.mark.slow]
PROGRAM = Path(__file__).parents[2] / "programs" / "unmodified.py"
JOB = "unmodified"
SECONDS = 110.0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonChild]:
    settings = {"stall": {"unlearned_seconds": "5"}, "sensors": {"discover_seconds": "1"}}
    child = DaemonChild(tmp_path, os.environ, settings)
    child.start()
    yield child
    child.stop()


@pytest.fixture
def job(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STALLWATCH_")}
    environment |= {"STALLWATCH_JOB": JOB, "OMP_NUM_THREADS": "1"}
    with (tmp_path / "job.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(PROGRAM)],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    yield process
    below = set(psutil.Process(process.pid).children(recursive=True)) if process.poll() is None else set()
    process.kill()
    process.wait()
    end_processes(below)


def ranks(daemon: DaemonChild) -> list[RankDocument]:
    return [rank for rank in daemon.client.ranks().ranks if rank.training_job == JOB]


def verdict(daemon: DaemonChild) -> IncidentDocument | None:
    mine = [one for one in daemon.client.incidents().incidents if one.training_job == JOB and one.verdicts]
    return mine[0] if mine and mine[0].verdicts[0].cause not in ("healthy", "undecided") else None


def test_job_without_a_hook_is_found_and_its_hang_reported(daemon: DaemonChild, job: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + SECONDS
    while (incident := verdict(daemon)) is None:
        daemon.check()
        assert job.poll() is None
        if time.monotonic() > end:
            said = [one.verdicts[:1] for one in daemon.client.incidents().incidents if one.training_job == JOB]
            pytest.fail(f"no verdict within {SECONDS:.0f} s: {said} {ranks(daemon)}; {daemon.log.read_text()[-3000:]}")
        time.sleep(0.5)
    found = ranks(daemon)
    assert [rank.rank for rank in found] == [0, 1], "the ranks themselves, not their loader workers"
    children = {child.pid for child in psutil.Process(job.pid).children()}
    assert {rank.pid for rank in found} == children
    first = incident.verdicts[0]
    assert (first.cause, first.culprits) == ("not_entered", (1,))
    assert first.culprit_processes[0].frame is not None
    assert first.culprit_processes[0].frame.function.endswith("read_shard")
    assert re.search(r"attach|hook", " ".join(first.missing)), f"what a hook would add is said: {first.missing}"
