"""Somebody who has taken the daemon over, at the socket of a real privileged side."""

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

from stallwatch.captures.channel import FilePiece, LookProgress, Message, messages
from stallwatch.config import Config
from stallwatch.config_sections import CaptureSection
from stallwatch.loop.privileged import settings_of
from stallwatch.model.snapshot import RankSample
from stallwatch.node.known_ranks import known_file
from stallwatch.node.memory_file import memory_file
from stallwatch.node.privileged_client import COMMAND


class TakenOver:
    """Speaks the protocol as it likes."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.connection.settimeout(30)

    def ask(self, request: dict[str, Any], *descriptors: int) -> tuple[dict[str, Any], list[int]]:
        socket.send_fds(self.connection, [json.dumps(request).encode()], descriptors)
        number = request.get("number", 0)
        while True:
            said, received, _, _ = socket.recv_fds(self.connection, 1 << 16, 8)
            message: dict[str, Any] = json.loads(said)
            if message.get("number") == number:
                return message, received

    def look(self, *ranks: tuple[int, int], **more: Any) -> list[Message]:
        """Everything that a look at them sends."""
        message, descriptors = self.ask({"number": 1, "verb": "look", "look": 1, "ranks": ranks, **more})
        assert "child" in message, message
        with socket.socket(fileno=descriptors[0]) as channel:
            return list(messages(channel))


@contextlib.contextmanager
def taken_over(*ranks: RankSample, config: Config | None = None) -> Iterator[TakenOver]:
    known = known_file(ranks)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    section = CaptureSection(dump_seconds=0.5, stack_seconds=2.0, pause_for_stacks=False, nccl_ras="off", seconds=30.0)
    settings = settings_of(config or Config(capture=section))
    with memory_file(json.dumps(settings).encode()) as file:
        process = subprocess.Popen(
            [*COMMAND, "--inherit", str(theirs.fileno()), "--known", str(known)],
            stdin=file,
            pass_fds=(theirs.fileno(), known),
        )
    theirs.close()
    os.close(known)
    try:
        yield TakenOver(ours)
        # Whatever it was told, it serves on.
        message, descriptors = TakenOver(ours).ask({"number": 99, "verb": "host"})
        assert "child" in message, message
        os.close(descriptors[0])
    finally:
        ours.close()
        assert process.wait(30) == 0


def files(sent: list[Message]) -> dict[str, bytes]:
    return {message.name: message.data for message in sent if isinstance(message, FilePiece)}


def problem(sent: list[Message]) -> str:
    return "; ".join(message.state.problem for message in sent if isinstance(message, LookProgress))
