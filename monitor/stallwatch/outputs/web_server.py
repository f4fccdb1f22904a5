"""uvicorn's server, which looks at its clock ten times a second to see whether it should end: ours is told."""

import asyncio
import contextlib

import uvicorn

_HEADER_SECONDS = 1.0  # how old the Date of an answer may be


class WebServer(uvicorn.Server):
    """Serves until `leave`; at rest it wakes once a second, all that run in one loop at the same moment (two servers of
    uvicorn's own take 0.1 % of a core).

    A uvicorn that calls `main_loop` no more looks at its clock again as its own does, and ends all the same: by
    `should_exit`.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left: asyncio.Event | None = None

    async def main_loop(self) -> None:
        """Tick once a second, where uvicorn ticks ten times, until leave() is called or a tick says that it is over."""
        self._loop, self._left = asyncio.get_running_loop(), asyncio.Event()
        left = asyncio.ensure_future(self._left.wait())
        try:
            while not await self.on_tick(0):
                await asyncio.wait((left,), timeout=_HEADER_SECONDS - self._loop.time() % _HEADER_SECONDS)
        finally:
            left.cancel()

    def leave(self) -> None:
        """Have it end, at once; from any thread."""
        self.should_exit = True
        if self._loop is not None and self._left is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended already
                self._loop.call_soon_threadsafe(self._left.set)
