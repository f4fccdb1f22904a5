"""A daemon of a simulated fleet: policy of incidents, part in the fleet, link and spool are the real ones; its clock,
looks and messages are the simulation's."""

import contextlib
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import msgspec

from stallwatch.config import Config
from stallwatch.config_sections import FleetSection, TellSection
from stallwatch.detectors.job_facts import JobFacts
from stallwatch.encoding import Unpacker, pack
from stallwatch.fleet.child import PlaceRequest
from stallwatch.fleet.exchange import Seen
from stallwatch.fleet.judge_child import JudgeQuestion
from stallwatch.fleet.judge_handle import JudgeHandle
from stallwatch.fleet.link import Link
from stallwatch.fleet.place_settings import Settings
from stallwatch.incidents.delivery_steps import covered, due, verdict_key
from stallwatch.incidents.engine import Engine, Now, adopt
from stallwatch.incidents.incident_names import shared_name
from stallwatch.incidents.life import IncidentTable
from stallwatch.incidents.messages import CancelCapture, Captured, Event, Judge, Judged, StartCapture
from stallwatch.loop.shared_incidents import Fleet
from stallwatch.model.finding import Finding
from stallwatch.model.incident import Incident, Together, Told
from stallwatch.model.snapshot import JobKey
from stallwatch.outputs.left_messages import LeftMessages
from stallwatch.outputs.spool import Message, Spool
from tests.builders.clock import SECOND_NS, WALL_NS
from tests.chaos.fleet_story import UNDECIDED_SECONDS, Story, host, scene

JOB = JobKey("train", "10.0.0.1:29500/8/0")
SETTINGS = Settings("redis://place", key_file="key")
CONFIG = Config(fleet=FleetSection(url=SETTINGS.url), tell=TellSection(undecided_seconds=UNDECIDED_SECONDS))
BEGAN_BEFORE = 100.0  # the ranks, before they stand
_CONFIRMED_AFTER = 3.0
_SLACK = "slack"


@dataclass(frozen=True)
class Sent:
    """A message that people got."""

    at: float
    queued_at: float
    node: int
    step: str
    key: str
    cause: str
    culprits: tuple[int, ...]
    confidence: str
    text: str
    noted: bool = True  # its sender lived to note it


class World(Protocol):
    """What a daemon meets."""

    now: float
    story: Story
    rng: random.Random
    sent: list[Sent]

    def ask(self, node: int, request: PlaceRequest) -> tuple[float, Seen | None]:
        """When the answer to a request arrives, and which; None: none ever does."""
        ...

    def judge(self, node: int, question: JudgeQuestion) -> JudgeHandle:
        """The child that judges what nodes say."""
        ...


class NodeClock:
    """A node's own clocks: it has been up for as long as no other, and its wall clock is off."""

    def __init__(self, world: World, number: int) -> None:
        self._world, self._up = world, 1000.0 * (number + 1)
        self._skew = world.story.skew.get(number, 0.0)

    def seconds(self) -> float:
        return self._up + self._world.now

    def monotonic_ns(self) -> int:
        return int(self.seconds() * SECOND_NS)

    def ns_at(self, second: float) -> int:
        return int((self._up + second) * SECOND_NS)

    def wall_ns(self) -> int:
        return WALL_NS + int((self._world.now + self._skew) * SECOND_NS)


def _past(number: int, ordinal: int) -> Incident:
    """The incident before this one, of which nobody is to hear any more."""
    return Incident(
        f"{shared_name(JOB)}-{number}", JOB, host(number), "resolved", "none", 0, 0, (), None, "",
        together=Together(incident_id=f"{shared_name(JOB)}-{ordinal}"),
    )  # fmt: skip


@dataclass(frozen=True)
class Kept:
    """What lies on a node's disk."""

    lives: IncidentTable
    spool: Spool


