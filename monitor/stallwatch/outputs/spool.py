"""What an output has told and what it still has to deliver, kept over a restart of the daemon."""

import errno
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from stallwatch.encoding import json_of
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.incidents.delivery_steps import LAST_STEPS, Step
from stallwatch.model.incident import OutputTold
from stallwatch.node.disk import Disk

_MOST_MESSAGES = 200  # some hours of a very bad day; the oldest of who has the most is dropped first
_MOST_INCIDENTS = 2000


class Message(msgspec.Struct, frozen=True):
    """A message that waits for its delivery."""

    incident_id: str
    step: Step
    queued_wall_ns: int
    body: msgspec.Raw
    line: str = ""  # the message in one line, for a digest
    begun: bool = False  # an attempt was begun of which nobody knows what became
    owner: str = ""  # whose job it tells of
    training_job: str = ""
    critical: bool = False
    shared: bool = False  # other nodes see the incident too, and may tell of it


class Spool(msgspec.Struct, frozen=True):
    """Frozen: the worker writes one to disk while the loop makes the next."""

    schema_version: int = 1
    told: dict[str, tuple[Step, ...]] = {}
    queue: tuple[Message, ...] = ()
    verdicts: dict[str, str] = {}  # by incident: the verdict that was told last
    threads: dict[str, str] = {}  # by incident: the thread of its first message
    owners: dict[str, str] = {}  # by incident: whose job it is of
    company: dict[str, str] = {}  # by incident: the one whose message has named it, too (outputs.company)

    def with_message(self, message: Message, steps: tuple[Step, ...], verdict: str = "") -> tuple["Spool", int]:
        """Return the spool with a message queued and its steps noted, and how many messages were dropped for it."""
        spool = self.with_told(message.incident_id, steps, verdict, message.owner)
        queue = [*self.queue, message]
        while len(queue) > _MOST_MESSAGES:
            del queue[_oldest_of_most({place: one.owner for place, one in enumerate(queue)})]
        dropped = len(self.queue) + 1 - len(queue)
        return replace(spool, queue=tuple(queue)), dropped

    def with_told(self, incident_id: str, steps: tuple[Step, ...], verdict: str, owner: str) -> "Spool":
        """The spool with steps of an incident noted as told, and the verdict that was."""
        told = dict(self.told)
        told[incident_id] = (*told.pop(incident_id, ()), *steps)
        owners, verdicts = {**self.owners, incident_id: owner}, {**self.verdicts, incident_id: verdict}
        threads = self.threads
        while len(told) > _MOST_INCIDENTS:
            gone = _oldest_of_most({one: owners.get(one, "") for one in told})
            del told[gone]
            owners.pop(gone, None)
            verdicts.pop(gone, None)
            threads = {one: thread for one, thread in threads.items() if one != gone}
        return replace(self, told=told, verdicts=verdicts, threads=threads, owners=owners)

    def delivered(self, incident_id: str) -> OutputTold:
        """What has left of an incident's messages: all that was queued and waits no more."""
        waiting = {message.step for message in self.queue if message.incident_id == incident_id}
        if "told" in waiting:
            waiting.add("escalated")
        steps = tuple(step for step in self.told.get(incident_id, ()) if step not in waiting)
        return OutputTold(steps, self.verdicts.get(incident_id, ""), self.threads.get(incident_id, ""))

    def with_delivered(self, incident_id: str, elsewhere: OutputTold) -> "Spool":
        """Note what another node has delivered, so that what follows edits and does not add; what waits here and tells
        the same is not sent any more."""
        spool = self._withdrawn(incident_id, elsewhere)
        own = spool.told.get(incident_id, ())
        steps = tuple(step for step in elsewhere.steps if step not in own)
        if not steps:
            return spool
        spool = replace(spool, told={**spool.told, incident_id: (*own, *steps)})
        if elsewhere.verdict and incident_id not in spool.verdicts:
            spool = replace(spool, verdicts={**spool.verdicts, incident_id: elsewhere.verdict})
        if elsewhere.thread and incident_id not in self.threads:
            spool = spool.with_thread(incident_id, elsewhere.thread)
        return spool

    def _withdrawn(self, incident_id: str, elsewhere: OutputTold) -> "Spool":
        """An update is no step of which there is one: ours may be of what came later."""
        same = {step for step in elsewhere.steps if step != "updated"}
        waiting = [one for one in self.queue if one.incident_id == incident_id]
        gone = [one for one in waiting if one.step in same]
        if not gone:
            return self
        steps = {one.step for one in gone}
        if "told" in steps and all(one.step != "escalated" for one in waiting):
            steps.add("escalated")  # which that message may have settled with it
        told = tuple(step for step in self.told.get(incident_id, ()) if step not in steps)
        verdicts = {known: verdict for known, verdict in self.verdicts.items() if known != incident_id}
        return replace(self.without(gone), told={**self.told, incident_id: told}, verdicts=verdicts)

    def without(self, messages: Sequence[Message]) -> "Spool":
        """The spool without these messages."""
        gone = {id(message) for message in messages}
        return replace(self, queue=tuple(other for other in self.queue if id(other) not in gone))

    def begun(self, messages: Sequence[Message], *, begun: bool) -> "Spool":
        """Note of these messages whether an attempt is under way; they are new values then, in the same places."""
        changed = {id(message) for message in messages if message.begun != begun}
        if not changed:
            return self
        queue = (replace(other, begun=begun) if id(other) in changed else other for other in self.queue)
        return replace(self, queue=tuple(queue))

    def with_thread(self, incident_id: str, thread: str) -> "Spool":
        """The spool that knows where messages of an incident belong."""
        return replace(self, threads={**self.threads, incident_id: thread})

    def forget(self, present: set[str]) -> "Spool":
        """Without the incidents whose end was told and that nobody mentions any more."""
        waiting = {message.incident_id for message in self.queue}
        told = {
            incident_id: steps
            for incident_id, steps in self.told.items()
            if incident_id in present or incident_id in waiting or not set(LAST_STEPS) & set(steps)
        }
        if len(told) == len(self.told):
            return self
        threads = {incident_id: thread for incident_id, thread in self.threads.items() if incident_id in told}
        verdicts = {incident_id: verdict for incident_id, verdict in self.verdicts.items() if incident_id in told}
        owners = {incident_id: owner for incident_id, owner in self.owners.items() if incident_id in told}
        return replace(self, told=told, threads=threads, verdicts=verdicts, owners=owners)


