"""The privileged side as the daemon uses it: the real process, over its real socket."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stallwatch.config import Config
from stallwatch.config_sections import DaemonSection
from stallwatch.encoding import pack
from stallwatch.loop.privileged import settings_of
from stallwatch.node.privileged_client import Privileged, start_side
from tests.programs.privileged import side_that_knows

# A side that takes requests and says nothing.
SILENT = """
import socket, sys
connection = socket.socket(fileno=int(sys.argv[sys.argv.index("--inherit") + 1]))
while connection.recv(1 << 16):
    pass
"""
DOORS = """
import socket, sys
from stallwatch.node import privileged_server
from stallwatch.node.privileged_verbs import VERBS, Verb
VERBS["doors"] = Verb("prints_doors", 1, None, "sensors")
privileged_server.main(sys.argv[1:])
"""
PRINTS_DOORS = """
import socket
def main(arguments):
    for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK):
        try:
            socket.socket(family).close()
            print(family.name, "open", flush=True)
        except PermissionError:
            print(family.name, "closed", flush=True)
"""


@pytest.fixture
def side() -> Iterator[Privileged]:
    with side_that_knows() as side:
        yield side


def test_a_child_is_started_and_its_end_is_told(side: Privileged) -> None:
    child = side.start("host")
    child.channel.close()  # the end of its requests
    assert child.wait(30) == 0
    assert child.poll() == 0


def test_a_child_speaks_over_its_socket(side: Privileged) -> None:
    child = side.start("host")
    with child.channel as channel:
        channel.sendall(pack(msgspec.msgpack.encode(1)))
        assert select.select([channel], [], [], 30)[0]
    child.kill()


def test_a_child_can_be_ended(side: Privileged) -> None:
    child = side.start("host")
    with child.channel:
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.01)
        child.kill()
        assert child.wait(30) == -signal.SIGKILL
        child.kill()  # nobody, and no other process of that pid


def test_what_it_starts_has_no_network(tmp_path: Path) -> None:
    (tmp_path / "prints_doors.py").write_text(PRINTS_DOORS)
    program = tmp_path / "side.py"
    program.write_text(DOORS)
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    side = start_side(settings_of(Config()), None, ("env", f"PYTHONPATH={path}", sys.executable, str(program)))
    try:
        with side.start("doors").channel as channel, channel.makefile() as said:
            lines = said.read().splitlines()
    finally:
        side.close()
    assert lines == ["AF_UNIX open", "AF_INET closed", "AF_INET6 closed", "AF_NETLINK closed"]


def test_a_side_that_has_ended_is_said(side: Privileged) -> None:
    child = side.start("host")
    assert side.pid is not None
    os.kill(side.pid, signal.SIGKILL)
    side.wait(30)
    assert side.has_ended()
    with pytest.raises(OSError, match="holds the capabilities has ended"):
        side.start("host")
    assert child.poll() == -signal.SIGKILL
    child.channel.close()


def test_a_side_that_does_not_answer_delays_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stallwatch.node.privileged_client._FIRST_SECONDS", 0.05)
    monkeypatch.setattr("stallwatch.node.privileged_client._EXIT_SECONDS", 0.5)
    side = start_side({}, None, (sys.executable, "-c", SILENT))
    try:
        with pytest.raises(TimeoutError, match="has not answered"):
            side.start("host")
        monkeypatch.setattr("stallwatch.node.privileged_client._FIRST_SECONDS", 3600.0)
        with pytest.raises(TimeoutError, match="has not answered"):
            side.start("host")
    finally:
        side.close()


def test_end_of_the_daemon_ends_the_side_and_what_it_started() -> None:
    with side_that_knows() as side:
        child = side.start("host")
        descriptor = os.pidfd_open(child.pid)
        assert side.pid is not None
        os.kill(side.pid, signal.SIGTERM)  # of a whole control group; the daemon still needs it
        assert child.poll() is None
    assert select.select([descriptor], [], [], 30)[0]
    os.close(descriptor)
    child.channel.close()


def test_its_own_configuration_is_read_again_when_it_is_asked_and_what_is_asked_meanwhile_has_the_new(
    tmp_path: Path,
) -> None:
    new = settings_of(Config(daemon=DaemonSection(rank_directory=str(tmp_path / "new"))))
    (tmp_path / "new.json").write_text(json.dumps(new))
    side = start_side(settings_of(Config(), ["cat", str(tmp_path / "new.json")]), None)
    try:
        side.renew()
        child = side.start("ranks")
        with child.channel as channel:
            channel.sendall(pack(msgspec.msgpack.encode(1)))
            assert select.select([channel], [], [], 30)[0]
        assert (tmp_path / "new").is_dir(), "it makes the directory that it reads"
    finally:
        side.close()


def test_who_asks_again_and_again_for_its_configuration_to_be_read_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "new.json").write_text(json.dumps(settings_of(Config())))
    read = f"echo x >> {tmp_path}/reads; sleep 0.2; cat {tmp_path}/new.json"
    side = start_side(settings_of(Config(), ["sh", "-c", read]), None)
    try:
        for _ in range(60):
            side.renew()
        with side.start("ranks").channel:
            pass
        assert (tmp_path / "reads").read_text().count("x") < 30
    finally:
        side.close()