class Daemon:
    """One node's daemon, from its start to its death."""

    def __init__(self, number: int, world: World, kept: Kept | None = None) -> None:
        self.number, self._world, self._clock = number, world, NodeClock(world, number)
        story = world.story
        self._ranks = tuple(range(number * story.per_node, (number + 1) * story.per_node))
        self._report, self._summary = scene(story.nodes, story.culprit, story.fault, story.per_node)[number]
        self._engine = Engine(CONFIG)
        self.lives, self.spool = IncidentTable(), kept.spool if kept else Spool()
        past = 1 if number in (story.relaunched or ()) else story.past
        if kept is None and past:
            self.lives = IncidentTable(past=(_past(number, past),), ordinals=((JOB, number + 1),))
        if kept is not None:
            left = [(life.incident, life.looks) for life in kept.lives.active]
            self.lives = adopt(left, kept.lives.ordinals, kept.lives.past, self._clock.monotonic_ns())
        self._due: list[tuple[float, Event]] = []
        self._answers: list[tuple[float, socket.socket, Seen | None]] = []
        self._theirs: socket.socket | None = None
        self._unpacker = Unpacker(1 << 22)
        judge: Callable[[JudgeQuestion], JudgeHandle] = lambda question: world.judge(number, question)  # noqa: E731
        link = Link(SETTINGS, host(number), self._start_child, judge, self._clock.seconds)
        self._fleet = Fleet(link, self._clock, host(number), self._told, since_boot_ns=self._clock.monotonic_ns)
        self._sending: list[tuple[float, float, Message, Incident]] = []
        self._left = LeftMessages(self.spool.queue, self._clock.monotonic_ns())
        self.alive = True

    @property
    def kept(self) -> Kept:
        return Kept(self.lives, self.spool)

    def step(self) -> None:
        """One tick."""
        self._deliver_answers()
        at_ns, facts = self._clock.monotonic_ns(), (self._facts(),)
        events = [event for at, event in self._due if at <= self._world.now]
        self._due = [one for one in self._due if one[0] > self._world.now]
        events += self._fleet.step(self.lives, events, facts, at_ns)
        now = Now(at_ns, self._clock.wall_ns(), host(self.number), self._findings(), facts)
        self.lives, actions = self._engine.advance(self.lives, events, now)
        for action in actions:
            if isinstance(action, StartCapture):
                done = self._world.now + self._world.story.looks_take.get(self.number, 1.0)
                self._due.append((done, Captured(action.incident.incident_id, action.look, True, True)))
            elif isinstance(action, CancelCapture):
                self._due = [one for one in self._due if not isinstance(one[1], Captured)]
            elif isinstance(action, Judge):
                judged = Judged(action.incident.incident_id, action.look, self._report, summary=self._summary)
                self._due.append((self._world.now + 0.5, judged))
        self._take_requests()
        self._tell()

    def die(self) -> None:
        self.alive = False
        self._fleet.close()

    def _facts(self) -> JobFacts:
        story, now = self._world.story, self._world.now
        over = now >= story.resolved_at
        alive = tuple(r for r in self._ranks if not (story.fault == "killed" and (r == story.culprit or over)))
        return JobFacts(
            job=JOB, world_size=story.nodes * story.per_node, ranks=self._ranks, alive=alive,
            moved=over and bool(alive), begun=True, ending=False, opted_out=False,
            began_ns=self._clock.ns_at(-BEGAN_BEFORE),
        )  # fmt: skip

    def _findings(self) -> tuple[Finding, ...]:
        story, now = self._world.story, self._world.now
        if now >= story.resolved_at:
            return ()
        found, at = [], story.sees_at.get(self.number, 5.0)
        if story.culprit in self._ranks and story.fault in ("killed", "stopped") and now >= 1.0:
            name = {"killed": "exit", "stopped": "stopped"}[story.fault]
            found.append(self._finding(name, "confirmed", resolvable=False))
        if now >= at:
            found.append(self._finding("stall", "confirmed" if now >= at + _CONFIRMED_AFTER else "suspect"))
        return tuple(found)

    def _finding(self, detector: str, stage: Any, *, resolvable: bool = True) -> Finding:
        return Finding(
            detector=detector, stage=stage, job=JOB, ranks=self._ranks, since_ns=self._clock.ns_at(0.0),
            limit_seconds=5.0, reason=f"{detector} was seen", resolvable=resolvable,
        )  # fmt: skip

    # The child that talks to the meeting place: a socket whose other end the simulation holds.

    def _start_child(self) -> Any:
        ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self._unpacker = Unpacker(1 << 22)
        theirs = self._theirs

        def ended(*_: object, **__: object) -> int:
            theirs.close()
            return 0

        child = SimpleNamespace(pid=1, returncode=None, poll=lambda: None, wait=ended, terminate=ended, kill=ended)
        return SimpleNamespace(child=child, channel=ours)

    def _take_requests(self) -> None:
        theirs = self._theirs
        if theirs is None or theirs.fileno() < 0:
            return
        with contextlib.suppress(BlockingIOError):
            while data := theirs.recv(1 << 20):
                for message in self._unpacker.feed(data):
                    at, seen = self._world.ask(self.number, msgspec.msgpack.decode(message, type=PlaceRequest))
                    self._answers.append((at, theirs, seen))

    def _deliver_answers(self) -> None:
        for at, theirs, seen in self._answers:
            if at <= self._world.now and seen is not None and theirs is self._theirs and theirs.fileno() >= 0:
                with contextlib.suppress(OSError):
                    theirs.sendall(pack(msgspec.msgpack.encode(seen)))
        self._answers = [one for one in self._answers if one[0] > self._world.now]

    # Messages, as outputs.notifier sends them, one after the other.

    def _told(self, incident_id: str) -> Told:
        delivered = self.spool.delivered(incident_id)
        return Told({_SLACK: delivered} if delivered.steps else {})

    def _tell(self) -> None:
        now = self._world.now
        for at, queued_at, message, incident in [one for one in self._sending if one[0] <= now]:
            dies = self._world.story.dies_having_sent.get(self.number) == message.step
            self._note(at, queued_at, message, incident, noted=not dies)
            if dies:
                self._world.story.dies_having_sent.pop(self.number)
                self.alive = False  # what is on its disk still says that the message is to be sent
                return
            self.spool = self.spool.without([message])
        self._sending = [one for one in self._sending if one[0] > now]
        self._left.note(self.lives.incidents())
        for message in self._left.ready(self.spool.queue, self._clock.monotonic_ns()):
            if not any(one[2] is message for one in self._sending):  # left by a daemon before this one
                left = next((one for one in self.lives.incidents() if one.incident_id == message.incident_id), None)
                if left is not None:
                    self._sending.append((now + 0.5, now, message, left))
        for incident in self.lives.incidents():
            self._publish(incident)

    def _publish(self, incident: Incident) -> None:
        known, now = incident.incident_id, self._world.now
        if incident.together is not None and incident.together.told is not None:
            elsewhere = incident.together.told.outputs.get(_SLACK)
            self.spool = self.spool.with_delivered(known, elsewhere) if elsewhere else self.spool
        step = due(incident, self.spool.told.get(known, ()), "warning", self.spool.verdicts.get(known, ""))
        if step is None:
            return
        message = Message(known, step, 0, msgspec.Raw(b"{}"), shared=True)
        self.spool, _ = self.spool.with_message(message, covered(incident, step), verdict_key(incident))
        message = self.spool.queue[-1]
        self._sending.append((now + self._world.rng.choice([0.25, 0.5, 2.0]), now, message, incident))

    def _note(self, at: float, queued_at: float, message: Message, incident: Incident, *, noted: bool) -> None:
        verdict = incident.verdict
        assert verdict is not None
        self._world.sent.append(
            Sent(
                at, queued_at, self.number, message.step, incident.shared_id, verdict.cause, verdict.culprits,
                verdict.confidence, verdict.summary, noted,
            )
        )  # fmt: skip
