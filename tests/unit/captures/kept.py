"""A capture's line to who writes down what it sends, both in this process."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from stallwatch.captures.channel import Sending, messages
from stallwatch.captures.keeper import Keeper
from stallwatch.captures.spec import CaptureState
from stallwatch.model.evidence import Attempt

NODE = "node0"


@contextmanager
def kept(bundle: Path, *ranks: int, look: int = 1, states: list[CaptureState] | None = None) -> Iterator[Sending]:
    """What is sent meanwhile lies below `bundle` afterwards; what was told of the look is added to `states`."""
    ours, theirs = socket.socketpair()
    keeper = Keeper(bundle, NODE, ranks, look)

    def keep() -> None:
        for message in messages(theirs):
            state = keeper.take(message)
            if state is not None and states is not None:
                states.append(state)
        keeper.wait_for_answers(20)

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield Sending(ours.fileno(), ours.fileno())
    finally:
        ours.close()
        thread.join(30)
        theirs.close()


def attempts(folder: Path) -> list[Attempt]:
    return msgspec.json.decode((folder / "attempts.json").read_bytes(), type=list[Attempt])
