"""What the privileged side answers, refuses and ends, with processes that are none."""

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest

from stallwatch.node import privileged_server
from stallwatch.node.privileged_process import PrivilegedProcess
from stallwatch.node.privileged_server import MESSAGE_LIMIT_BYTES, Connection, PrivilegedSide
from stallwatch.node.privileged_verbs import NotAllowed, Verb
from stallwatch.node.run_once import Ended

NOW = 5_000.0


class _Child:
    """A process that ends when a test says so."""

    class _Process:
        pid = 4242
        returncode: int | None = None

    def __init__(self, name: str, deadline: float | None = None) -> None:
        self.name, self.deadline = name, deadline
        self.process = self._Process()
        self.told_to_end = self.closed = False
        self.releasing: object | None = None
        self.ends: list[bool] = []

    def end(self, force: bool) -> None:
        self.ends.append(force)

    def has_ended(self) -> bool:
        return self.process.returncode is not None

    def close(self) -> None:
        self.closed = True


class _Side(PrivilegedSide):
    """Notes what it would have started."""

    def __init__(self) -> None:
        super().__init__({"sensor_names": ["ranks"], "sensors": {}, "captures": {}}, -1)
        self.children: list[_Child] = []
        self.words: list[Mapping[str, Any]] = []
        self.refuses: OSError | None = None

    def start(self, name: str, verb: Verb, words: Mapping[str, Any]) -> tuple[PrivilegedProcess, socket.socket]:
        if self.refuses is not None:
            raise self.refuses
        self.children.append(_Child(name))
        self.words.append(words)
        ours, theirs = socket.socketpair()
        ours.close()
        return cast("PrivilegedProcess", self.children[-1]), theirs


class _Daemon:
    """The other end of a connection."""

    def __init__(self, side: PrivilegedSide) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        self.connection = Connection(theirs, side)

    def ask(self, *requests: object) -> list[dict[str, Any]]:
        for request in requests:
            self.socket.send(request if isinstance(request, bytes) else json.dumps(request).encode())
        self.connection.take()
        return self.heard()

    def close(self) -> None:
        self.socket.close()
        self.connection.socket.close()

    def heard(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        try:
            while True:
                data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 16, 4)
                for descriptor in descriptors:
                    os.close(descriptor)
                if not data:
                    return found
                found.append({**json.loads(data), **({"lent": len(descriptors)} if descriptors else {})})
        except BlockingIOError:
            return found


@pytest.fixture
def side() -> _Side:
    return _Side()


@pytest.fixture
def daemon(side: _Side) -> Iterator[_Daemon]:
    made = _Daemon(side)
    yield made
    made.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [NOW]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


LOOK = {"number": 7, "verb": "look", "ranks": [[11, 1], [12, 1]], "look": 1}


def test_what_is_started_is_told_with_its_end_of_the_socket(side: _Side, daemon: _Daemon) -> None:
    assert daemon.ask(LOOK) == [{"number": 7, "child": 1, "pid": 4242, "lent": 1}]
    assert side.words == [{"look": 1, "ranks": [(11, 1), (12, 1)], "profile_seconds": 0, "call_sites": 0}]
    assert daemon.ask({"number": 8, "verb": "ranks", "program": "sh"})[0]["child"] == 2
    assert side.words[1] == {}, "a sensor is given nothing of a request"


@pytest.mark.parametrize("verb", ["renews", "host", "captures", None, 3, ["look"], {"look": 1}])
def test_there_is_no_other_verb(side: _Side, daemon: _Daemon, verb: object) -> None:
    assert daemon.ask({"number": 7, "verb": verb}) == [{"number": 7, "errno": 1, "error": "there is no such verb"}]
    assert side.children == []


@pytest.mark.parametrize("number", [None, "7", 7.5, True, [7]])
def test_a_number_that_is_none_is_answered_with_zero(daemon: _Daemon, number: object) -> None:
    assert daemon.ask({"number": number, "verb": "x"})[0]["number"] == 0


def test_what_makes_no_sense_is_not_heard_and_what_comes_after_it_is(daemon: _Daemon) -> None:
    nonsense = (b"{", b"[1]", b'"look"', b"[" * 20_000, b"\xff\xfe")
    assert [one["number"] for one in daemon.ask(*nonsense, LOOK)] == [7]
    assert daemon.connection.open


def test_a_message_that_is_too_long_is_not_heard(daemon: _Daemon) -> None:
    padded = json.dumps({**LOOK, "x": ""}).encode()
    fits = padded[:-2] + b"x" * (MESSAGE_LIMIT_BYTES - len(padded)) + padded[-2:]
    assert len(fits) == MESSAGE_LIMIT_BYTES
    assert [one["number"] for one in daemon.ask(fits)] == [7]
    assert daemon.ask(fits + b" ") == []


