"""New lines of the kernel's log: from /dev/kmsg, else from the journal. Nothing here waits."""

import contextlib
import shutil
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from stallwatch.formats.outside_text import line_of
from stallwatch.node.children import OwnChild
from stallwatch.node.kmsg import PATH, Kmsg

_MOST_LINES = 5000  # in one read: a driver in a loop must not take our time
_JOURNAL_LINES = 2000


class KernelMessages(Protocol):
    """A source of the kernel's messages."""

    def read(self) -> Iterator[tuple[float | None, str]]:
        """Yield the lines since the last call: seconds on the kernel's own clock, and the text."""
        ...


class KernelLogUnreadable(Exception):
    """The kernel's log cannot be read; the message says what it would need."""


class KmsgMessages:
    """/dev/kmsg from its beginning."""

    def __init__(self, path: str = PATH) -> None:
        try:
            self._kmsg = Kmsg(path)
            self._kmsg.check_readable()
        except OSError as error:
            raise KernelLogUnreadable(f"{path}: {error.strerror}") from error

    def read(self) -> Iterator[tuple[float | None, str]]:
        """Lines since the last call, each with its seconds since the boot; a bounded number of them."""
        return islice(self._kmsg.records(), _MOST_LINES)


class JournalMessages:
    """`journalctl --dmesg --follow`: for a service that may read the journal and not /dev/kmsg."""

    def __init__(self, program: str = "journalctl") -> None:
        path = shutil.which(program)
        if path is None:
            raise KernelLogUnreadable(f"{program} is not there")
        command = [path, "--dmesg", "--follow", "--output=short-monotonic", f"--lines={_JOURNAL_LINES}", "--no-pager"]
        self.follower = OwnChild(command, leads_session=False, quiet=True)
        self.follower.channel.setblocking(False)
        self._buffer = b""

    def read(self) -> Iterator[tuple[float | None, str]]:
        """Lines since the last call, each with its seconds since the boot, None where it has none. Raise
        KernelLogUnreadable once journalctl has ended."""
        ended = False
        with contextlib.suppress(BlockingIOError):
            while len(self._buffer) < 1 << 20:
                data = self.follower.channel.recv(1 << 16)
                if not data:
                    ended = True
                    break
                self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            yield parse_journal_line(line)
        if ended:
            raise KernelLogUnreadable(f"journalctl ended (exit code {self.follower.child.poll()})")


def open_messages(kmsg: str = PATH, program: str = "journalctl") -> KernelMessages:
    """Raise KernelLogUnreadable with what either would need."""
    try:
        return KmsgMessages(kmsg)
    except KernelLogUnreadable as first:
        try:
            return JournalMessages(program)
        except KernelLogUnreadable as second:
            raise KernelLogUnreadable(
                f"{first}; {second}. It needs CAP_SYSLOG (in a container /dev/kmsg, too) or the group systemd-journal; "
                "XIDs are then seen through NVML only"
            ) from second


def parse_journal_line(line: bytes) -> tuple[float | None, str]:
    """ "[ 5140.900123] host kernel: NVRM: Xid …" """
    text = line_of(line)
    stamp, closing, rest = text.partition("] ")
    try:
        seconds = float(stamp.lstrip("[ "))
    except ValueError:
        return None, text
    return seconds, rest.partition(" kernel: ")[2] or rest if closing else text
