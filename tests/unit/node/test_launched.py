import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from stallwatch.node.launched import Launcher
from stallwatch.node.launcher import NotAllowed, command_of

RELEASE = (sys.executable, "-P", "-m", "stallwatch.captures.release")
SENSOR = (sys.executable, "-P", "-m", "stallwatch.sensors.child")
# A launcher that takes requests and says nothing.
SILENT = """
import socket, sys
connection = socket.socket(fileno=int(sys.argv[1]))
while connection.recv(1 << 16):
    pass
"""
NO_NETWORK = """
import socket, sys
sys.path.insert(0, {folder!r})
from stallwatch.node import launcher
launcher.PROGRAMS["prints_doors"] = ()
launcher.main(int(sys.argv[1]))
"""
DOORS = """
import os, socket, sys
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK):
    try:
        socket.socket(family).close()
        print(family.name, "open")
    except PermissionError:
        print(family.name, "closed")
print("more", os.read(int(sys.argv[-1]), 100).decode(), flush=True)
"""


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    started = Launcher()
    yield started
    started.close()


@pytest.fixture
def nothing() -> Iterator[int]:
    with open(os.devnull, "rb") as file:
        yield file.fileno()


def test_a_child_is_started_and_its_end_is_told(launcher: Launcher, nothing: int) -> None:
    child = launcher(RELEASE, nothing, None)
    assert child.wait(30) == 0
    assert child.poll() == 0


def test_a_child_speaks_through_the_descriptors_that_it_was_given(launcher: Launcher) -> None:
    read, write = os.pipe()
    requests, ask = os.pipe()
    child = launcher((*SENSOR, "host", "{}"), requests, write)
    os.close(requests)
    os.close(write)
    assert child.poll() is None
    os.close(ask)  # the end of its requests
    assert child.wait(30) == 0
    os.close(read)


def test_a_child_can_be_ended(launcher: Launcher) -> None:
    requests, ask = os.pipe()
    child = launcher((*SENSOR, "host", "{}"), requests, None)
    os.close(requests)
    child.kill()
    assert child.wait(30) == -signal.SIGKILL
    child.kill()  # nobody, and no other process of that pid
    os.close(ask)


def test_waiting_for_a_child_has_a_deadline(launcher: Launcher) -> None:
    requests, ask = os.pipe()
    child = launcher((*SENSOR, "host", "{}"), requests, None)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.01)
    child.kill()
    child.wait(30)
    os.close(requests)
    os.close(ask)


@pytest.mark.parametrize(
    ("module", "arguments"),
    [("os", []), ("stallwatch.cli", ["daemon"]), ("stallwatch.sensors.child", ["gpus", "{}"]), ("http.server", [])],
)
def test_nothing_else_is_started_with_capabilities(module: str, arguments: list[str]) -> None:
    with pytest.raises(NotAllowed):
        command_of(module, arguments)


def test_another_program_is_refused_and_the_launcher_lives_on(launcher: Launcher, nothing: int) -> None:
    for command in ((sys.executable, "-P", "-m", "http.server"), ("/bin/sh", "-c", "true")):
        with pytest.raises(PermissionError):
            launcher(command, nothing, None)
    assert launcher(RELEASE, nothing, None).wait(30) == 0


def test_what_it_starts_has_no_network(tmp_path: os.PathLike[str]) -> None:
    folder = os.fspath(tmp_path)
    with open(os.path.join(folder, "prints_doors.py"), "w", encoding="utf-8") as file:
        file.write(DOORS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((folder, os.environ.get("PYTHONPATH", "")))}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = NO_NETWORK.format(folder=folder)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(theirs.fileno())], pass_fds=(theirs.fileno(),), env=environment
    ) as running:
        theirs.close()
        read, write = os.pipe()
        more, say = os.pipe()
        os.write(say, b"reached")
        request = {"number": 1, "module": "prints_doors", "arguments": [], "has_stdout": True}
        socket.send_fds(ours, [json.dumps(request).encode()], [0, write, more])
        os.close(write)
        with open(read, encoding="utf-8") as said:
            lines = said.read().splitlines()
        ours.close()
        assert running.wait(30) == 0
    assert lines == ["AF_UNIX open", "AF_INET closed", "AF_INET6 closed", "AF_NETLINK closed", "more reached"]
    for descriptor in (more, say):
        os.close(descriptor)


def test_a_launcher_that_has_ended_is_said(launcher: Launcher, nothing: int) -> None:
    requests, ask = os.pipe()
    child = launcher((*SENSOR, "host", "{}"), requests, None)
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait(30)
    assert launcher.has_ended()
    with pytest.raises(OSError, match="holds the capabilities has ended"):
        launcher(RELEASE, nothing, None)
    assert child.poll() is None  # it lives, and can still be ended
    child.kill()
    assert child.wait(30) == -signal.SIGKILL
    os.close(requests)
    os.close(ask)


def test_a_launcher_that_does_not_answer_delays_the_loop_once(nothing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stallwatch.node.launched._FIRST_SECONDS", 0.05)
    launcher = Launcher((sys.executable, "-c", SILENT))
    try:
        with pytest.raises(TimeoutError, match="has not answered"):
            launcher(RELEASE, nothing, None)
        monkeypatch.setattr("stallwatch.node.launched._FIRST_SECONDS", 3600.0)
        with pytest.raises(TimeoutError, match="has not answered"):
            launcher(RELEASE, nothing, None)
    finally:
        launcher.close()


def test_end_of_the_daemon_ends_the_launcher_and_what_it_started() -> None:
    launcher = Launcher()
    requests, ask = os.pipe()
    child = launcher((*SENSOR, "host", "{}"), requests, None)
    descriptor = os.pidfd_open(child.pid)
    os.kill(launcher.pid, signal.SIGTERM)  # of a whole control group; the daemon still needs it
    assert child.poll() is None
    launcher.close()
    assert select.select([descriptor], [], [], 30)[0]
    for each in (descriptor, requests, ask):
        os.close(each)
