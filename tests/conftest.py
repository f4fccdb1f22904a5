"""Shared fixtures. Helpers that several tests need live in modules beside them, not here."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.bench import jobs

with contextlib.suppress(ImportError):  # where only GPU tests run it may be absent
    from hypothesis import HealthCheck, settings

    # A loaded machine is slow and not wrong: one example took 609 ms of the 200 that are allowed by default.
    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")


@pytest.fixture(scope="session")
def job_server() -> Iterator[jobs.Server]:
    """Forks the ranks of test jobs from a process that has torch imported; see tests/bench/jobs.py."""
    pytest.importorskip("torch", reason="jobs of the tests train with torch")
    with jobs.server() as server:
        yield server
