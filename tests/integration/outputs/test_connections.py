"""Others' connections: silent, slow, many. Whoever asks something is answered all the same."""

import contextlib
import http.client
import socket
from collections.abc import Iterator

import pytest

from stallwatch.model.incident import NodeReport
from stallwatch.outputs import connections
from tests.integration.outputs.serving import Served, served, stalled
from tests.unit.outputs.reports import node_report, view


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines that a test can wait for."""
    monkeypatch.setattr(connections, "_SWEEP_SECONDS", 0.02)
    for name in ("HEAD_SECONDS", "BODY_SECONDS", "UNREAD_SECONDS"):
        monkeypatch.setattr(connections, name, 0.2)


@contextlib.contextmanager
def connected(node: Served, count: int, first: bytes = b"") -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as held:
        made = []
        for _ in range(count):
            made.append(held.enter_context(socket.create_connection(("127.0.0.1", node.port), timeout=30)))
            with contextlib.suppress(ConnectionError):
                made[-1].sendall(first)
        yield made


def ended(connection: socket.socket) -> bool:
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("first", [b"", b"GET /metrics HT", b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_a_scrape_and_a_probe_are_answered_however_many_others_are_connected(first: bytes) -> None:
    with served(stalled()) as node, connected(node, 300, first):
        for _ in range(20):
            assert node.get("/healthz").status == 200
            assert node.get("/metrics").status == 200
        assert node.client.healthy()


def test_on_the_control_socket_too() -> None:
    with served(stalled()) as node, contextlib.ExitStack() as held:
        for _ in range(300):
            silent = held.enter_context(socket.socket(socket.AF_UNIX))
            silent.settimeout(30)
            silent.connect(str(node.output.socket_path))
        assert node.client.healthy()
        assert node.client.ranks().node == "gpu-node-17"


UNFINISHED = {
    "silent": b"",
    "half a head": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n",
    "half a body": b"POST /control/mute HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
    "a second request": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea",
}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("sent", UNFINISHED.values(), ids=UNFINISHED)
def test_a_request_has_a_time_in_which_it_must_arrive(sent: bytes) -> None:
    with served(stalled()) as node, connected(node, 1, sent) as (slow,):
        assert ended(slow)


@pytest.mark.usefixtures("impatient")
def test_one_that_sends_a_byte_now_and_then_gets_no_more_time() -> None:
    with served(stalled()) as node, connected(node, 1, b"GET /metrics HTTP/1.1\r\nX: ") as (slow,):
        slow.settimeout(0.01)
        assert trickled(slow)


def trickled(slow: socket.socket) -> bool:
    """Send byte after byte until the other side has closed."""
    while True:
        try:
            slow.sendall(b"x")
            if not slow.recv(1):
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True


def large() -> NodeReport:
    return node_report(ranks=tuple(view(rank, world_size=2048) for rank in range(2048)))


@pytest.mark.usefixtures("impatient")
def test_one_that_does_not_read_its_answer_is_dropped() -> None:
    with served(large()) as node:
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(("127.0.0.1", node.port))
            slow.settimeout(30)
            slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 8)
            with contextlib.suppress(ConnectionError):
                while True:  # no room is left on its way: the daemon has closed, or this blocks and times out
                    slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        assert node.get("/metrics").status == 200


def test_a_connection_is_kept_for_the_next_scrape() -> None:
    with served(stalled()) as node:
        connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=10)
        with contextlib.closing(connection):
            ports = set()
            for _ in range(3):
                connection.request("GET", "/metrics")
                assert connection.getresponse().read()
                assert connection.sock is not None
                ports.add(connection.sock.getsockname()[1])
            assert len(ports) == 1
