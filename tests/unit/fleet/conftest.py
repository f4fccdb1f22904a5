"""A real server for all tests of meeting places."""

from collections.abc import Iterator

import pytest

from stallwatch.selftest.launching import free_port
from tests.builders.redis_server import redis_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    with redis_server(tmp_path_factory.mktemp("redis"), "--port", str(port), listens=port):
        yield f"redis://127.0.0.1:{port}"
