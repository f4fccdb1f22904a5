"""The daemon's end of the privileged side, with a test at the other end of the socket: what comes late, or never."""

import errno
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from stallwatch.node import capabilities
from stallwatch.node.children import PopenChild
from stallwatch.node.privileged_client import Privileged, find_side, part_with_capabilities


class Peer:
    """The other end: answers each request in a thread of its own, as the test says."""

    def __init__(self) -> None:
        ours, self.socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.side = Privileged(ours)
        self.kept: list[socket.socket] = []

    def starts(self, number: int, child: int = 1) -> None:
        """Say that a child runs, and keep the other end of its channel."""
        channel, theirs = socket.socketpair()
        self.kept.append(theirs)
        with channel:
            told = json.dumps({"number": number, "child": child, "pid": 77}).encode()
            socket.send_fds(self.socket, [told], [channel.fileno()])

    def says(self, **words: Any) -> None:
        self.socket.send(json.dumps(words).encode())

    def heard(self) -> dict[str, Any]:
        self.socket.settimeout(30)
        asked: dict[str, Any] = json.loads(self.socket.recv(1 << 20))
        return asked

    def answering(self, answer: Callable[[int], None], listens: socket.socket | None = None) -> threading.Thread:
        def answers() -> None:
            if listens:
                self.socket.close()
                self.socket, _ = listens.accept()
            answer(self.heard()["number"])

        thread = threading.Thread(target=answers, daemon=True)
        thread.start()
        return thread


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.side.close()
    for one in (peer.socket, *peer.kept):
        one.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FIRST_SECONDS", "_SECONDS"):
        monkeypatch.setattr(f"stallwatch.node.privileged_client.{name}", 0.0)


