"""The privileged side as the daemon uses it, and as somebody uses it who has taken the daemon over: the real process,
over its real socket."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallwatch.captures.channel import FilePiece, Message, Progress, messages
from stallwatch.captures.ranks_of_root import refusal
from stallwatch.config import Config
from stallwatch.config_sections import CaptureSection, DaemonSection
from stallwatch.loop.privileged import settings_of
from stallwatch.model.snapshot import Outputs, ProcessEnd, RankSample
from stallwatch.node.known_ranks import known_file
from stallwatch.node.memory_file import memory_file
from stallwatch.node.messages import pack
from stallwatch.node.privileged_client import COMMAND, Privileged, start_side
from stallwatch.node.privileged_verbs import MOST_RANKS
from tests.builders.records import start_ticks_of
from tests.programs.privileged import numbers, side_that_knows
from tests.unit.outputs.reports import sample

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
import os, socket
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK):
    try:
        socket.socket(family).close()
        print(family.name, "open")
    except PermissionError:
        print(family.name, "closed")
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
        with child.channel:
            while not (line := Path(f"/proc/{child.pid}/cmdline").read_bytes()):
                time.sleep(0.01)  # the kernel is still at its exec
        assert str(tmp_path / "new").encode() in line
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


# Somebody has taken the daemon over.


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
    return "; ".join(message.state.problem for message in sent if isinstance(message, Progress))


@pytest.fixture
def stranger() -> Iterator["subprocess.Popen[bytes]"]:
    """A Python process that is no rank."""
    process = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
    "request_",
    [
        {"verb": "http.server"},
        {"verb": "stallwatch.captures.child"},
        {"verb": ["host"]},
        {"verb": None},
        {},
        {"module": "os", "arguments": [], "has_stdout": True},
        {"verb": "release", "ranks": [[1, 1]]},
        {"verb": "look"},
        {"verb": "look", "look": 1, "ranks": []},
        {"verb": "look", "look": 1, "ranks": [[1]]},
        {"verb": "look", "look": 1, "ranks": [["1", 1]]},
        {"verb": "look", "look": 1, "ranks": [[True, 1]]},
        {"verb": "look", "look": 1, "ranks": [[-1, 1]]},
        {"verb": "look", "look": 1, "ranks": [[0, 1]]},
        {"verb": "look", "look": 1, "ranks": [[1 << 23, 1]]},
        {"verb": "look", "look": 1, "ranks": [[1, 1 << 64]]},
        {"verb": "look", "look": 1.5, "ranks": [[1, 1]]},
        {"verb": "look", "look": 1 << 40, "ranks": [[1, 1]]},
        {"verb": "look", "look": 1, "ranks": {"1": 1}},
        {"verb": "look", "look": 1, "ranks": [[1, 1]] * (MOST_RANKS + 1)},
        {"verb": "sample", "at_ns": -1, "ranks": [[1, 1]]},
        {"verb": "sample", "at_ns": "now", "ranks": [[1, 1]]},
        {"verb": "end"},
    ],
)
def test_nothing_is_started_but_by_a_verb_and_words_that_make_sense(request_: dict[str, Any]) -> None:
    with taken_over() as daemon:
        message, descriptors = daemon.ask({"number": 1, **request_})
        assert (message["errno"], descriptors) == (1, [])


@pytest.mark.parametrize(
    "said", [b"\xff\xfe", b"[1]", b'"text"', b"7", b"null", b"{", b"[" * 60_000, b"{}" + b" " * 60_000]
)
def test_garbage_is_not_heard_and_it_serves_on(said: bytes) -> None:
    with taken_over() as daemon:
        socket.send_fds(daemon.connection, [said], [])


def test_a_message_of_a_million_ranks_is_not_heard() -> None:
    with taken_over() as daemon:
        request = json.dumps({"number": 1, "verb": "look", "look": 1, "ranks": [[1, 1]] * 1_000_000}).encode()
        with contextlib.suppress(OSError):  # more than a message may have: the kernel's refusal
            daemon.connection.send(request)
        daemon.connection.send(
            json.dumps({"number": 1, "verb": "look", "look": 1, "ranks": [[1, 1]] * 16_000}).encode()
        )


def test_descriptors_of_any_kind_are_closed_and_not_used(tmp_path: Path) -> None:
    with taken_over() as daemon:
        read, write = os.pipe()
        given = [os.open(place, os.O_RDONLY) for place in ("/etc/passwd", "/proc/self/maps", str(tmp_path))]
        given += [write, os.memfd_create("x"), os.pidfd_open(os.getpid()), daemon.connection.fileno(), os.eventfd(0)]
        message, descriptors = daemon.ask({"number": 1, "verb": "host"}, *given)
        assert "child" in message
        for descriptor in (*given[:6], given[7], *descriptors):
            os.close(descriptor)
        assert os.read(read, 1) == b"", "nobody holds the other end"
        os.close(read)


def test_words_that_no_verb_has_change_nothing(stranger: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    """Another py-spy, another bundle, other directories, other settings: by the names that they have on this side."""
    rank = msgspec.structs.replace(sample(3), pid=stranger.pid, start_ticks=start_ticks_of(stranger.pid))
    ran = tmp_path / "ran"
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    with taken_over(rank) as daemon:
        more = {
            "capture": {"py_spy": str(program)},
            "bundle": str(tmp_path / "bundle"),
            "directories": ["/root"],
            "known": 0,
            "held": 0,
            "seconds": 1e9,
            "path": str(tmp_path),
            "module": "http.server",
            "uid": 0,
        }
        sent = daemon.look(*numbers([rank]), **more)
    assert "process.json" in files(sent)
    assert not ran.exists()
    assert not (tmp_path / "bundle").exists()


def test_a_process_that_is_no_rank_is_not_looked_at(stranger: "subprocess.Popen[bytes]") -> None:
    with taken_over(sample(0)) as daemon:
        sent = daemon.look((stranger.pid, start_ticks_of(stranger.pid)), (1, start_ticks_of(1)))
    assert set(files(sent)) <= {"kernel_log.txt"}
    assert f"process {stranger.pid} is no rank" in problem(sent)
    assert "process 1 is no rank" in problem(sent)


def test_a_rank_whose_pid_is_another_processs_by_now_is_not_looked_at(stranger: "subprocess.Popen[bytes]") -> None:
    """It knows the rank by pid and start ticks; the daemon's word cannot make it another."""
    ticks = start_ticks_of(stranger.pid)
    rank = msgspec.structs.replace(sample(3), pid=stranger.pid, start_ticks=ticks - 7)
    with taken_over(rank) as daemon:
        assert "is no rank" in problem(daemon.look((stranger.pid, ticks)))
        sent = daemon.look((stranger.pid, ticks - 7))
    assert "stacks.json" not in files(sent)


