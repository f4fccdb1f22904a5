"""The endpoints. TCP and the control socket are two applications: what only the socket may do does not exist on TCP."""

import re
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from stallwatch.errors import StallwatchError, UsageError
from stallwatch.model.incident import Incident
from stallwatch.node.disk import DiskHangs
from stallwatch.outputs.bodies import (
    Acknowledgement,
    BadBody,
    CaptureRequest,
    JudgeRequest,
    MaintenanceRequest,
    ModeRequest,
    MuteRequest,
    read_body,
)
from stallwatch.outputs.bundle_archive import archive
from stallwatch.outputs.documents import encoded, incident_document, incident_list
from stallwatch.outputs.http_auth import Endpoint, HostCheck, SecurityHeaders, SocketGuard, TokenGuard
from stallwatch.outputs.latest import Latest, OpenEndpoints, PublishedReport
from stallwatch.outputs.output import Control
from stallwatch.outputs.peers import Peer
from stallwatch.outputs.timeline import read_timeline
from stallwatch.outputs.viewer import Viewer, viewer_of

# Starts with a letter or digit and holds no slash: never a path upwards, never hidden.
_INCIDENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+=,-]{0,254}\Z")
_ASK_SECONDS = 10.0  # the store may lie on a slow disk
_NOTIFY_SECONDS = 60.0
_COMPRESS_FROM_BYTES = 16 << 10
_PAST_INCIDENTS = 100
_NAME = re.compile(r"\w[\w.@ '-]{0,59}")  # never one of Slack's, which have a colon


