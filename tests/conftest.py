"""Shared fixtures. Helpers that several tests need live in modules beside them, not here."""

from collections.abc import Iterator

import pytest

from tests.bench import jobs


@pytest.fixture(scope="session")
def job_server() -> Iterator[jobs.Server]:
    """Forks the ranks of test jobs from a process that has torch imported; see tests/bench/jobs.py."""
    pytest.importorskip("torch", reason="jobs of the tests train with torch")
    with jobs.server() as server:
        yield server
