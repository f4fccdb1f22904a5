"""The kernel's ring buffer without waiting: XIDs, out-of-memory kills, link errors."""

import os
from collections import deque

from stallwatch.captures.folder import NotCaptured
from stallwatch.formats.outside_text import line_of

_LIMIT_BYTES = 1 << 20
_RECORD_BYTES = 8192  # the kernel returns one record a read, at most this long (CONSOLE_EXT_LOG_MAX)


def read_kernel_log(path: str = "/dev/kmsg") -> list[str]:
    """Return the newest lines, oldest first, as dmesg prints them. Raise NotCaptured when they are not ours to read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise NotCaptured(
            f"the kernel log cannot be read: {path}: {error.strerror}",
            "It needs CAP_SYSLOG, and /dev/kmsg in a container; XIDs are then seen through NVML only.",
        ) from error
    lines: deque[str] = deque()
    held = 0
    try:
        while True:
            try:
                record = os.read(descriptor, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # overwritten while we read; the next read goes on behind the gap
            if not record:
                break
            line = parse_record(record)
            lines.append(line)
            held += len(line)
            while held > _LIMIT_BYTES:
                held -= len(lines.popleft())
    except OSError as error:
        raise NotCaptured(f"the kernel log cannot be read: {error.strerror}", "It needs CAP_SYSLOG.") from error
    finally:
        os.close(descriptor)
    return list(lines)


def parse_record(record: bytes) -> str:
    """ "6,339,5140900,-;NVRM: Xid …" (Documentation/ABI/testing/dev-kmsg) as "[    5.140900] NVRM: Xid …"."""
    head, _, text = record.partition(b";")
    message = line_of(text.split(b"\n", 1)[0])
    fields = head.split(b",")
    if len(fields) < 3 or not fields[2].isdigit():
        return message
    microseconds = int(fields[2])
    return f"[{microseconds // 1_000_000:5d}.{microseconds % 1_000_000:06d}] {message}"
