import os
import stat
import time
from pathlib import Path

import pytest

from stallwatch.sensors.kernel_messages import (
    JournalMessages,
    KernelLogUnreadable,
    KmsgMessages,
    open_messages,
    parse_journal_line,
)


def test_line_of_the_journal_is_its_time_and_its_text() -> None:
    line = b"[ 5140.900123] node7 kernel: NVRM: Xid (PCI:0000:3b:00): 79"
    assert parse_journal_line(line) == (5140.900123, "NVRM: Xid (PCI:0000:3b:00): 79")
    assert parse_journal_line(b"-- Boot 1234 --") == (None, "-- Boot 1234 --")


@pytest.mark.skipif(os.geteuid() != 0 or not os.access("/dev/kmsg", os.W_OK), reason="/dev/kmsg is not ours to write")
def test_new_lines_come_once_and_after_the_old_ones() -> None:
    messages = KmsgMessages()
    list(messages.read())
    mark = f"stallwatch test {os.getpid()} {time.monotonic_ns()}"
    Path("/dev/kmsg").write_text(f"{mark}\n")  # without the newline the kernel waits for more
    deadline = time.monotonic() + 20
    found: list[str] = []
    while not found:
        assert time.monotonic() < deadline
        found = [text for _, text in messages.read() if mark in text]
    assert found == [mark]
    assert not any(mark in text for _, text in messages.read())


def script(folder: Path, body: str) -> str:
    path = folder / "journalctl"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_journal_stands_in_where_kmsg_is_closed(tmp_path: Path) -> None:
    program = script(tmp_path, 'echo "[ 7.5] n kernel: Out of memory: Killed process 5 (a), UID 0"; exec sleep 600')
    messages = open_messages(str(tmp_path / "absent"), program)
    assert isinstance(messages, JournalMessages)
    lines: list[tuple[float | None, str]] = []
    deadline = time.monotonic() + 20
    while not lines:
        assert time.monotonic() < deadline
        lines = list(messages.read())
    messages.follower.child.kill()
    messages.follower.child.wait()
    messages.follower.channel.close()
    assert lines == [(7.5, "Out of memory: Killed process 5 (a), UID 0")]


def test_both_closed_says_what_either_needs(tmp_path: Path) -> None:
    with pytest.raises(KernelLogUnreadable, match=r"absent: No such file.*no-such-program is not there.*CAP_SYSLOG"):
        open_messages(str(tmp_path / "absent"), "no-such-program")


def test_journal_that_ends_is_said(tmp_path: Path) -> None:
    messages = JournalMessages(script(tmp_path, "exit 3"))
    messages.follower.child.wait()
    with pytest.raises(KernelLogUnreadable, match=r"journalctl ended \(exit code 3\)"):
        list(messages.read())
    messages.follower.channel.close()
