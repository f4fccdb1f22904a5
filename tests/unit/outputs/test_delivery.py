import email.utils
import http.server
import socket
import threading
import time
from typing import Literal

import msgspec
import pytest

from stallwatch.outputs.delivery import Delivered, Later, Refused, judge
from stallwatch.outputs.poster import Answer, Request, post


@pytest.mark.parametrize("status", [200, 201, 204])
def test_an_accepted_message_is_delivered(status: int) -> None:
    assert isinstance(judge(Answer(status, "ok")), Delivered)


@pytest.mark.parametrize("status", [302, 303, 307, 408, 425, 429, 500, 502, 503, 504, None])
def test_what_may_pass_is_tried_again(status: int | None) -> None:
    assert isinstance(judge(Answer(status, "busy")), Later)


@pytest.mark.parametrize("status", [301, 308, 400, 401, 403, 404, 410])
def test_what_will_not_change_is_not_tried_again(status: int) -> None:
    outcome = judge(Answer(status, "no_service"))
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
    assert judge(Answer(429, "", given)) == Later("429", seconds)


def test_retry_after_may_be_a_date() -> None:
    outcome = judge(Answer(503, "", email.utils.formatdate(time.time() + 600, usegmt=True)))
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
        answer = post(Request(kind, f"http://127.0.0.1:{server.server_port}/hook", msgspec.Raw(b"{}"), 5))
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
    assert judge(Answer(None, "RemoteDisconnected", perhaps_delivered=True)) == Later("RemoteDisconnected", None, True)
    nobody = Request("json", "http://127.0.0.1:1/secret", msgspec.Raw(b"{}"), 5)
    assert post(nobody).perhaps_delivered is False
    with socket.create_server(("127.0.0.1", 0)) as server:
        hangs_up = threading.Thread(target=lambda: server.accept()[0].close())
        hangs_up.start()
        broken = post(Request("json", f"http://127.0.0.1:{server.getsockname()[1]}/secret", msgspec.Raw(b"{}"), 5))
        hangs_up.join(10)
    assert broken.status is None
    assert broken.perhaps_delivered is True
