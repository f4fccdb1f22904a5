"""A local HTTP server that plays Slack, or any webhook: it answers what the test wants and keeps what it got."""

import contextlib
import json
import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Reply(NamedTuple):
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    hang: bool = False  # never answer
    drip: bool = False  # answer a byte now and then, for ever


class SlackServer:
    def __init__(self) -> None:
        self.got: queue.Queue[dict[str, Any]] = queue.Queue()
        self.replies: queue.Queue[Reply] = queue.Queue()  # when it is empty, 200
        self.refusals: queue.Queue[str] = queue.Queue()  # errors of the API, which come with status 200
        self.closing = threading.Event()
        self.url = ""
        self.api_url = ""
        self.reactions: list[dict[str, Any]] = []
        self.reactions_asked: queue.Queue[tuple[str, str]] = queue.Queue()
        self.first_ts = "1700000000.000001"

    def calls(self) -> list[dict[str, Any]]:
        """What the API was asked so far, each with its method."""
        return [call for call in list(self.got.queue) if "method" in call]


@contextlib.contextmanager
def slack_server() -> Iterator[SlackServer]:
    slack = SlackServer()

    class Conversation(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if self.path.startswith("/api/reactions.get"):
                self.tell_reactions()
                return
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            method = self.path.removeprefix("/api/") if self.path.startswith("/api/") else ""
            slack.got.put({**body, "method": method} if method else body)
            reply = Reply() if slack.replies.empty() else slack.replies.get()
            answer = self.answer(body) if method else b"ok"
            if reply.hang:
                slack.closing.wait(60)
                return
            self.send_response(reply.status)
            for name, value in reply.headers:
                self.send_header(name, value)
            self.send_header("Content-Length", "1000" if reply.drip else str(len(answer)))
            self.end_headers()
            with contextlib.suppress(OSError):
                while reply.drip and not slack.closing.wait(0.1):
                    self.wfile.write(b".")
                    self.wfile.flush()
                self.wfile.write(answer)

        def tell_reactions(self) -> None:
            asked = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            slack.reactions_asked.put((f"{self.path} {asked}", self.headers.get("Authorization", "")))
            answer = json.dumps({"ok": True, "message": {"reactions": slack.reactions}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def answer(self, body: dict[str, Any]) -> bytes:
            """As Slack's API: the message's place, or an error in a 200."""
            if not slack.refusals.empty():
                return json.dumps({"ok": False, "error": slack.refusals.get()}).encode()
            ts = slack.first_ts if "thread_ts" not in body else "1700000000.000002"
            return json.dumps({"ok": True, "channel": "C1", "ts": ts}).encode()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Conversation)
    server.daemon_threads = True
    slack.url = f"http://127.0.0.1:{server.server_port}/services/T0/B0/secret"
    slack.api_url = f"http://127.0.0.1:{server.server_port}/api/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield slack
    finally:
        slack.closing.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