def test_whose_files_a_gone_rank_may_read_is_what_was_seen_while_it_lived(tmp_path: Path) -> None:
    mine, secret = tmp_path / "log", tmp_path / "secret"
    mine.write_text("step 1\n")
    secret.write_text("of another\n")
    end = ProcessEnd(0, 1, None, "hook")
    rank = msgspec.structs.replace(sample(3), pid=4_194_303, end=end, outputs=None)
    noted = msgspec.structs.replace(rank, pid=4_194_302, outputs=Outputs((str(mine),), os.geteuid(), os.getegid(), ()))
    more = {"outputs": {"paths": [str(secret), "/etc/shadow"], "uid": 0, "gid": 0, "groups": []}}
    with taken_over(rank, noted) as daemon:
        assert "log.txt" not in files(daemon.look(*numbers([rank]), **more))
        sent = daemon.look(*numbers([noted]), **more)
    assert files(sent)["log.txt"] == b"step 1\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="a rank of root, and a side that is not, need root")
def test_a_rank_of_root_is_not_looked_into_by_a_side_that_is_not_root(stranger: "subprocess.Popen[bytes]") -> None:
    rank = msgspec.structs.replace(sample(3), pid=stranger.pid, start_ticks=start_ticks_of(stranger.pid))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.geteuid", lambda: 64210)
        assert "runs as root, and is not looked into" in refusal(rank, allowed=False)
        assert refusal(rank, allowed=True) == ""
    assert refusal(rank, allowed=False) == "", "root looks into what is root's"


def test_one_that_does_not_read_holds_nobody_up_and_is_ended() -> None:
    section = CaptureSection(dump_seconds=0.1, stack_seconds=0.1, nccl_ras="off", seconds=0.5)
    with taken_over(sample(0), config=Config(capture=section)) as daemon:
        message, descriptors = daemon.ask({"number": 1, "verb": "look", "look": 1, "ranks": numbers([sample(0)])})
        again, more = daemon.ask({"number": 2, "verb": "host"})
        assert "child" in again
        while (ended := json.loads(daemon.connection.recv(1 << 16))).get("ended") != message["child"]:
            pass
        assert "code" in ended
        for descriptor in (*descriptors, *more):
            os.close(descriptor)


def test_as_many_children_as_are_of_use_and_no_more() -> None:
    with taken_over() as daemon:
        answers = [daemon.ask({"number": number, "verb": "ranks"}) for number in range(4)]
        assert ["child" in message for message, _ in answers] == [True, True, False, False]
        for message, descriptors in answers[:2]:
            os.close(descriptors[0])
            daemon.connection.send(json.dumps({"verb": "end", "child": message["child"], "force": True}).encode())


def test_nobody_has_ranks_looked_at_without_end() -> None:
    rank = msgspec.structs.replace(sample(0), pid=4_194_303)
    request = {"number": 1, "verb": "sample", "at_ns": 0, "ranks": [(rank.pid, rank.start_ticks + 1)]}
    refused, deadline = "", time.monotonic() + 100
    with taken_over(rank) as daemon:
        while not refused:
            assert time.monotonic() < deadline
            message, descriptors = daemon.ask(request)
            for descriptor in descriptors:
                os.close(descriptor)
            if "times a minute" in message.get("error", ""):
                refused = message["error"]
            if "under way" in message.get("error", ""):
                time.sleep(0.05)  # until others have ended


def test_ends_are_of_own_children_alone(stranger: "subprocess.Popen[bytes]") -> None:
    with taken_over() as daemon:
        for child in (stranger.pid, 1, 2):
            for force in (False, True):
                daemon.connection.send(json.dumps({"verb": "end", "child": child, "force": force}).encode())
    assert stranger.poll() is None


# A unit of its own.


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
