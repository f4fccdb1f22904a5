"""The fork server starts jobs as torchrun does; many tests stand on it."""

import signal
from pathlib import Path

import pytest

from tests.bench.jobs import Server

PROGRAM = Path(__file__).parents[1] / "programs" / "tells_its_variables.py"
SECONDS = 30.0

pytestmark = pytest.mark.torch


def test_ranks_have_torchruns_variables_and_those_that_were_asked_for(job_server: Server, tmp_path: Path) -> None:
    job = job_server.launch(PROGRAM, ["0"], ranks=2, environment={"GREETING": "hello"}, log=tmp_path / "log")
    assert job.wait(SECONDS) == 0
    assert sorted((tmp_path / "log").read_text(encoding="utf-8").splitlines()) == [
        "0 0 2 2 127.0.0.1 hello",
        "1 1 2 2 127.0.0.1 hello",
    ]


def test_a_rank_that_fails_ends_the_job_and_names_its_exit_code(job_server: Server, tmp_path: Path) -> None:
    job = job_server.launch(PROGRAM, ["wait", "3"], ranks=3, environment={"GREETING": ""}, log=tmp_path / "log")
    assert job.wait(SECONDS) == 3
    assert [job.ended[pid] for pid in job.pids] == [-signal.SIGTERM, 3, -signal.SIGTERM]


def test_stopping_a_job_ends_ranks_that_wait_for_ever(job_server: Server, tmp_path: Path) -> None:
    job = job_server.launch(PROGRAM, ["wait"], ranks=2, environment={"GREETING": ""}, log=tmp_path / "log")
    assert job.exit_code() is None
    job.stop()
    assert set(job.ended.values()) == {-signal.SIGKILL}


SHOWS = """
import os, subprocess
shown = dict(entry.split("=", 1) for entry in open("/proc/self/environ").read().split("\\0") if entry)
passed_on = subprocess.run(["printenv", "RANK", "GREETING"], capture_output=True, text=True).stdout.split()
print(shown == dict(os.environ), shown["RANK"], shown["GREETING"], *passed_on, flush=True)
"""


def test_a_rank_shows_its_variables_as_one_that_was_started_by_exec(job_server: Server, tmp_path: Path) -> None:
    program = tmp_path / "shows.py"
    program.write_text(SHOWS, encoding="utf-8")
    job = job_server.launch(
        program, ranks=2, environment={"GREETING": "hello"}, log=tmp_path / "log", shows_environment=True
    )
    assert job.wait(SECONDS) == 0
    shown = sorted((tmp_path / "log").read_text(encoding="utf-8").splitlines())
    assert shown == ["True 0 hello 0 hello", "True 1 hello 1 hello"]
