"""Metrics, page and API on TCP, and the same with control on a unix socket, in one thread of their own."""

import asyncio
import base64
import hashlib
import logging
import re
import socket
import threading
from importlib import resources
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.responses import HTMLResponse

from stallwatch.clock import Clock
from stallwatch.config import Config
from stallwatch.errors import StallwatchError, UsageError
from stallwatch.formats.addresses import is_loopback
from stallwatch.outputs.connections import Places, limited
from stallwatch.outputs.endpoints import Endpoints, control_app, tcp_app
from stallwatch.outputs.http_auth import Proxy, SocketGuard, TokenGuard
from stallwatch.outputs.latest import Latest
from stallwatch.outputs.output import Control, Output
from stallwatch.outputs.output_health import OutputHealth, health
from stallwatch.outputs.page_token import read_or_make, read_token
from stallwatch.outputs.sessions import Sessions
from stallwatch.outputs.sockets import SOCKET_NAME, HeldByAnother, listen_tcp, listen_unix, split_address
from stallwatch.outputs.viewer import UserGroup
from stallwatch.outputs.web_server import WebServer

logger = logging.getLogger("stallwatch.outputs")

_START_SECONDS = 10.0
_AGAIN_SECONDS = 10.0  # between attempts at a port that somebody else holds
_LOOK_SECONDS = 0.5  # between looks at whether it is time for one
_ACCEPTED_AT_ONCE = 32  # between two looks at who else has something to say; asyncio's name for it is the backlog
_BACKLOG = 1024  # that may wait for it meanwhile; the kernel has its own limit (net.core.somaxconn)


