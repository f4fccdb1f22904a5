"""Who may read what over TCP: a token for everything that shows a job, and no foreign page in somebody's browser."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stallwatch.formats.addresses import is_loopback
from stallwatch.outputs.page_token import equal
from stallwatch.outputs.peers import Peer
from stallwatch.outputs.sessions import SESSION_SECONDS, Sessions
from stallwatch.outputs.viewer import EVERYTHING, UserGroup, Viewer

Endpoint = Callable[[Request], Awaitable[Response]]
_LONGEST_NAME = 256


class Proxy(NamedTuple):
    """Asks people to log in, and says with a token of its own who asks."""

    token: str
    header: str
    group: UserGroup


class TokenGuard:
    """Lets a request through that brings the token in the Authorization header or, as a browser does, in a cookie the
    name of a session that the token has opened."""

    def __init__(
        self,
        token: str,
        sessions: Sessions,
        port: int,
        locked_page: HTMLResponse,
        external_url: str = "",
        proxy: Proxy | None = None,
    ) -> None:
        self._token = token
        self._proxy = proxy
        self._sessions = sessions
        external = urlsplit(external_url)
        self._https_host = external.hostname if external.scheme == "https" else None
        # Browsers keep one jar for all ports of a host: two daemons on one machine must not log each other out.
        self._cookie = f"stallwatch-{port}"
        self._locked_page = locked_page

    def api(self, endpoint: Endpoint) -> Endpoint:
        """An endpoint that answers only to whoever may see it."""

        async def guarded(request: Request) -> Response:
            if not _is_from_foreign_page(request) and await self._may(request):
                return await endpoint(request)
            return JSONResponse(
                {"error": "this needs the token", "help": "Send the header Authorization: Bearer <token file's line>."},
                401,
                {"WWW-Authenticate": 'Bearer realm="stallwatch"'},
            )

        return guarded

    async def leave(self, request: Request) -> Response:
        """End the session of a browser."""
        return await self.api(self._leave)(request)

    async def _leave(self, request: Request) -> Response:
        self._sessions.end(request.cookies.get(self._cookie, ""))
        response = Response(status_code=204)
        response.delete_cookie(self._cookie, httponly=True, samesite="lax")
        return response

    def page(self, endpoint: Endpoint) -> Endpoint:
        """As `api`, and a token in the URL opens a session, so that it does not stay in history and referrers."""

        async def guarded(request: Request) -> Response:
            given = request.query_params.get("token")
            if given is not None and equal(given.strip(), self._token):
                # Relative: a proxy may serve us below a path of its own.
                incident = request.query_params.get("incident", "")
                response = RedirectResponse(f"./?incident={quote(incident)}" if incident else "./", 303)
                # Lax, not Strict: a link in Slack must open the page; nothing here changes anything by GET.
                response.set_cookie(
                    self._cookie,
                    self._sessions.begin(),
                    max_age=SESSION_SECONDS,
                    secure=request.url.hostname == self._https_host,
                    httponly=True,
                    samesite="lax",
                )
                return response
            if given is None and await self._may(request):
                return await endpoint(request)
            return self._locked_page

        return guarded

    async def _may(self, request: Request) -> bool:
        """Note in the request who asks; False where nothing says so."""
        viewer = await self._viewer(request)
        if viewer is None:
            return False
        request.state.viewer = viewer
        return True

    async def _viewer(self, request: Request) -> Viewer | None:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            if self._proxy and equal(bearer.strip(), self._proxy.token):
                name = request.headers.get(self._proxy.header, "").strip()
                if not name or len(name) > _LONGEST_NAME:
                    return None  # a proxy that has asked nobody to log in vouches for nobody
                return await anyio.to_thread.run_sync(self._proxy.group.viewer, name, abandon_on_cancel=True)
            return EVERYTHING if equal(bearer.strip(), self._token) else None
        return EVERYTHING if self._sessions.is_open(request.cookies.get(self._cookie, "")) else None


class SocketGuard:
    """On a control socket that is open to every user: the kernel says who asks."""

    def __init__(self, group: UserGroup) -> None:
        self._group = group

    def api(self, endpoint: Endpoint) -> Endpoint:
        """An endpoint that answers by who the peer of the socket is."""

        async def guarded(request: Request) -> Response:
            peer = request.state.peer
            assert isinstance(peer, Peer)
            request.state.viewer = await anyio.to_thread.run_sync(self._group.viewer_at, peer, abandon_on_cancel=True)
            return await endpoint(request)

        return guarded

    page = api

    def members(self, endpoint: Endpoint) -> Endpoint:
        """What is the whole node's: of no use to who sees his own jobs."""

        async def only_members(request: Request) -> Response:
            if request.state.viewer.only_own:
                help = "Ask a member of the control socket's group."
                return JSONResponse({"error": "this is for members of the group", "help": help}, 403)
            return await endpoint(request)

        return self.api(only_members)


def _is_from_foreign_page(request: Request) -> bool:
    """Whether a browser says that another site's page asks with its visitor's cookie."""
    return request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none")


class HostCheck:
    """On a loopback address, answer only to loopback names and to external_url's: a page on the internet whose name
    was rebound to 127.0.0.1 then reads nothing, not even the open endpoints.

    Not Starlette's TrustedHostMiddleware: it cannot say 127.0.0.0/8, and cuts "[::1]:9477" at its first colon.
    """

    def __init__(self, app: ASGIApp, external_url: str) -> None:
        self._app = app
        external = urlsplit(external_url).hostname
        self._names = {"localhost"} | ({external} if external else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_ours(dict(scope["headers"]).get(b"host", b"").decode("latin-1")):
            refusal = JSONResponse(
                {"error": "unknown Host", "help": "Use 127.0.0.1 or localhost, or set http.external_url."}, 421
            )
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self._names or is_loopback(name)


class SecurityHeaders:
    """Headers that every answer carries: nothing is cached, framed, sniffed or told to other sites."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", []))  # type: ignore[call-overload]
                headers += [
                    (b"cache-control", b"no-store"),
                    (b"x-content-type-options", b"nosniff"),
                    (b"referrer-policy", b"no-referrer"),
                    (b"cross-origin-resource-policy", b"same-origin"),
                ]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, send_with_headers)  # type: ignore[arg-type]
