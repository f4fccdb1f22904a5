"""What was published last, what people asked of it, and whether it is recent; and what is answered of that to whoever
asks. Nothing is made that nobody asks for."""

import threading
from collections.abc import Callable
from functools import cached_property

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from stallwatch.clock import Clock
from stallwatch.model.incident import NodeReport
from stallwatch.outputs.documents import Problem, Readiness, encoded, incident_list, rank_list, readiness
from stallwatch.outputs.metrics import negotiated, render
from stallwatch.outputs.output_health import OutputHealth
from stallwatch.outputs.viewer import Viewer

_STALE_TICKS = 5
_STALE_FLOOR_SECONDS = 10.0  # a loaded node may skip some ticks; one that skips ten seconds of them is not well


class PublishedReport:
    """A report, and each answer about it: made when it is first asked for, the same for all who ask."""

    def __init__(self, report: NodeReport, outputs: tuple[OutputHealth, ...], external_url: str) -> None:
        self.report = report
        self._outputs = outputs
        self._external_url = external_url
        self._problems = [(output.name, output.problem) for output in outputs if output.problem is not None]
        self._texts: dict[str, bytes] = {}
        self._one_renders = threading.Lock()

    @cached_property
    def ranks(self) -> bytes:
        """The ranks as JSON, made when first asked for."""
        held = tuple(one for output in self._outputs for one in output.held)
        return encoded(rank_list(self.report, tuple(f"{name}: {problem}" for name, problem in self._problems), held))

    @cached_property
    def incidents(self) -> bytes:
        """The incidents as JSON."""
        return encoded(incident_list(self.report))

    def ranks_for(self, viewer: Viewer) -> bytes:
        """The ranks that a viewer may see, as JSON."""
        if not viewer.only_own:
            return self.ranks
        held = tuple(one for output in self._outputs for one in output.held if viewer.may_see(one.owner))
        return encoded(rank_list(viewer.seen(self.report), (), held))

    def incidents_for(self, viewer: Viewer) -> bytes:
        """The incidents that a viewer may see, as JSON."""
        return encoded(incident_list(viewer.seen(self.report))) if viewer.only_own else self.incidents

    @cached_property
    def readiness(self) -> Readiness:
        """Whether every part that must work does."""
        return readiness(self.report, self._problems)

    def text(self, content_type: str) -> bytes | None:
        """The metrics as they were rendered before, None when they were not."""
        return self._texts.get(content_type)

    def render(self, content_type: str) -> bytes:
        """The metrics; takes some tenths of a second for a thousand ranks. From any thread."""
        with self._one_renders:
            if content_type not in self._texts:
                self._texts[content_type] = render(self.report, self._outputs, self._external_url, content_type)
            return self._texts[content_type]


class Latest:
    """Written by the daemon's loop, read by the server's thread: one reference, replaced whole."""

    def __init__(
        self,
        clock: Clock,
        tick_seconds: float,
        external_url: str = "",
        outputs: Callable[[], tuple[OutputHealth, ...]] = tuple,
    ) -> None:
        """`outputs` tells how they do."""
        self._clock = clock
        self._outputs = outputs
        self._stale_seconds = max(_STALE_TICKS * tick_seconds, _STALE_FLOOR_SECONDS)
        self._external_url = external_url
        self._published: PublishedReport | None = None
        self._changed_ns = clock.monotonic_ns()

    def publish(self, report: NodeReport) -> None:
        """Keep this report in place of the last; it is rendered when somebody asks."""
        self._published = PublishedReport(report, self._outputs(), self._external_url)
        self._changed_ns = self._clock.monotonic_ns()

    def get(self) -> PublishedReport | None:
        """The last report; None before the first."""
        return self._published

    def loop_problem(self) -> str | None:
        """A sentence when the loop has not published for too long."""
        silent = (self._clock.monotonic_ns() - self._changed_ns) / 1e9
        if silent <= self._stale_seconds:
            return None
        return f"the daemon's loop has published nothing for {silent:.0f} s"

    def ready(self) -> Readiness:
        """Ready when something was published lately and every required sensor answers."""
        problem, published = self.loop_problem(), self._published
        if published is None:
            problem = problem or "the daemon has not looked at the node yet"
        known = published.readiness if published else Readiness(ready=False, problems=())
        if problem is None:
            return known
        return Readiness(ready=False, problems=(Problem("loop", "loop", problem, required=True), *known.problems))


class OpenEndpoints:
    """What nobody needs a token for: metrics, health, readiness."""

    def __init__(self, latest: Latest) -> None:
        self._latest = latest
        # Of its own: what waits for a disk holds the others.
        self._renderers = anyio.CapacityLimiter(1)

    def routes(self) -> list[Route]:
        """Return their routes."""
        return [
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/healthz", self.healthz, methods=["GET"]),
            Route("/readyz", self.readyz, methods=["GET"]),
        ]

    async def metrics(self, request: Request) -> Response:
        """Answer with the metrics in the format that was asked for; 503 before the first look at the node."""
        published = self._latest.get()
        if published is None:
            return JSONResponse({"error": "nothing has been published yet", "help": "Ask again in a second."}, 503)
        content_type = negotiated(request.headers.get("accept", ""))
        text = published.text(content_type)
        if text is None:
            text = await anyio.to_thread.run_sync(published.render, content_type, limiter=self._renderers)
        # Not as media_type, to which a charset would be added a second time.
        return Response(text, headers={"content-type": content_type, "vary": "Accept"})

    async def healthz(self, request: Request) -> Response:
        """Answer 200 while the daemon's loop lives, else 503 with the reason."""
        problem = self._latest.loop_problem()
        return JSONResponse({"healthy": problem is None, "reason": problem or ""}, 200 if problem is None else 503)

    async def readyz(self, request: Request) -> Response:
        """Answer 200 when the daemon does its work, else 503; which part does not is in the body."""
        ready = self._latest.ready()
        return Response(encoded(ready), 200 if ready.ready else 503, media_type="application/json")
