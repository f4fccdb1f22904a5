"""A process of the privileged side that has ended: who is left paused is let go on first, and a pid is its own only
until it is reaped."""

import os
import struct
import subprocess

import pytest

from stallwatch.node import privileged_process
from stallwatch.node.privileged_process import PrivilegedProcess


def test_it_has_ended_once_those_that_it_left_paused_were_let_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    class Releasing:
        """Takes two looks to be done."""

        def __init__(self, command: list[str], **given: object) -> None:
            commands.append(list(command))
            self.left = 2

        def poll(self) -> int | None:
            self.left -= 1
            return None if self.left else 0

    monkeypatch.setattr(privileged_process, "PopenChild", Releasing)
    held = os.memfd_create("held")
    os.write(held, struct.pack("<QQQQ", 7, 9, 0, 0))
    with subprocess.Popen(["true"], start_new_session=True) as child:
        look = PrivilegedProcess("look", child, held, None)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not look.has_ended()
        assert child.returncode is None, "not reaped: its process group is its own"
        assert look.has_ended()
        assert look.has_ended(), "and it stays so"
    look.close()
    look.close()
    assert [command[-2:] for command in commands] == [[str(child.pid), "7:9"]]


def test_who_has_been_reaped_is_sent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pid may be another's by then."""
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    with subprocess.Popen(["true"]) as child:
        look = PrivilegedProcess("look", child, -1, None)
        look.end(force=False)
        look.end(force=True)
        assert sent == [(child.pid, 15), (child.pid, 9)]
        child.wait()
        look.end(force=True)
    assert len(sent) == 2
