"""The demo as a person runs it: real torchrun, real daemon, and nothing left behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stallwatch.cli.app import run
from stallwatch.demo.catalogue import FAULTS

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SECONDS = 240.0


def demo(*arguments: str, temporary: Path) -> subprocess.Popen[str]:
    pytest.importorskip("torch", reason="the demo trains with torch")
    return subprocess.Popen(
        [sys.executable, "-m", "stallwatch.cli", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(temporary)},
    )


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Short, as the daemon's socket lies below it."""
    folder = Path("/tmp") / f"sw-test-{os.getpid()}-{time.monotonic_ns()}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def living(temporary: Path) -> list[psutil.Process]:
    """Processes of a demo that was played below this folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR", "").startswith(str(temporary)):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.timeout(SECONDS)
def test_the_default_demo_is_right_and_leaves_nothing_behind(temporary: Path) -> None:
    with demo("--json", temporary=temporary) as running:
        told, progress = running.communicate(timeout=SECONDS)
    assert running.returncode == 0, f"{told}\n{progress}"
    outcome = json.loads(told)
    assert outcome["agrees"]
    assert outcome["incident"]["verdicts"][0]["cause"] == "not_entered"
    assert not living(temporary)
    assert not list(temporary.iterdir())


@pytest.mark.timeout(SECONDS)
def test_ctrl_c_ends_job_and_daemon(temporary: Path) -> None:
    with demo("--fault", "sleep", "--ranks", "2", temporary=temporary) as running:
        assert running.stdout
        for line in running.stdout:
            if "ranks of" in line:  # daemon and job are up
                break
        running.send_signal(signal.SIGINT)
        told, errors = running.communicate(timeout=60)
    assert running.returncode == 130, f"{told}\n{errors}"
    assert not living(temporary)
    assert not list(temporary.iterdir())


def test_the_list_names_every_fault_without_starting_anything(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--list"]) == 0
    assert [line.split()[0] for line in capfd.readouterr().out.splitlines()] == [fault.name for fault in FAULTS]


def test_an_unknown_fault_is_wrong_usage() -> None:
    assert run(["demo", "--fault", "lokc"]) == 64
