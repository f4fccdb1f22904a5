"""The kernel's log as it is kept with an incident: XIDs, out-of-memory kills, link errors."""

from collections import deque

from stallwatch.captures.folder import NotCaptured
from stallwatch.node.kmsg import PATH, Kmsg, Record

_LIMIT_BYTES = 1 << 20


def read_kernel_log(path: str = PATH) -> list[str]:
    """Return the newest lines, oldest first, as dmesg prints them. Raise NotCaptured when they are not ours to read."""
    lines: deque[str] = deque()
    held = 0
    try:
        kmsg = Kmsg(path)
        try:
            for record in kmsg.records():
                line = as_dmesg(record)
                lines.append(line)
                held += len(line)
                while held > _LIMIT_BYTES:
                    held -= len(lines.popleft())
        finally:
            kmsg.close()
    except OSError as error:
        raise NotCaptured(
            f"the kernel log cannot be read: {path}: {error.strerror}",
            "It needs CAP_SYSLOG, and /dev/kmsg in a container; XIDs are then seen through NVML only.",
        ) from error
    return list(lines)


def as_dmesg(record: Record) -> str:
    """ "[    5.140900] NVRM: Xid …" """
    seconds, message = record
    return message if seconds is None else f"[{seconds:12.6f}] {message}"
