"""A local HTTP server in the place of Slack's: keeps every JSON body that is posted to it."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Webhook:
    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        webhook = self

        class Endpoint(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"ok")
                webhook.note(json.loads(body))

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
        self.url = f"http://127.0.0.1:{self._server.server_port}/services/T/B/x"

    def note(self, body: dict[str, Any]) -> None:
        with self._changed:
            self.received.append(body)
            self._changed.notify_all()

    def wait(self, count: int, seconds: float) -> list[dict[str, Any]]:
        """Return what was received once there are `count` messages or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.received) >= count, seconds)
            return list(self.received)

    @contextlib.contextmanager
    def running(self) -> Iterator["Webhook"]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()
