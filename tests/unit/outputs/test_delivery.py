import concurrent.futures
import contextlib
import email.utils
import http.server
import socket
import threading
import time
from collections.abc import Iterator
from typing import Literal

import msgspec
import psutil
import pytest

from stallwatch.outputs.delivery import ChildPoster, Delivered, Later, Refused, judge
from stallwatch.outputs.poster import PostAnswer, PostRequest, post


@pytest.mark.parametrize("status", [200, 201, 204])
def test_an_accepted_message_is_delivered(status: int) -> None:
    assert isinstance(judge(PostAnswer(status, "ok")), Delivered)


@pytest.mark.parametrize("status", [302, 303, 307, 408, 425, 429, 500, 502, 503, 504, None])
def test_what_may_pass_is_tried_again(status: int | None) -> None:
    assert isinstance(judge(PostAnswer(status, "busy")), Later)


@pytest.mark.parametrize("status", [301, 308, 400, 401, 403, 404, 410])
def test_what_will_not_change_is_not_tried_again(status: int) -> None:
    outcome = judge(PostAnswer(status, "no_service"))
    assert isinstance(outcome, Refused)
    assert outcome.reason == f"{status} no_service"


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("999999999", 3600.0),
        ("soon", None),
        ("", None),
        (None, None),
        ("nan", None),
    ],
)
def test_retry_after_is_honoured_within_reason(given: str | None, seconds: float | None) -> None:
    assert judge(PostAnswer(429, "", given)) == Later("429", seconds)


def test_retry_after_may_be_a_date() -> None:
    outcome = judge(PostAnswer(503, "", email.utils.formatdate(time.time() + 600, usegmt=True)))
    assert isinstance(outcome, Later)
    assert outcome.after_seconds is not None
    assert 500 < outcome.after_seconds <= 600


@pytest.mark.parametrize("kind", ["json", "slack"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(
    kind: Literal["json", "slack"], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Following turns the POST into a GET without a message, and its 200 into "delivered"."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    asked: list[str] = []

    class Redirecting(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(f"POST {self.path}")
            self.send_response(status)
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/login?token=secret")  # type: ignore[attr-defined]
            self.end_headers()

        def do_GET(self) -> None:
            asked.append(f"GET {self.path}")
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Redirecting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        answer = post(PostRequest(kind, f"http://127.0.0.1:{server.server_port}/hook", msgspec.Raw(b"{}"), 5))
        server.shutdown()
    assert asked == ["POST /hook"]
    assert answer.status == status
    assert f"redirects to http://127.0.0.1:{server.server_port}" in answer.detail
    assert "secret" not in answer.detail


def test_a_connection_that_breaks_off_may_have_delivered_and_one_that_is_refused_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert judge(PostAnswer(None, "RemoteDisconnected", perhaps_delivered=True)) == Later(
        "RemoteDisconnected", None, True
    )
    nobody = PostRequest("json", "http://127.0.0.1:1/secret", msgspec.Raw(b"{}"), 5)
    assert post(nobody).perhaps_delivered is False
    with socket.create_server(("127.0.0.1", 0)) as server:
        hangs_up = threading.Thread(target=lambda: server.accept()[0].close())
        hangs_up.start()
        broken = post(PostRequest("json", f"http://127.0.0.1:{server.getsockname()[1]}/secret", msgspec.Raw(b"{}"), 5))
        hangs_up.join(10)
    assert broken.status is None
    assert broken.perhaps_delivered is True


@pytest.fixture
def server() -> Iterator[tuple[str, list[bytes]]]:
    """Its address, and the bodies that it has accepted."""
    bodies: list[bytes] = []

    class Accepting(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Accepting) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{serving.server_port}/", bodies
        finally:
            serving.shutdown()


def posters() -> list[int]:
    found = []
    for one in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # another test's, that ends now and is not waited for yet
            found += [one.pid] if "stallwatch.outputs.poster" in one.cmdline() else []
    return found


@pytest.fixture
def poster(server: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch) -> Iterator[ChildPoster]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made = ChildPoster(PostRequest("json", server[0], msgspec.Raw(b"{}"), 0))
    try:
        yield made
    finally:
        made.cancel()


@pytest.mark.parametrize("size", [10, 1 << 20])
def test_messages_in_a_row_go_out_by_one_child(poster: ChildPoster, server: tuple[str, list[bytes]], size: int) -> None:
    bodies = [msgspec.json.encode(str(number) * size) for number in range(3)]
    used = set()
    for body in bodies:
        assert isinstance(poster.post(body, 60), Delivered)
        used |= set(posters())
    assert server[1] == bodies
    assert len(used) == 1
    poster.cancel()
    assert posters() == []


def test_a_child_that_waits_and_dies_costs_no_message(poster: ChildPoster, server: tuple[str, list[bytes]]) -> None:
    assert isinstance(poster.post(b"1", 60), Delivered)
    (waiting,) = posters()
    psutil.Process(waiting).kill()
    while psutil.pid_exists(waiting) and psutil.Process(waiting).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)  # the test's own time limit bounds this
    assert isinstance(poster.post(b"2", 60), Delivered)
    assert server[1] == [b"1", b"2"]


def test_a_server_that_is_silent_costs_its_deadline_and_its_child(poster: ChildPoster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mute = ChildPoster(PostRequest("json", f"http://127.0.0.1:{silent.getsockname()[1]}/", msgspec.Raw(b"{}"), 0))
        outcome = mute.post(b"1", 2)
        assert isinstance(outcome, Later)
        assert outcome.perhaps_delivered


def test_a_delivery_that_takes_its_time_keeps_no_other_waiting(poster: ChildPoster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, concurrent.futures.ThreadPoolExecutor() as pool:
        silent.settimeout(60)
        both = ChildPoster(PostRequest("json", f"http://127.0.0.1:{silent.getsockname()[1]}/", msgspec.Raw(b"{}"), 0))
        posted = [pool.submit(both.post, body, 60.0) for body in (b"1", b"2")]
        connections = [silent.accept()[0] for _ in posted]  # the second, while the first is not answered
        both.cancel()
        assert all(isinstance(one.result(60), Later) for one in posted)
        for connection in connections:
            connection.close()


def test_who_was_told_to_be_ready_starts_no_second_child(poster: ChildPoster) -> None:
    poster.be_ready()
    poster.be_ready()
    (ready,) = posters()
    assert isinstance(poster.post(b"1", 60), Delivered)
    assert posters() == [ready]
