"""What an output has told and what it still has to deliver, kept over a restart of the daemon."""

import os
import tempfile
from pathlib import Path

import msgspec

from stallwatch.outputs.telling import Step

_MOST_MESSAGES = 200  # some hours of a very bad day; the oldest is dropped first
_MOST_INCIDENTS = 2000


class Message(msgspec.Struct, frozen=True):
    incident_id: str
    step: Step
    queued_wall_ns: int
    body: msgspec.Raw


class Spool(msgspec.Struct, frozen=True):
    """Frozen: the worker writes one to disk while the loop makes the next."""

    schema_version: int = 1
    told: dict[str, tuple[Step, ...]] = {}
    queue: tuple[Message, ...] = ()

    def with_message(self, message: Message, steps: tuple[Step, ...]) -> tuple["Spool", int]:
        """Return the spool with a message queued and its steps noted, and how many messages were dropped for it."""
        told = dict(self.told)
        told[message.incident_id] = (*told.pop(message.incident_id, ()), *steps)
        while len(told) > _MOST_INCIDENTS:
            del told[next(iter(told))]
        queue = (*self.queue, message)
        kept = queue[-_MOST_MESSAGES:]
        return Spool(told=told, queue=kept), len(queue) - len(kept)

    def without(self, message: Message) -> "Spool":
        return Spool(told=self.told, queue=tuple(other for other in self.queue if other is not message))

    def forget(self, present: set[str]) -> "Spool":
        """Without the incidents whose end was told and that nobody mentions any more."""
        waiting = {message.incident_id for message in self.queue}
        told = {
            incident_id: steps
            for incident_id, steps in self.told.items()
            if incident_id in present or incident_id in waiting or "resolved" not in steps
        }
        return self if len(told) == len(self.told) else Spool(told=told, queue=self.queue)


def load(path: Path) -> Spool:
    """Given a spool's file, return what it holds; an absent or unreadable one is empty.

    Raise OSError when it exists and cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Spool)
    except FileNotFoundError:
        return Spool()
    except msgspec.MsgspecError:
        path.replace(path.with_suffix(".unreadable"))
        return Spool()


def save(path: Path, spool: Spool) -> None:
    """Replace the file in one step: a crash leaves the old one or the new one."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600: messages hold code
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(spool))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