class HttpOutput:
    """Serves what was published last. Given its peers, it also shows whether they deliver."""

    name = "http"

    def __init__(self, config: Config, control: Control, clock: Clock, peers: tuple[Output, ...] = ()) -> None:
        self._config = config
        self._control = control
        self._clock = clock
        self.peers = peers  # replaced as a whole, by the loop
        self._latest = Latest(clock, config.daemon.tick_seconds, config.http.external_url, self._healths)
        self.publish = self._latest.publish
        self._thread: threading.Thread | None = None
        self._servers: list[WebServer] = []
        self._failure: str | None = None
        self._held = ""  # why there is no TCP for now
        self._again_ns = 0
        self._token = ""
        self.port: int | None = None  # the one that was given where http.listen asked for 0

    @property
    def socket_path(self) -> Path:
        """The Unix socket on which the command line reaches this daemon."""
        return Path(self._config.daemon.run_directory) / SOCKET_NAME

    def page_url(self) -> str | None:
        """The page's address with its token, for who may use the control socket; None without TCP."""
        if self.port is None:
            return None
        host, _ = split_address(self._config.http.listen)
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
        base = self._config.http.external_url.rstrip("/") or f"http://{shown}:{self.port}"
        return f"{base}/?token={self._token}"

    def start(self) -> None:
        """Open the control socket and the TCP port, and serve. Raise StallwatchError where the socket cannot be opened;
        a port that another user holds is tried again later."""
        run_directory = Path(self._config.daemon.run_directory)
        try:
            run_directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"{run_directory}: {error.strerror}",
                "Set daemon.run_directory (STALLWATCH_DAEMON_RUN_DIRECTORY) to a directory that you can make.",
            ) from error
        listening: list[tuple[socket.socket, Starlette]] = []
        try:
            endpoints = self._endpoints = Endpoints(self._latest, self._control, load_page("index.html"), self.page_url)
            listening.append(self._control_socket(endpoints))
            if self._config.http.listen:
                listening += self._tcp_if_free(endpoints, run_directory)
        except StallwatchError:
            for opened, _ in listening:
                opened.close()
                self.socket_path.unlink(missing_ok=True)  # ours: another daemon's would not have let us open it
            raise
        self._serve(listening)

    def _control_socket(self, endpoints: Endpoints) -> tuple[socket.socket, Starlette]:
        http = self._config.http
        if not http.socket_for_everybody:
            return listen_unix(self.socket_path, http.socket_group), control_app(endpoints)
        guard = SocketGuard(UserGroup(http.socket_group))
        return listen_unix(self.socket_path, http.socket_group, 0o666), control_app(endpoints, guard)

    def _tcp_if_free(self, endpoints: Endpoints, run_directory: Path) -> list[tuple[socket.socket, Starlette]]:
        """A user of the node who came first to the address keeps people from the page until he goes, and no more."""
        try:
            made = [self._tcp(endpoints, run_directory)]
        except HeldByAnother as error:
            self._hold(error)
            return []
        self._held = ""
        return made

    def _tcp(self, endpoints: Endpoints, run_directory: Path) -> tuple[socket.socket, Starlette]:
        self._token = read_or_make(self._config.http.token_file, run_directory)
        proxy = self._proxy()
        server = listen_tcp(self._config.http.listen)
        host, self.port = server.getsockname()[:2]
        external_url = self._config.http.external_url
        sessions = Sessions(self._clock)
        locked = load_page("locked.html", 401)
        guard = TokenGuard(self._token, sessions, self.port, locked, external_url, proxy)
        return server, tcp_app(endpoints, guard, loopback=is_loopback(host), external_url=external_url)

    def _proxy(self) -> Proxy | None:
        http = self._config.http
        if not http.proxy_token_file:
            return None
        token = read_token(Path(http.proxy_token_file), "http.proxy_token_file")
        if token == self._token:
            raise UsageError(
                f"{http.proxy_token_file}: the proxy's token is the page's",
                "Whoever has the page's token could say to be anybody: openssl rand -hex 32 makes another one.",
            )
        return Proxy(token, http.proxy_user_header, UserGroup(http.socket_group))

    def _serve(self, listening: list[tuple[socket.socket, Starlette]]) -> None:
        self._servers = [WebServer(_server_config(app)) for _, app in listening]
        sockets = [opened for opened, _ in listening]
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(sockets, started), name="http", daemon=True)
        self._thread.start()
        if not started.wait(_START_SECONDS) or self._failure:
            raise StallwatchError(f"the web server did not start: {self._failure}", "Please report this as a bug.")

    def _run(self, sockets: list[socket.socket], started: threading.Event) -> None:
        try:
            asyncio.run(self._serve_all(sockets, started))
        except Exception as error:  # noqa: BLE001  the guard of this output's worker: the loop must see it, not die
            self._failure = f"the web server stopped: {type(error).__name__}: {error}"
        finally:
            started.set()

    async def _serve_all(self, sockets: list[socket.socket], started: threading.Event) -> None:
        serving = [
            asyncio.create_task(server.serve(sockets=[opened]))
            for server, opened in zip(self._servers, sockets, strict=True)
        ]
        while not all(server.started for server in self._servers) and not any(task.done() for task in serving):
            await asyncio.sleep(0.01)
        for opened in sockets:
            opened.listen(_BACKLOG)
        started.set()
        again = asyncio.create_task(self._serve_tcp_once_free())
        await asyncio.gather(*serving)
        again.cancel()

    async def _serve_tcp_once_free(self) -> None:
        """Try a port that was held until it is free, and serve there."""
        while self._held:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._clock.monotonic_ns() < self._again_ns:
                continue
            try:
                made = self._tcp_if_free(self._endpoints, Path(self._config.daemon.run_directory))
            except StallwatchError as error:
                self._hold(error)
                continue
            for opened, app in made:
                server = WebServer(_server_config(app))
                self._servers.append(server)
                opened.listen(_BACKLOG)
                await server.serve(sockets=[opened])

    def _hold(self, why: StallwatchError) -> None:
        """There is no TCP for this reason; when to try again."""
        self._again_ns = self._clock.monotonic_ns() + int(_AGAIN_SECONDS * 1e9)
        held = f"{why}; tried again every {_AGAIN_SECONDS:.0f} s. {why.help}"
        if held != self._held:
            self._held = held
            logger.warning("%s", held)

    def _healths(self) -> tuple[OutputHealth, ...]:
        return tuple(health(output) for output in (self, *self.peers))

    def problem(self) -> str | None:
        """Why page and API cannot be reached, None where they can."""
        if self._failure:
            return self._failure
        if self._thread is not None and not self._thread.is_alive():
            return "the web server has stopped"
        return self._held or None

    def close(self, seconds: float) -> None:
        """Have the servers end, within so many seconds, and take the socket away."""
        for server in self._servers:
            server.leave()
        if self._thread is not None:
            self._thread.join(seconds)
            self._thread = None
            self.socket_path.unlink(missing_ok=True)


def load_page(name: str, status: int = 200) -> HTMLResponse:
    """A page of ours, one document with its scripts and styles in it, that may run and load nothing else."""
    folder = resources.files("stallwatch.outputs") / "page"
    text = (folder / name).read_text(encoding="utf-8")
    for tag, pattern in (
        ("style", r'<link rel="stylesheet" href="([\w.]+)">'),
        ("script", r'<script src="([\w.]+)"></script>'),
    ):
        for whole, part in [(found[0], found[1]) for found in re.finditer(pattern, text)]:
            text = text.replace(whole, f"<{tag}>\n{(folder / part).read_text(encoding='utf-8')}</{tag}>")
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hashes('script', text)}",
            f"style-src {_hashes('style', text)}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        ]
    )
    return HTMLResponse(text, status, {"content-security-policy": policy})


def _hashes(tag: str, text: str) -> str:
    bodies = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() for body in bodies]
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"


def _server_config(app: Starlette) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="asyncio",
        http=limited(Places()),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # each malformed request is a warning: anybody's, as many as he likes
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_ACCEPTED_AT_ONCE,
        timeout_keep_alive=75,  # above Prometheus' usual scrape interval: it keeps its connection
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=16 << 10,
    )
