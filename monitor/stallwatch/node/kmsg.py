"""The kernel's ring buffer, /dev/kmsg, without waiting."""

import contextlib
import os
from collections.abc import Iterator

from stallwatch.formats.outside_text import line_of

PATH = "/dev/kmsg"
_RECORD_BYTES = 8192  # the kernel returns one record a read, at most this long (CONSOLE_EXT_LOG_MAX)

# Seconds on the kernel's own clock, None where it does not say; and the text.
Record = tuple[float | None, str]


class Kmsg:
    """From its beginning: a fault before our start is still a fault."""

    def __init__(self, path: str = PATH) -> None:
        """Raise OSError."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def check_readable(self) -> None:
        """Raise OSError where it could be opened, and without a further right cannot be read."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.read(self._descriptor, _RECORD_BYTES)
        os.lseek(self._descriptor, 0, os.SEEK_SET)

    def records(self) -> Iterator[Record]:
        """Yield those since the last call. Raise OSError."""
        while True:
            try:
                record = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # overwritten while we read; the next read goes on behind the gap
            if not record:
                return
            yield parse_record(record)

    def close(self) -> None:
        """Close the device."""
        os.close(self._descriptor)


def parse_record(record: bytes) -> Record:
    """ "6,339,5140900,-;NVRM: Xid …" (Documentation/ABI/testing/dev-kmsg); continuation lines are dropped."""
    head, _, text = record.partition(b";")
    message = line_of(text.split(b"\n", 1)[0])
    fields = head.split(b",")
    return (int(fields[2]) / 1e6 if len(fields) > 2 and fields[2].isdigit() else None), message
