"""What a capture on the privileged side sends to the daemon's side, which writes it down, and the one thing that it is
told: each message in msgpack, framed as of encoding.pack."""

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from stallwatch.captures.nccl_ras import RasAsk
from stallwatch.captures.process import OwnBytes
from stallwatch.captures.spec import CaptureState
from stallwatch.encoding import Unpacker, msgpack_of, pack
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.model.evidence import Attempt
from stallwatch.node.framing import write

NODE = -1  # the place of what belongs to no rank
_PIECE_BYTES = 8 << 20
_TOLD_SECONDS = 2.0


class FilePiece(msgspec.Struct, frozen=True, tag="file"):
    """A file of a rank (its number), or of the node. Its pieces follow each other."""

    place: int
    name: str
    data: bytes
    is_last: bool = True


class Removal(msgspec.Struct, frozen=True, tag="removal"):
    """A file of a look that is not to be kept."""

    place: int
    name: str


class AttemptNote(msgspec.Struct, frozen=True, tag="note"):
    """What was asked of a rank and whether it answered."""

    place: int
    attempt: Attempt


class Asks(msgspec.Struct, frozen=True, tag="asks"):
    """NCCL's RAS services, for who has a network to ask them."""

    asked_at_ns: int
    asks: tuple[RasAsk, ...]


class LookProgress(msgspec.Struct, frozen=True, tag="progress"):
    """How far the look has come."""

    state: CaptureState


Message = FilePiece | Removal | AttemptNote | Asks | LookProgress


class Before(msgspec.Struct, frozen=True):
    """What the look before this one knew of a rank's process: numbers for what it read and wrote for us."""

    pid: int | None
    own: OwnBytes
    at_ns: int | None


class BeforeByRank(msgspec.Struct, frozen=True):
    """By rank; the daemon's word, which can spoil its own figures and nothing else."""

    before: dict[int, Before] = {}


class LookBefore:
    """The same, asked for when it is needed: whoever writes down has to start first, and a look waits for nobody."""

    def __init__(self, receive: Callable[[], BeforeByRank | None] = BeforeByRank) -> None:
        """`receive` waits for it, and is called once; None: it did not come."""
        self._receive = receive
        self._lock = threading.Lock()
        self._asked = False
        self._told: BeforeByRank | None = None

    def of(self, rank: int) -> Before | None:
        """What the look before this one knew of a rank; None: nothing, or its word did not come."""
        told = self._word()
        return told.before.get(rank) if told else None

    def came(self) -> bool:
        """Whether its word came, be it that it knew nothing: what it knew is not nothing where it did not."""
        return self._word() is not None

    def _word(self) -> BeforeByRank | None:
        with self._lock:
            if not self._asked:
                self._asked, self._told = True, self._receive()
            return self._told


_TOLD = msgspec.msgpack.Decoder(BeforeByRank)
_MESSAGE: "msgspec.msgpack.Decoder[Message]" = msgspec.msgpack.Decoder(Message)


class Sending:
    """The capture's end; used by several threads. One that nobody reads any more swallows what is sent."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests = requests
        self._answers = answers
        self._lock = threading.Lock()
        self.turn = threading.Lock()  # of who holds a large answer in memory, before it is sent

    def send(self, *messages: Message) -> None:
        """Send messages whole, from any thread; a daemon that is gone is no error."""
        data = b"".join(pack(msgpack_of(message)) for message in messages)
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            write(self._answers, data)

    def send_file(self, place: int, name: str, data: bytes) -> None:
        """Send a file of a rank in pieces."""
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for start in range(0, len(data) or 1, _PIECE_BYTES):
                piece = data[start : start + _PIECE_BYTES]
                last = start + _PIECE_BYTES >= len(data)
                write(self._answers, pack(msgpack_of(FilePiece(place, name, piece, last))))

    def told(self) -> BeforeByRank | None:
        """Wait for the word of the other end; None when it does not come, or is none."""
        unpacker = Unpacker(1 << 20)
        deadline = time.monotonic() + _TOLD_SECONDS
        with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
            while select.select([self._requests], [], [], max(0.0, deadline - time.monotonic()))[0]:
                data = os.read(self._requests, 1 << 16)
                if not data:
                    break
                for message in unpacker.feed(data):
                    return _TOLD.decode(message)
        return None


def messages(channel: Any) -> Iterator[Message]:
    """Yield what arrives at the daemon's end of a channel (a socket) until its end. Raise ValueError for nonsense."""
    unpacker = Unpacker()
    while True:
        try:
            data = channel.recv(1 << 18)
        except ConnectionResetError:
            return
        if not data:
            return
        for message in unpacker.feed(data):
            try:
                yield _MESSAGE.decode(message)
            except NOT_JSON as error:
                raise ValueError(f"a message that is none: {error}") from error


def tell(channel: Any, told: BeforeByRank) -> None:
    """Send the capture the one thing that it is told."""
    channel.sendall(pack(msgpack_of(told)))