def test_descriptors_that_are_sent_are_closed(daemon: _Daemon) -> None:
    read, write = os.pipe()
    socket.send_fds(daemon.socket, [b"{}"], [write])
    os.close(write)
    daemon.connection.take()
    assert os.read(read, 1) == b"", "nobody holds it any more"
    os.close(read)


def test_of_each_verb_so_many_are_alive_and_one_that_ends_makes_room(side: _Side, daemon: _Daemon) -> None:
    sensor = {"number": 1, "verb": "ranks"}
    assert [("child" in one) for one in daemon.ask(sensor, sensor, sensor)] == [True, True, False]
    assert daemon.ask(sensor)[0]["error"] == "2 of ranks are under way"
    assert "child" in daemon.ask(LOOK)[0], "another verb"
    side.children[0].process.returncode = 3
    daemon.connection.look_after_children(NOW)
    assert daemon.heard() == [{"ended": 1, "code": 3}]
    assert side.children[0].closed
    assert "child" in daemon.ask(sensor)[0]


def test_what_cannot_be_started_is_said(side: _Side, daemon: _Daemon) -> None:
    side.refuses = OSError(11, "try again")
    assert daemon.ask(LOOK) == [{"number": 7, "errno": 11, "error": "try again"}]


def test_only_a_child_of_its_own_is_ended(side: _Side, daemon: _Daemon) -> None:
    other = _Daemon(side)
    daemon.ask(LOOK)
    assert other.ask({"verb": "end", "child": 1}) == []
    other.close()
    assert daemon.ask({"verb": "end", "child": 2}) == []
    (refused,) = daemon.ask({"number": 9, "verb": "end", "child": 0})
    assert refused["number"] == 9
    assert side.children[0].ends == []
    assert daemon.ask({"verb": "end", "child": 1}, {"verb": "end", "child": 1, "force": True}) == []
    assert daemon.ask({"verb": "end", "child": 1, "force": 1}) == []
    assert side.children[0].ends == [False, True, False], "by force only when that is said"


def test_who_is_late_is_asked_to_end_and_then_made_to(side: _Side, daemon: _Daemon) -> None:
    daemon.ask(LOOK)
    (child,) = side.children
    assert daemon.connection.next_deadline() is None
    child.deadline = NOW
    assert daemon.connection.next_deadline() == NOW
    daemon.connection.look_after_children(NOW)
    assert child.ends == [], "it has until then"
    daemon.connection.look_after_children(NOW + 0.1)
    assert (child.ends, child.deadline) == ([False], NOW + 2.1)
    daemon.connection.look_after_children(NOW + 2.0)
    assert child.ends == [False]
    daemon.connection.look_after_children(NOW + 2.2)
    assert child.ends == [False, True]


def test_while_ranks_are_let_go_it_is_looked_at_soon(side: _Side, daemon: _Daemon, clock: list[float]) -> None:
    daemon.ask(LOOK)
    side.children[0].releasing = object()
    assert daemon.connection.next_deadline() == NOW + 0.05


def test_when_the_daemon_has_gone_its_children_end_and_only_then_it_is_over(
    side: _Side, daemon: _Daemon, clock: list[float]
) -> None:
    daemon.ask(LOOK)
    (child,) = side.children
    daemon.socket.close()
    daemon.connection.take()
    assert (child.ends, child.deadline, child.told_to_end) == ([False], NOW + 2, True)
    assert [daemon.connection.open, daemon.connection.is_over] == [False, False]
    daemon.connection.look_after_children(NOW + 3)
    assert child.ends == [False, True]
    child.process.returncode = -9
    daemon.connection.look_after_children(NOW + 3)
    assert [daemon.connection.is_over] == [True]
    daemon.connection.close()
    assert child.ends == [False, True], "closed once"


def test_to_renew_comes_before_what_is_asked_after_it(side: _Side, daemon: _Daemon, clock: list[float]) -> None:
    assert daemon.ask({"verb": "renew"}, LOOK) == []
    assert side.renews_now
    side.is_to_renew = False
    daemon.connection.take()
    assert [one["number"] for one in daemon.heard()] == [7]


def test_a_rank_is_looked_at_so_often_in_a_minute(side: _Side, clock: list[float]) -> None:
    for _ in range(60):
        side.check_pace([(11, 1)])
    with pytest.raises(NotAllowed, match="60 times a minute"):
        side.check_pace([(12, 1), (11, 1)])
    side.check_pace([(12, 1)])
    clock[0] += 59.9
    with pytest.raises(NotAllowed):
        side.check_pace([(11, 1)])
    clock[0] += 0.1
    side.check_pace([(11, 1)])


