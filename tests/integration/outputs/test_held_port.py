"""A user of the node who listens at the daemon's address before it does."""

import contextlib
import os
import socket
import time
from collections.abc import Iterator

import pytest

from tests.builders.clock import FakeClock
from tests.integration.outputs.serving import served, stalled

STRANGER = 64_221


@contextlib.contextmanager
def held_by_another() -> Iterator[int]:
    os.seteuid(STRANGER)
    try:
        holder = socket.create_server(("127.0.0.1", 0))
    finally:
        os.seteuid(0)
    with holder:
        yield holder.getsockname()[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_who_holds_the_pages_port_keeps_nobody_from_being_watched_and_the_page_comes_once_he_lets_go() -> None:
    clock = FakeClock()
    with contextlib.ExitStack() as until_he_goes:
        port = until_he_goes.enter_context(held_by_another())
        with served(stalled(), clock=clock, overrides={("http", "listen"): f"127.0.0.1:{port}"}) as node:
            assert node.client.ranks().node == "gpu-node-17"
            assert f"Address already in use, by uid {STRANGER}" in (node.output.problem() or "")
            until_he_goes.close()
            clock.advance(11)
            deadline = time.monotonic() + 60
            while node.output.problem() is not None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            while True:
                with contextlib.suppress(ConnectionError):
                    assert node.ask("/api/v1/ranks").status == 200
                    break
                assert time.monotonic() < deadline
