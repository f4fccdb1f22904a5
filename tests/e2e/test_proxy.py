"""deploy/proxy/nginx.conf as it ships, in front of a real page, with a stand-in for who asks people to log in."""

import contextlib
import http.server
import shutil
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallwatch.selftest.launching import free_port
from tests.integration.outputs.serving import served
from tests.integration.outputs.test_viewers import INCIDENTS, REPORT, STRANGER, TOKEN
from tests.readme import ROOT
from tests.unit.outputs.reports import FakeControl

SECONDS = 60.0
FREE = "/of-no-login"


class Login(http.server.BaseHTTPRequestHandler):
    """Says that a cookie's owner has logged in, as oauth2-proxy does."""

    def do_GET(self) -> None:
        _, _, user = self.headers.get("Cookie", "").partition("user=")
        if self.headers.get("X-Forwarded-Uri") == FREE:  # as with --skip-auth-route
            user = "root"
        self.send_response(202 if user else 401)
        if user:
            self.send_header("X-Auth-Request-Preferred-Username", user)
        self.end_headers()
        if self.path.startswith("/oauth2/sign_in"):
            self.wfile.write(f"please log in, then {self.headers.get('X-Auth-Request-Redirect')}".encode())

    def log_message(self, format: str, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[int]:
    """A server of its own, by its port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def login() -> Iterator[int]:
    with serving(Login) as port:
        yield port


def certificate(openssl: str, name: str, folder: Path) -> None:
    """Of itself alone, with its key: `crt` and `key` in the folder."""
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={name}", "-keyout", "key", "-out", "crt"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip


def test_people_who_have_logged_in_see_what_is_theirs_over_tls(login: int, tmp_path: Path) -> None:
    nginx, openssl = shutil.which("nginx") or shutil.which("/usr/sbin/nginx"), shutil.which("openssl")
    if nginx is None or openssl is None:
        pytest.skip("no nginx or no openssl here")
    certificate(openssl, "stallwatch.example", tmp_path)
    (tmp_path / "token").write_text(TOKEN)
    settings = {
        ("http", "proxy_token_file"): str(tmp_path / "token"),
        ("http", "external_url"): "https://stallwatch.example",
    }
    with served(REPORT, FakeControl(INCIDENTS), overrides=settings) as node:
        port = free_port()
        server = (ROOT / "deploy/proxy/nginx.conf").read_text(encoding="utf-8")
        for shipped, here in (
            ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
            ("/etc/ssl/stallwatch.crt", str(tmp_path / "crt")),
            ("/etc/ssl/stallwatch.key", str(tmp_path / "key")),
            ("127.0.0.1:4180", f"127.0.0.1:{login}"),
            ("127.0.0.1:9477", f"127.0.0.1:{node.port}"),
            ("PROXY-TOKEN", TOKEN),
        ):
            assert shipped in server
            server = server.replace(shipped, here)
        temporary = "".join(
            f"{name}_temp_path {tmp_path}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (tmp_path / "nginx.conf").write_text(
            f"daemon off; master_process off; pid {tmp_path}/pid; error_log {tmp_path}/error.log;\n"
            f"events {{}}\nhttp {{ access_log off; {temporary}\n{server}}}\n"
        )
        proxy = subprocess.Popen([nginx, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")])
        try:
            assert ask(port, "/?ranks", "") == "please log in, then /?ranks"
            assert "401" in ask(port, "/api/v1/ranks", "")
            assert "stallwatch" in ask(port, "/", STRANGER)
            ranks = ask(port, "/api/v1/ranks", STRANGER)
            assert '"ours"' in ranks
            assert '"theirs"' not in ranks
            assert '"theirs"' in ask(port, "/api/v1/ranks", "root")
        finally:
            proxy.terminate()
            proxy.wait(SECONDS)


def ask(port: int, path: str, user: str) -> str:
    """Ask as a browser does that has logged in as `user`, once the proxy listens."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    # What it says of itself is thrown away: only the login counts.
    headers = {"Host": "stallwatch.example", "X-Forwarded-User": "root", "Authorization": "Bearer nonsense"}
    headers["X-Forwarded-Uri"] = FREE
    if user:
        headers["Cookie"] = f"user={user}"
    request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", headers=headers)
    until = time.monotonic() + SECONDS
    while True:
        try:
            with urllib.request.urlopen(request, timeout=SECONDS, context=trusting) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return str(error.read().decode())
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.1)