def test_a_child_ends_when_that_is_told_and_is_then_asked_for_no_more(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.answering(peer.starts)
    child = peer.side.start("host")
    with child.channel:
        assert (child.pid, child.poll(), peer.side.is_ours, peer.side.pid) == (77, None, False, None)
        with pytest.raises(subprocess.TimeoutExpired, match=r"after 0\.01 seconds"):
            child.wait(0.01)
        with pytest.raises(subprocess.TimeoutExpired, match="after 0 seconds"):
            child.wait(0)
        child.terminate()
        assert peer.heard() == {"verb": "end", "child": 1, "force": False}
        child.kill()
        assert peer.heard() == {"verb": "end", "child": 1, "force": True}
        peer.says(ended=9, code=0)  # of one that nobody knows
        peer.side.wait(None)
        monkeypatch.setattr(peer.side, "wait", lambda seconds: peer.says(ended=1, code=3))
        assert child.wait() == 3
        assert child.child is child
        child.kill()
    peer.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        peer.socket.recv(1)


def test_a_child_that_comes_when_nobody_waits_for_it_any_more_is_killed(peer: Peer, impatient: None) -> None:
    with pytest.raises(TimeoutError, match="has not answered for 0 s"):
        peer.side.start("host")
    first = peer.heard()["number"]
    with pytest.raises(TimeoutError):
        peer.side.start("host")  # it is asked nothing more until it has answered
    peer.starts(first)
    peer.side.hear()
    assert peer.heard() == {"verb": "end", "child": 1, "force": True}
    assert peer.kept[0].recv(1) == b"", "our end of its channel is closed"


def test_a_refusal_that_comes_late_is_no_answer_to_what_is_asked_after_it(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as soon:
        soon.setattr("stallwatch.node.privileged_client._FIRST_SECONDS", 0.0)
        with pytest.raises(TimeoutError):
            peer.side.start("host")
    peer.says(number=peer.heard()["number"], errno=errno.EPERM, error="not now")
    peer.side.wait(30)
    peer.answering(peer.starts)
    peer.side.start("host").channel.close()


def test_once_it_has_answered_it_is_waited_for_less_long(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """At first it imports."""
    monkeypatch.setattr("stallwatch.node.privileged_client._SECONDS", 0.0)
    peer.answering(lambda number: peer.says(number=number, errno=errno.EPERM, error="not for you"))
    with pytest.raises(PermissionError, match="not for you"):
        peer.side.start("host")
    with pytest.raises(TimeoutError):
        peer.side.start("host")


def test_one_that_is_silent_for_long_is_given_up_and_so_are_its_children(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.answering(peer.starts)
    child = peer.side.start("host")
    child.channel.close()
    monkeypatch.setattr("stallwatch.node.privileged_client._GIVE_UP_SECONDS", -1.0)
    assert not peer.side.has_ended(), "nothing was asked"
    monkeypatch.setattr("stallwatch.node.privileged_client._SECONDS", 0.0)
    with pytest.raises(OSError, match="has ended"):
        peer.side.start("host")
    assert peer.side.has_ended()
    assert child.poll() == -signal.SIGKILL
    child.kill()
    peer.side.wait(None)  # of one that is gone nothing comes: no waiting for ever


class Process:
    """A side that was started by who asks it, and that does not end by itself."""

    pid = 55
    returncode: int | None = None
    killed = 0

    def kill(self) -> None:
        self.killed += 1

    def wait(self, seconds: float) -> int:
        raise subprocess.TimeoutExpired("side", seconds)


def test_one_of_our_own_is_killed_when_it_is_given_up_and_when_it_does_not_end(
    peer: Peer, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process()
    side = Privileged(peer.socket.dup(), cast("PopenChild", process))
    assert (side.pid, side.is_ours) == (55, True)
    side.renew()
    with pytest.raises(TimeoutError):
        side.start("host")
    monkeypatch.setattr("stallwatch.node.privileged_client._GIVE_UP_SECONDS", -1.0)
    assert (side.has_ended(), process.killed) == (True, 1)
    side.close()
    assert (process.killed, process.returncode) == (2, -signal.SIGKILL)


def test_what_is_too_long_to_be_asked_is_refused_and_changes_nothing(peer: Peer) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.E2BIG)):
        peer.side.start("host", words="x" * (1 << 20))
    peer.answering(peer.starts)
    peer.side.start("host").channel.close()


def test_what_is_said_to_one_that_has_gone_is_lost_and_nothing_raised(peer: Peer) -> None:
    peer.socket.close()
    peer.side.renew()
    assert peer.side.has_ended()
    peer.side.renew()
    with pytest.raises(OSError, match="has ended"):
        peer.side.start("host")


def test_who_closes_it_knows_of_all_that_it_had_started_that_it_ends(peer: Peer) -> None:
    peer.answering(peer.starts)
    child = peer.side.start("host")
    child.channel.close()
    peer.side.close()
    assert child.poll() == -signal.SIGKILL
    assert peer.socket.recv(1) == b"", "that is how the side hears of it"


def test_a_unit_of_its_own_is_found_by_its_socket_and_found_again(peer: Peer, tmp_path: Path) -> None:
    """It has ended, and its manager holds the socket on which the next one will listen."""
    path = str(tmp_path / "side.sock")
    with pytest.raises(FileNotFoundError):
        find_side(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listens:
        listens.bind(path)
        listens.listen()
        side = find_side(path)
        first, _ = listens.accept()
        with first:
            side.renew()
            assert json.loads(first.recv(1 << 10)) == {"verb": "renew"}
        assert not side.has_ended(), "it can be found again"
        assert (side.lost, side.is_ours, side.pid) == (True, False, None)
        peer.answering(peer.starts, listens)
        child = side.start("host")
        child.channel.close()
        assert child.pid == 77
        side.close()
    with pytest.raises(OSError, match="has ended"):
        side.start("host")
    assert side.has_ended(), "who has closed it looks for no other"


@pytest.mark.parametrize(("user", "some", "parts"), [(0, True, False), (1000, True, True), (1000, False, False)])
def test_everybody_but_root_parts_with_the_capabilities_that_he_has(
    monkeypatch: pytest.MonkeyPatch, user: int, some: bool, parts: bool
) -> None:
    given_up: list[bool] = []
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(capabilities, "any_permitted", lambda: some)
    monkeypatch.setattr(capabilities, "give_up_for_good", lambda: given_up.append(True))
    part_with_capabilities()
    assert bool(given_up) is parts
