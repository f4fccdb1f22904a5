"""The privileged side as somebody uses it who has taken the daemon over: the real process, over its real socket."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallwatch.captures.ranks_of_root import refusal
from stallwatch.config import Config
from stallwatch.config_sections import CaptureSection
from stallwatch.model.snapshot import Outputs, ProcessEnd
from stallwatch.node.privileged_verbs import MOST_RANKS
from tests.builders.records import start_ticks_of
from tests.programs.privileged import numbers
from tests.unit.node.takeover import files, problem, taken_over
from tests.unit.outputs.reports import sample


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