class Endpoints:
    """Answers from what was published; asks the daemon through Control with a deadline, in a thread we can abandon."""

    def __init__(self, latest: Latest, control: Control, page: Response, page_url: Callable[[], str | None]) -> None:
        self._latest = latest
        self._control = control
        self._page = page
        self._page_url = page_url
        self.open = OpenEndpoints(latest)

    def private_routes(self, guard: TokenGuard | SocketGuard | None) -> list[Route]:
        """Return page and API, which name jobs and code; without a guard whoever reaches them may ask."""
        api: Callable[[Endpoint], Endpoint] = guard.api if guard else _unguarded
        page: Callable[[Endpoint], Endpoint] = guard.page if guard else _unguarded
        one = "/api/v1/incidents/{incident_id}"
        large = [Middleware(GZipMiddleware, minimum_size=_COMPRESS_FROM_BYTES, compresslevel=1)]
        return [
            Route("/", page(self.page), methods=["GET"]),
            Route("/api/v1/ranks", api(self.ranks), methods=["GET"], middleware=large),
            Route("/api/v1/incidents", api(self.incidents), methods=["GET"], middleware=large),
            Route(one, api(self.incident), methods=["GET"], middleware=large),
            Route(f"{one}/acknowledge", api(self.acknowledge), methods=["POST"]),
            Route(f"{one}/timeline", api(self.timeline), methods=["GET"], middleware=large),
            Route(f"{one}/bundle.tar.gz", api(self.bundle), methods=["GET"]),
        ]

    def control_routes(self, guard: SocketGuard | None) -> list[Route]:
        """Return what changes the daemon's behaviour; mode, maintenance, test and page address are for members
        alone."""
        whoever: Callable[[Endpoint], Endpoint] = guard.api if guard else _unguarded
        members: Callable[[Endpoint], Endpoint] = guard.members if guard else _unguarded
        return [
            Route("/control/capture", whoever(self.capture), methods=["POST"]),
            Route("/control/judge", whoever(self.judge), methods=["POST"]),
            Route("/control/mute", whoever(self.mute), methods=["POST"]),
            Route("/control/mode", members(self.mode), methods=["POST"]),
            Route("/control/maintenance", members(self.maintenance), methods=["POST"]),
            Route("/control/notify-test", members(self.notify_test), methods=["POST"]),
            Route("/control/page", members(self.page_address), methods=["GET"]),
        ]

    async def page(self, request: Request) -> Response:
        """Answer with the status page, which then asks the API."""
        return self._page

    async def ranks(self, request: Request) -> Response:
        """Answer with the ranks that the viewer may see; 503 before the first look at the node."""
        published = self._latest.get()
        return _json(published.ranks_for(viewer_of(request))) if published else _not_yet()

    async def incidents(self, request: Request) -> Response:
        """Open and recent ones; with ?past=N also the store's last N."""
        published = self._latest.get()
        if published is None:
            return _not_yet()
        past = request.query_params.get("past", "0")
        if not past.isdecimal() or len(past) > 4:
            return _refusal(400, f"past={past!r} is not a number", f"For instance past={_PAST_INCIDENTS}.")
        viewer = viewer_of(request)
        if int(past) == 0:
            return _json(published.incidents_for(viewer))
        return await self._answer(lambda: self._with_past(published, int(past), viewer))

    def _with_past(self, published: PublishedReport, limit: int, viewer: Viewer) -> Response:
        past: tuple[Incident, ...] = ()
        problem = ""
        try:
            past = tuple(one for one in self._control.past_incidents(limit) if viewer.may_see(one.job.owner))
        except OSError as error:  # what is open is known all the same
            problem = f"past incidents cannot be read: {error.strerror}"
        documents = replace(incident_list(viewer.seen(published.report), past), problem=problem)
        return _json(encoded(documents))

    async def incident(self, request: Request) -> Response:
        """Answer with one incident, its verdicts and evidence; 404 for one that is not known."""
        return await self._answer(lambda: self._one(request))

    def _one(self, request: Request) -> Response:
        incident = self._find(request)
        if incident is None:
            return _unknown_incident(request.path_params["incident_id"])
        return _json(encoded(incident_document(incident)))

    def _find(self, request: Request) -> Incident | None:
        """The incident that is asked for, where there is one and whoever asks may see it."""
        incident_id = request.path_params["incident_id"]
        found = self._control.incident(incident_id) if _INCIDENT_ID.match(incident_id) else None
        return found if found is not None and viewer_of(request).may_see(found.job.owner) else None

    async def acknowledge(self, request: Request) -> Response:
        """The only change that the page may ask for. A form of another site cannot send JSON, nor the cookie."""
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _refusal(415, "acknowledge takes application/json", "For instance {}.")
        said = await read_body(request, Acknowledgement, '{}, or as root {"by":"anna"}')
        return await self._answer(lambda: self._acknowledge(request, said.by))

    def _acknowledge(self, request: Request, said: str) -> Response:
        incident_id, by = request.path_params["incident_id"], actor(request.state.peer, said, viewer_of(request))
        if viewer_of(request).only_own and self._find(request) is None:
            return _unknown_incident(incident_id)
        self._control.acknowledge(incident_id, by)
        return JSONResponse({"incident_id": incident_id, "by": by})

    async def timeline(self, request: Request) -> Response:
        """Answer with what was seen of one incident over time, for the page to draw; 404 for one that is not known."""
        return await self._answer(lambda: self._timeline(request))

    def _timeline(self, request: Request) -> Response:
        incident = self._find(request)
        if incident is None:
            return _unknown_incident(request.path_params["incident_id"])
        made = read_timeline(incident.incident_id, incident.job, incident.bundle)
        return _json(encoded(made))

    async def bundle(self, request: Request) -> Response:
        """Answer with one incident's bundle as a gzipped tar; who may see only own jobs gets none."""
        return await self._answer(lambda: self._archive(request))

    def _archive(self, request: Request) -> Response:
        incident = self._find(request)
        if incident is None:
            return _unknown_incident(request.path_params["incident_id"])
        if viewer_of(request).only_own:  # it holds what the whole node did meanwhile
            return _refusal(403, "raw evidence is for members of the group", "Ask one of them for this bundle.")
        return archive(incident.incident_id, incident.bundle)

    async def capture(self, request: Request) -> Response:
        """Start a capture of the job that the body names (CaptureRequest); answer with the incident's id."""
        asked = await read_body(request, CaptureRequest, '{"training_job":"a"}')
        return await self._answer(lambda: self._capture(asked, viewer_of(request)))

    def _capture(self, asked: CaptureRequest, viewer: Viewer) -> Response:
        return JSONResponse({"incident_id": self._control.capture(asked.training_job, _whose(viewer, asked.owner))})

    async def mute(self, request: Request) -> Response:
        """Tell nobody of the job that the body names for so many seconds (MuteRequest)."""
        asked = await read_body(request, MuteRequest, '{"training_job":"a","seconds":60}')
        return await self._answer(lambda: self._mute(asked, request.state.peer, viewer_of(request)))

    def _mute(self, asked: MuteRequest, peer: Peer, viewer: Viewer) -> Response:
        by, owner = actor(peer, asked.by, viewer), _whose(viewer, asked.owner)
        whose = self._control.mute(asked.training_job, asked.seconds, owner, by)
        return JSONResponse({"training_job": asked.training_job, "owner": whose, "seconds": asked.seconds})

    async def mode(self, request: Request) -> Response:
        """Set for a time whether people are told, on this node or where nodes meet (ModeRequest)."""
        asked = await read_body(request, ModeRequest, '{"mode":"shadow","seconds":3600}')
        return await self._answer(lambda: self._mode(asked, request.state.peer, viewer_of(request)))

    def _mode(self, asked: ModeRequest, peer: Peer, viewer: Viewer) -> Response:
        return JSONResponse({"where": self._control.mode(asked.mode, asked.seconds, actor(peer, asked.by, viewer))})

    async def maintenance(self, request: Request) -> Response:
        """Announce that a node is worked on for so many seconds, and why (MaintenanceRequest)."""
        asked = await read_body(request, MaintenanceRequest, '{"seconds":3600,"node":"n17","why":"disks"}')
        return await self._answer(lambda: self._maintenance(asked, request.state.peer, viewer_of(request)))

    def _maintenance(self, asked: MaintenanceRequest, peer: Peer, viewer: Viewer) -> Response:
        by = actor(peer, asked.by, viewer)
        return JSONResponse({"where": self._control.maintenance(asked.node, asked.seconds, by, asked.why)})

    async def judge(self, request: Request) -> Response:
        """Note what a person says of an incident's verdict (JudgeRequest)."""
        asked = await read_body(request, JudgeRequest, '{"incident_id":"a-1","judgement":"wrong"}')
        viewer = viewer_of(request)
        return await self._answer(lambda: self._judge(asked, request.state.peer, viewer))

    def _judge(self, asked: JudgeRequest, peer: Peer, viewer: Viewer) -> Response:
        by = actor(peer, asked.by, viewer)
        found = self._control.incident(asked.incident_id) if _INCIDENT_ID.match(asked.incident_id) else None
        if found is None or not viewer.may_see(found.job.owner):
            return _unknown_incident(asked.incident_id)
        self._control.judge(asked.incident_id, asked.judgement, by)
        return JSONResponse({"incident_id": asked.incident_id, "judgement": asked.judgement, "by": by})

    async def notify_test(self, request: Request) -> Response:
        """Send a test by every output that tells people; answer with a line of each, within a minute."""
        return await self._answer(lambda: JSONResponse({"lines": list(self._control.notify_test())}), _NOTIFY_SECONDS)

    async def page_address(self, request: Request) -> Response:
        """Answer with the status page's address and token, null where there is no TCP address."""
        return JSONResponse({"url": self._page_url()})

    async def _answer(self, ask: Callable[[], Response], seconds: float = _ASK_SECONDS) -> Response:
        try:
            with anyio.fail_after(seconds):
                return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)
        except StallwatchError as error:
            return _refusal(400, str(error), error.help)
        except DiskHangs as error:
            return _refusal(503, str(error.strerror), "`stallwatch status` shows what is open now.")
        except TimeoutError:
            return _refusal(504, f"the daemon did not answer within {seconds:.0f} s", "Its log may say why.")


