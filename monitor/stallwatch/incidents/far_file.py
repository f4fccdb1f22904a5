"""Files that the loop reads while it runs (its configuration, secrets), through a child: a file
system that is dead costs a deadline, and nobody waits for the writer of a pipe."""

import errno
from pathlib import Path

import msgspec

from stallwatch.node.disk import Disk

_BYTES = msgspec.msgpack.Decoder(bytes)
_SECONDS = 2.0


def read_regular(path: Path, seconds: float = _SECONDS) -> bytes:
    """Return the bytes of a regular file. Raise OSError; DiskHangs, which is one, when it has not come in time."""
    disk = Disk(str(path), seconds)
    try:
        disk.call("read", "/dev/null")  # the child's imports have a time of their own
        return _BYTES.decode(disk.call("read_regular", str(path)))
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise OSError(errno.EINVAL, "not a regular file", str(path)) from error
        raise
    finally:
        disk.close()
