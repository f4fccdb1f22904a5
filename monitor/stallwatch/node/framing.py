"""The child's half of the talk between processes of ours, over standard input and output."""

import os
import select
import sys
from collections.abc import Callable

from stallwatch.encoding import LIMIT_BYTES, Unpacker, pack
from stallwatch.node.free_lists import FreeLists


def answer_requests(
    answer: Callable[[bytes], bytes], idle_seconds: float | None = None, limit_bytes: int = LIMIT_BYTES
) -> None:
    """What a child of node.worker does: answer each request on standard input, on standard output, until their end, or
    until none has come for `idle_seconds`."""
    requests, answers = sys.stdin.fileno(), sys.stdout.fileno()
    unpacker, free_lists = Unpacker(limit_bytes), FreeLists()
    while select.select([requests], [], [], idle_seconds)[0]:
        data = os.read(requests, 1 << 18)
        if not data:
            return
        for request in unpacker.feed(data):
            write(answers, pack(answer(request)))
        free_lists.give_back()


def write(descriptor: int, data: bytes) -> None:
    """Write all of it. Raise OSError."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def as_child(main: Callable[[], None]) -> None:
    """Run a child of ours; where its parent has gone meanwhile, a traceback would tell nobody anything."""
    try:
        main()
    except (ConnectionError, KeyboardInterrupt):
        os._exit(0)