def _whose(viewer: Viewer, said: str | None) -> str | None:
    """Given of whose job is spoken, return whose it is. Raise UsageError for another's where one sees his own alone."""
    if not viewer.only_own:
        return said
    if said not in (None, viewer.name):
        raise UsageError("this job is not yours", "Members of the control socket's group may ask for others'.")
    return viewer.name


def actor(peer: Peer, said: str, viewer: Viewer) -> str:
    """Given who is connected and what he calls himself, return who he is. May block.

    A token says that somebody holds it, and no more; a proxy says who. On the socket the kernel says which user it
    is; root, who could be anybody, says for whom he acts. Raise UsageError for another name than one's own.
    """
    user = peer.user()
    if peer.address and viewer.name:
        return viewer.name
    if peer.address:
        return f"somebody with the page's token ({user or peer.address})"
    if not said or said == user:
        return user or "somebody on this node"
    if peer.uid != 0:
        raise UsageError(f"on this socket you are {user}, and not {said[:60]!r}", "Only root may act for others.")
    if not _NAME.fullmatch(said):
        raise UsageError(f"{said[:60]!r} is no name of at most 60 letters", "For instance --by anna.")
    return said


def tcp_app(endpoints: Endpoints, guard: TokenGuard, *, loopback: bool, external_url: str) -> Starlette:
    """Return the application behind the TCP address: behind a token, without control; on loopback the Host header is
    checked as well."""
    check = [Middleware(HostCheck, external_url=external_url)] if loopback else []
    routes = [
        *endpoints.open.routes(),
        *endpoints.private_routes(guard),
        Route("/logout", guard.leave, methods=["POST"]),
    ]
    return _application(routes, [Middleware(SecurityHeaders), *check])


def control_app(endpoints: Endpoints, guard: SocketGuard | None = None) -> Starlette:
    """Without a guard the socket's own mode decides who may."""
    routes = [*endpoints.open.routes(), *endpoints.private_routes(guard), *endpoints.control_routes(guard)]
    return _application(routes, [])


def _application(routes: list[Route], middleware: list[Middleware]) -> Starlette:
    elsewhere: dict[Any, Any] = {404: _no_such_path, 405: _no_such_method, BadBody: _bad_body}
    made = Starlette(routes=routes, middleware=middleware, exception_handlers=elsewhere)
    made.router.redirect_slashes = False  # one address for each thing
    return made


async def _no_such_path(request: Request, error: Exception) -> Response:
    return _refusal(404, "no such path", "/metrics, /healthz, /readyz, /, /api/v1/ranks, /api/v1/incidents[/<id>]")


async def _bad_body(request: Request, error: BadBody) -> Response:
    return _refusal(error.status, str(error), error.help)


async def _no_such_method(request: Request, error: Exception) -> Response:
    return _refusal(405, f"{request.method} is not for this path", "What changes anything exists on the socket alone.")


def _unguarded(endpoint: Endpoint) -> Endpoint:
    return endpoint


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


def _refusal(status: int, error: str, help: str) -> Response:
    return JSONResponse({"error": error, "help": help}, status)


def _not_yet() -> Response:
    return _refusal(503, "the daemon has not looked at the node yet", "Ask again in a second.")


def _unknown_incident(incident_id: str) -> Response:
    error = f"no incident {incident_id[:200]!r} on this node"
    return _refusal(404, error, "`stallwatch incidents`, or /api/v1/incidents?past=100, lists them.")
