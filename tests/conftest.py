"""Shared fixtures. Helpers that several tests need live in modules beside them, not here."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import jobs

with contextlib.suppress(ImportError):  # where only GPU tests run it may be absent
    from hypothesis import HealthCheck, settings

    # A loaded machine is slow and not wrong: one example took 609 ms of the 200 that are allowed by default.
    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")


@pytest.fixture
def folder_for_all() -> Iterator[Path]:
    """A place that other users may enter. Not below tmp_path: each pytest that starts shuts the folder that holds those
    of all of them, another one's on the same machine too."""
    folder = Path(tempfile.mkdtemp(prefix="sw-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def job_server() -> Iterator[jobs.Server]:
    """Forks the ranks of test jobs from a process that has torch imported; see tests/bench/jobs.py."""
    pytest.importorskip("torch", reason="jobs of the tests train with torch")
    with jobs.server() as server:
        yield server
