"""A file system of this process's own (FUSE, as s3fs, gcsfuse and many cluster file systems are) of one file, whose
data come late or never. Needs root and /dev/fuse; `fusermount` is not asked."""

import contextlib
import ctypes
import os
import signal
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_FILE, _SIZE = b"shard-00017.bin", 4096
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _RELEASE, _FLUSH, _INIT, _INTERRUPT = 1, 2, 3, 14, 15, 18, 25, 26, 36
_NO_ANSWER = (_FORGET, _INTERRUPT)
_ENOSYS, _ENOENT = 38, 2
_DETACH = 2  # umount2(MNT_DETACH)
_DIRECTORY_MODE, _FILE_MODE = 0o040755, 0o100644
_IN_HEADER = struct.Struct("<IIQQIIIHH")
_OUT_HEADER = struct.Struct("<IiQ")


@contextlib.contextmanager
def mounted(seconds: float) -> Iterator[Path]:
    """Mount it; return the path of its file, of which a read is answered after so many seconds."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder = tempfile.mkdtemp(prefix="stallwatch-mount-")
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    if libc.mount(b"shards", folder.encode(), b"fuse.shards", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")
    # In a process of its own: a thread of the rank would hang with it, and a mount ends with its server.
    server = os.fork()
    if server == 0:
        with contextlib.suppress(BaseException):
            _serve(device, seconds)
        os._exit(0)
    os.close(device)
    try:
        yield Path(folder) / _FILE.decode()
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
        libc.umount2(folder.encode(), _DETACH)
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _serve(device: int, seconds: float) -> None:
    while True:
        request = os.read(device, 1 << 17)
        _, operation, unique, node, *_ = _IN_HEADER.unpack_from(request)
        if operation in _NO_ANSWER:
            continue
        if operation == _READ:
            # Others (our own reader of /proc, a second rank) are answered meanwhile.
            threading.Thread(target=_answer_late, args=(device, unique, seconds), daemon=True).start()
            continue
        error, payload = _answer(operation, node, request[_IN_HEADER.size :])
        os.write(device, _OUT_HEADER.pack(_OUT_HEADER.size + len(payload), -error, unique) + payload)


def _answer_late(device: int, unique: int, seconds: float) -> None:
    time.sleep(seconds)
    os.write(device, _OUT_HEADER.pack(_OUT_HEADER.size + _SIZE, 0, unique) + bytes(_SIZE))


def _answer(operation: int, node: int, body: bytes) -> tuple[int, bytes]:
    if operation == _INIT:
        return 0, struct.pack("<IIIIHHII36x", 7, 31, 0, 0, 0, 0, 1 << 16, 1)
    if operation == _LOOKUP:
        return (0, struct.pack("<QQQQII", 2, 0, 1, 1, 0, 0) + _attributes(2)) if body[:-1] == _FILE else (_ENOENT, b"")
    if operation == _GETATTR:
        return 0, struct.pack("<QII", 1, 0, 0) + _attributes(node)
    if operation == _OPEN:
        return 0, struct.pack("<QII", 1, 0, 0)
    return (0, b"") if operation in (_RELEASE, _FLUSH) else (_ENOSYS, b"")


def _attributes(node: int) -> bytes:
    mode, size = (_DIRECTORY_MODE, 0) if node == 1 else (_FILE_MODE, _SIZE)
    return struct.pack("<QQQQQQIIIIIIIIII", node, size, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