Key = TypeVar("Key")


def _oldest_of_most(owners: dict[Key, str]) -> Key:
    """Given whose each is, oldest first, return the oldest of who has the most: nobody's rubbish costs another's."""
    most, _ = Counter(owners.values()).most_common(1)[0]
    return next(key for key, owner in owners.items() if owner == most)


_SPOOL = msgspec.json.Decoder(Spool)
_BYTES = msgspec.msgpack.Decoder(bytes)
_NO_FILE = (errno.EINVAL, errno.EISDIR, errno.ELOOP)  # a folder, a FIFO, a device, a link to itself


class SpoolFile(Protocol):
    """Where a spool is kept between attempts. Every call may raise OSError."""

    path: Path

    def load(self) -> Spool:
        """An absent or unreadable one is empty."""
        ...

    def save(self, spool: Spool) -> None:
        """In one step: a crash leaves the old one or the new one."""
        ...

    def be_ready(self) -> None:
        """There may be something to save in a moment."""

    def rest(self) -> None:
        """Nothing will be saved for a while."""


class FarSpoolFile:
    """A SpoolFile behind a child: a disk that hangs delays no message by more than `seconds`. There are few calls, so
    the child ends when it is told to rest."""

    def __init__(self, path: Path, seconds: float = 5.0) -> None:
        self.path = path
        self._disk = Disk(str(path.parent), seconds)

    def load(self) -> Spool:
        """Read what was told, in a child; a file that holds no spool is put aside, and the spool is empty. Raise
        DiskHangs where no answer comes, OSError where it cannot be read."""
        try:
            return self._load()
        finally:
            self.rest()

    def be_ready(self) -> None:
        """Start the child before there is something to write."""
        self._disk.be_ready()

    def rest(self) -> None:
        """End the child until it is needed."""
        self._disk.close()

    def _load(self) -> Spool:
        try:
            return _SPOOL.decode(_BYTES.decode(self._disk.call("read_regular", str(self.path))))
        except FileNotFoundError:
            return Spool()
        except NOT_JSON:
            pass
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
        self._disk.call("rename", str(self.path), str(self.path.with_suffix(".unreadable")))
        return Spool()

    def save(self, spool: Spool) -> None:
        """Write it through to the disk. Raise OSError or DiskHangs."""
        self._disk.call("write_through", str(self.path), json_of(spool))