def test_of_one_user_so_many_processes_are_looked_at_in_a_minute(
    side: _Side, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privileged_server, "_MOST_OF_USER", 3)
    users = {**dict.fromkeys(range(1, 10), 1000), 20: 1001}
    monkeypatch.setattr(privileged_server, "_user_of", users.get)
    side.check_pace([(pid, 0) for pid in (1, 2, 3, 4)])
    with pytest.raises(NotAllowed, match="3 processes of a user"):
        side.check_pace([(1, 0)])
    side.check_pace([(20, 0)])
    side.check_pace([(99, 0)])
    clock[0] += 60
    side.check_pace([(1, 0)])


def test_only_the_users_that_are_named_may_connect_and_only_so_many(
    side: _Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"\0stallwatch-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen(8)
        listening.setblocking(False)
        side._accept(listening, {os.geteuid()})
        assert side._connections == [], "nobody has come"
        callers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(6)]
        for caller in callers:
            caller.connect(path)
        side._accept(listening, {os.geteuid() + 1})
        assert side._connections == []
        for _ in callers[1:]:
            side._accept(listening, {os.geteuid()})
        assert len(side._connections) == 4
        for caller in callers:
            caller.close()
        for one in side._connections:
            one.socket.close()


@pytest.mark.parametrize(("name", "deadline"), [("look", NOW + 25), ("sample", NOW + 3), ("ranks", None)])
def test_what_is_started_has_the_time_that_the_settings_give_it(
    monkeypatch: pytest.MonkeyPatch, clock: list[float], name: str, deadline: float | None
) -> None:
    class Started:
        def __init__(self, command: object, lends: object) -> None:
            self.child, self.channel = _Child(name), None

    monkeypatch.setattr(privileged_server, "OwnChild", Started)
    captures = {"seconds": 25, "sample_seconds": 3}
    side = PrivilegedSide({"sensor_names": ["ranks"], "sensors": {}, "captures": captures}, -1)
    verb = side.verb(name)
    assert verb is not None
    process, _ = side.start(name, verb, {})
    assert process.deadline == deadline
    process.close()


def test_what_is_under_way_has_time_to_end_when_the_side_is_stopped(side: _Side) -> None:
    """A look lets its ranks go on first."""
    wakeup, ring = os.pipe2(os.O_NONBLOCK)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection = Connection(theirs, side)
    child = _Child("look")
    asked: list[int] = []

    def has_ended() -> bool:
        asked.append(os.write(ring, b"!"))
        return len(asked) == 3

    child.has_ended = has_ended  # type: ignore[method-assign]
    connection._children[1] = cast("PrivilegedProcess", child)
    side._connections.append(connection)
    os.write(ring, b"!")
    side.stop()
    try:
        side.serve(wakeup, None, listening, set())
    finally:
        ours.close()
        listening.close()
        os.close(wakeup)
        os.close(ring)
    assert (child.ends, child.closed) == ([False], True)


def test_what_is_asked_while_the_settings_are_read_anew_has_the_new_ones(
    side: _Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    wakeup, ring = os.pipe2(os.O_NONBLOCK)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    begun: list[int] = []  # looks, each time that it is asked for the settings
    runs: list[object] = []

    class Reads:
        def __init__(self, command: object, leads_group: bool) -> None:
            runs.append(command)
            os.write(ring, b"!")

        def poll(self) -> Ended | None:
            begun.append(len(side.children))
            os.write(ring, b"!")
            done = json.dumps({**side._settings, "captures": {"seconds": 9}}).encode()
            return Ended(0, done, b"") if len(begun) == 3 else None

    start, given = side.start, list[object]()

    def started(name: str, verb: Verb, words: Mapping[str, Any]) -> tuple[PrivilegedProcess, socket.socket]:
        given.append(side._settings["captures"])
        made = start(name, verb, words)
        side.children[-1].process.returncode = 0
        ours.close()
        return made

    side.start = started  # type: ignore[method-assign]
    side._settings = {**side._settings, "renew": ["prints them"]}
    monkeypatch.setattr(privileged_server, "RunOnce", Reads)
    for request in ({"verb": "renew"}, LOOK):
        ours.send(json.dumps(request).encode())
    try:
        side.serve(wakeup, theirs, None, set())
    finally:
        os.close(wakeup)
        os.close(ring)
    assert (begun, given, runs) == ([0, 0, 0], [{"seconds": 9}], [["prints them"]])
