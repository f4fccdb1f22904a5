import select
import socket
import subprocess
import sys

import msgspec
import pytest

from stallwatch.encoding import Unpacker, pack
from stallwatch.sensors.child import serve
from stallwatch.sensors.sensor import Options, SensorAnswer


@pytest.mark.parametrize("unread", [False, True])
def test_a_child_whose_daemon_goes_ends_without_a_word(unread: bool) -> None:
    """A socket that is closed with something unread in it is reset, which is no fault of anybody's."""
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen(
            [sys.executable, "-m", "stallwatch.sensors.child", "host", msgspec.json.encode(Options()).decode()],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.PIPE,
        )
    try:
        with ours:
            ours.send(pack(msgspec.msgpack.encode(1)))
            assert select.select([ours], [], [], 60)[0]
            if not unread:
                ours.settimeout(60)
                ours.recv(1 << 20)
        _, said = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert (child.returncode, said) == (0, b"")


def test_a_child_without_memory_says_so_and_makes_room_for_another() -> None:
    """What a limit or a heap in pieces has done to one process the next one does not inherit."""
    ours, theirs = socket.socketpair()

    class Hungry:
        def read(self) -> int:
            raise MemoryError

    with ours, theirs:
        ours.send(pack(msgspec.msgpack.encode(1)) + pack(msgspec.msgpack.encode(2)))
        serve(Hungry, theirs.fileno(), theirs.fileno())
        ours.settimeout(60)
        (said,) = Unpacker().feed(ours.recv(1 << 20))
    answer = msgspec.msgpack.decode(said, type=SensorAnswer)
    assert (answer.request, answer.error, answer.absent) == (1, "MemoryError: ", False)
