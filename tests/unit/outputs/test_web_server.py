import asyncio
import socket
import threading

import pytest
import uvicorn

from stallwatch.outputs import web_server
from stallwatch.outputs.web_server import WebServer


async def nothing(scope: object, receive: object, send: object) -> None:
    raise AssertionError("nobody asks")


def test_it_ends_when_told_from_another_thread_however_long_it_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "_HEADER_SECONDS", 3600.0)
    server = WebServer(uvicorn.Config(nothing, log_config=None, lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as opened:
        started = threading.Event()

        async def serve() -> None:
            serving = asyncio.create_task(server.serve(sockets=[opened]))
            while not server.started:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            started.set()
            await serving

        thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        thread.start()
        assert started.wait(30)
        server.leave()
        thread.join(30)
        assert not thread.is_alive()


def test_told_before_it_serves_it_ends_at_once() -> None:
    server = WebServer(uvicorn.Config(nothing, log_config=None, lifespan="off"))
    server.leave()
    with socket.create_server(("127.0.0.1", 0)) as opened:
        asyncio.run(asyncio.wait_for(server.serve(sockets=[opened]), 30))
