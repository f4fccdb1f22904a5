"""deploy/proxy/apache.conf as it ships, in front of a real page: a login by OpenID Connect, and what it leads to."""

import base64
import hashlib
import hmac
import http.cookiejar
import http.server
import json
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stallwatch.selftest.launching import free_port
from tests.e2e.test_proxy import certificate, serving
from tests.integration.outputs.serving import served
from tests.integration.outputs.test_viewers import INCIDENTS, REPORT, STRANGER, TOKEN
from tests.readme import ROOT
from tests.unit.outputs.reports import FakeControl

SECONDS = 60.0
SECRET = "a secret of client and provider that is long enough"
MODULES = Path("/usr/lib/apache2/modules")
NEEDS = (
    "mpm_event", "authn_core", "authz_core", "authz_user", "headers", "proxy", "proxy_http", "ssl", "socache_shmcb",
    "auth_openidc",
)  # fmt: skip


class Provider(http.server.BaseHTTPRequestHandler):
    """As much of OpenID Connect as a client asks for; whoever comes has logged in as `user`."""

    user = ""
    nonce = ""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        asked = {name: values[0] for name, values in urllib.parse.parse_qs(query).items()}
        if path == "/authorize":
            Provider.nonce = asked.get("nonce", "")
            back = urllib.parse.urlencode({"code": "1", "state": asked["state"]})
            self.send_response(302)
            self.send_header("Location", f"{asked['redirect_uri']}?{back}")
            self.end_headers()
        elif path == "/keys":
            self._answer({"keys": []})
        else:
            here = self._issuer()
            said = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
            self._answer({name: f"{here}/{end}" for name, end in said.items()} | {
                "issuer": here, "response_types_supported": ["code"], "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["HS256"],
            })  # fmt: skip

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        now = int(time.time())
        claims = {
            "iss": self._issuer(), "sub": "1", "aud": "stallwatch", "iat": now, "exp": now + 600,
            "nonce": Provider.nonce, "preferred_username": Provider.user,
        }  # fmt: skip
        signed = f"{_part({'alg': 'HS256'})}.{_part(claims)}"
        signature = hmac.new(SECRET.encode(), signed.encode(), hashlib.sha256).digest()
        self._answer({"access_token": "1", "token_type": "Bearer", "id_token": f"{signed}.{_base64(signature)}"})

    def _issuer(self) -> str:
        return f"http://{self.headers['Host']}"

    def _answer(self, said: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(said).encode())

    def log_message(self, format: str, *_: object) -> None:
        pass


def _part(said: dict[str, Any]) -> str:
    return _base64(json.dumps(said).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.fixture
def provider() -> Iterator[int]:
    with serving(Provider) as port:
        yield port


class Browser:
    """Follows redirects and keeps cookies."""

    def __init__(self, address: str) -> None:
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=trusting), cookies)
        self._address = address

    def open(self, path: str, **headers: str) -> tuple[int, str, str]:
        """What a path leads to: status, address, text."""
        sent = {"Accept": "text/html"} | {name.replace("_", "-"): text for name, text in headers.items()}
        request = urllib.request.Request(self._address + path, headers=sent)
        until = time.monotonic() + SECONDS
        while True:
            try:
                with self._opener.open(request, timeout=SECONDS) as answer:
                    return answer.status, answer.url, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.url or "", error.read().decode()
            except OSError:  # it does not listen yet
                assert time.monotonic() < until
                time.sleep(0.1)


def test_a_login_by_openid_connect_leads_to_what_a_link_named_and_shows_what_is_theirs(
    provider: int, tmp_path: Path
) -> None:
    apache, openssl = shutil.which("apache2") or shutil.which("/usr/sbin/apache2"), shutil.which("openssl")
    if apache is None or openssl is None or not (MODULES / "mod_auth_openidc.so").exists():
        pytest.skip("no apache2 with mod_auth_openidc, or no openssl here")
    certificate(openssl, "127.0.0.1", tmp_path)
    (tmp_path / "token").write_text(TOKEN)
    port = free_port()
    here = f"https://127.0.0.1:{port}"
    settings = {("http", "proxy_token_file"): str(tmp_path / "token"), ("http", "external_url"): here}
    with served(REPORT, FakeControl(INCIDENTS), overrides=settings) as node:
        site = (ROOT / "deploy/proxy/apache.conf").read_text(encoding="utf-8")
        for shipped, ours in (
            ("*:443", f"127.0.0.1:{port}"),
            ("/etc/ssl/stallwatch.crt", str(tmp_path / "crt")),
            ("/etc/ssl/stallwatch.key", str(tmp_path / "key")),
            ("https://login.example", f"http://127.0.0.1:{provider}"),
            ("https://stallwatch.example", here),
            ("ServerName stallwatch.example", "ServerName 127.0.0.1"),
            ("127.0.0.1:9477", f"127.0.0.1:{node.port}"),
            ("CLIENT-SECRET", f'"{SECRET}"'),
            ("PROXY-TOKEN", TOKEN),
        ):
            assert shipped in site
            site = site.replace(shipped, ours)
        loaded = "".join(f"LoadModule {name}_module {MODULES}/mod_{name}.so\n" for name in NEEDS)
        (tmp_path / "apache.conf").write_text(
            f"ServerRoot {tmp_path}\nPidFile {tmp_path}/pid\nErrorLog {tmp_path}/error.log\nServerName 127.0.0.1\n"
            f"DefaultRuntimeDir {tmp_path}\nMutex pthread\nUser www-data\nGroup www-data\nListen 127.0.0.1:{port}\n"
            f"{loaded}{site}"
        )
        proxy = subprocess.Popen([apache, "-f", str(tmp_path / "apache.conf"), "-DFOREGROUND"])
        try:
            Provider.user = STRANGER
            anna = Browser(here)
            assert anna.open("/api/v1/ranks", X_Forwarded_User="root", Authorization="Bearer nonsense")[0] == 401
            status, came_to, page = anna.open("/?incident=ours-1")
            assert (status, came_to) == (200, f"{here}/?incident=ours-1")
            assert "<title>stallwatch</title>" in page
            ranks = anna.open("/api/v1/ranks", X_Forwarded_User="root")[2]
            assert '"ours"' in ranks
            assert '"theirs"' not in ranks
            Provider.user = "root"
            ben = Browser(here)
            ben.open("/")
            assert '"theirs"' in ben.open("/api/v1/ranks")[2]
        finally:
            proxy.terminate()
            proxy.wait(SECONDS)
