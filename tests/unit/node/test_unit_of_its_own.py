"""The privileged side as a unit of its own: who may ask it, and how many at a time."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from stallwatch.config import Config
from stallwatch.loop.privileged import settings_of
from stallwatch.node.memory_file import memory_file
from stallwatch.node.privileged_client import COMMAND
from tests.unit.node.takeover import TakenOver


def listening(path: Path, *arguments: str, **settings: Any) -> "subprocess.Popen[bytes]":
    with memory_file(json.dumps({**settings_of(Config()), **settings}).encode()) as file:
        process = subprocess.Popen([*COMMAND, "--listen", str(path), *arguments], stdin=file)
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


CONNECTS = """
import socket, sys
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect(sys.argv[1])
connection.settimeout(30)
try:
    connection.send(b'{"number": 1, "verb": "host"}')
    print(connection.recv(100)[:11])
except OSError as error:
    print(error.errno)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="being another user needs root")
def test_who_may_ask_is_the_daemons_user_and_root(folder_for_all: Path) -> None:
    path = folder_for_all / "socket"
    process = listening(path, "--user", "daemon")
    try:
        path.chmod(0o666)  # the socket's mode is the service manager's; this is the side's own
        said = []
        for user in ("daemon", "nobody", "root"):
            command = ["setpriv", "--reuid", user, "/usr/bin/env", "python3", "-c", CONNECTS, str(path)]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, cwd="/", env={"PATH": "/usr/bin:/bin"}
            )
            if done.returncode != 0:
                pytest.skip("no Python here that another user may run")
            said.append(done.stdout.strip())
        assert ["number" in one for one in said] == [True, False, True], said
    finally:
        process.terminate()
        assert process.wait(30) == 0


def test_a_daemon_finds_the_unit_again_that_was_started_anew(tmp_path: Path) -> None:
    from stallwatch.node.privileged_client import find_side

    path = tmp_path / "socket"
    process = listening(path)
    side = find_side(str(path))
    child = side.start("host")
    process.terminate()
    assert process.wait(30) == 0
    assert child.wait(30) == -signal.SIGKILL
    assert not side.has_ended(), "it can be found again"
    with pytest.raises(OSError, match=r"."):
        side.start("host")
    path.unlink()
    process = listening(path)
    again = side.start("host")
    for one in (child, again):
        one.channel.close()
    side.close()
    process.terminate()
    assert process.wait(30) == 0


def test_few_connections_at_a_time_and_silent_ones_hold_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    process = listening(path)
    connections = []
    try:
        for _ in range(6):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.connect(str(path))
            connections.append(connection)
        daemon = TakenOver(connections[3])
        message, descriptors = daemon.ask({"number": 1, "verb": "host"})
        assert "child" in message
        os.close(descriptors[0])
        connections[5].settimeout(30)
        with contextlib.suppress(ConnectionResetError):
            assert connections[5].recv(10) == b""
    finally:
        for connection in connections:
            connection.close()
        process.terminate()
        assert process.wait(30) == 0
