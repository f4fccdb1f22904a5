"""A thousand incidents of whole fleets, with the clock in our hand: daemons die, are late, are cut off and say things
twice; the policy, their link, the spool and the verdict are the real ones.

fleet_places has the meeting places, fleet_story what befalls a fleet, fleet_daemon a node.
"""

import heapq
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import msgspec

from stallwatch.diagnosis.node_summary import NodeSummary
from stallwatch.fleet.child import PlaceRequest
from stallwatch.fleet.exchange import Seen, Wish, exchange
from stallwatch.fleet.judge_child import JudgeQuestion
from stallwatch.fleet.node_word import NodeWord, believed, encode_word
from stallwatch.fleet.orders import Order, OrdersWish, Posting, exchange_orders
from stallwatch.fleet.pace_seat import SILENT_SECONDS
from stallwatch.fleet.place import Key, MeetingPlace, PlaceProblem
from stallwatch.fleet.roster import Greeting, exchange_roster
from stallwatch.fleet.seal import key_id
from stallwatch.fleet.verdict import Home, judge_job
from stallwatch.incidents.incident_names import shared_name
from stallwatch.model.incident import OutputTold, Told
from stallwatch.node.run_once import Ended
from tests.chaos.fleet_daemon import BEGAN_BEFORE, JOB, Daemon, Kept, NodeClock, Sent
from tests.chaos.fleet_places import MakePlaces, PlaceKind, in_memory, places_of
from tests.chaos.fleet_story import Story, host, random_story, scene

SECRET = b"sixteen bytes or more"
_TICK, _LATER_TICK, _LATER = 1.0, 2.0, 70.0
_AFTER = 70.0  # it goes on after the end: who has no ranks any more lets others tell of it first
_TIME_OUT = 6.0  # of a request that nobody answers
_JUDGING = 0.5
_EACH = 100  # incidents between two lines of progress


class _Judged:
    def __init__(self, world: "FleetRun", ended: Ended) -> None:
        self._world, self._ended, self._at = world, ended, world.now + _JUDGING

    def poll(self) -> Ended | None:
        return self._ended if self._world.now >= self._at else None

    def end(self) -> None:
        return


class _Counted:
    """A place that says when something is asked of it."""

    def __init__(self, place: MeetingPlace, count: Callable[[], None]) -> None:
        self._place, self._count = place, count

    def __getattr__(self, name: str) -> object:
        self._count()
        return getattr(self._place, name)


class FleetRun:
    """One story."""

    def __init__(self, story: Story, rng: random.Random, make: MakePlaces = in_memory) -> None:
        self.story, self.rng, self.now = story, rng, 0.0
        self._places = make(lambda: self.now)
        self._places.set_time(0.0)
        self._opened: dict[int, MeetingPlace] = {}
        self._secrets: dict[int, bytes] = {}
        self._asked = 0  # commands, of all places
        self.daemons = [Daemon(number, self) for number in range(story.nodes)]
        self.sent: list[Sent] = []
        self.noted_at: float | None = None  # the place knows that people were told
        self.heard_at: dict[int, list[float]] = {number: [] for number in range(story.nodes)}  # a node, by the place
        # By node: when answers came in which it stood that people were told. A lost one says nothing.
        self.told_at: dict[int, list[float]] = {number: [] for number in range(story.nodes)}
        self.died: set[int] = set()
        self._kept: dict[int, Kept] = {}
        self._again: list[tuple[float, int, int, PlaceRequest]] = []
        self._wiped = False
        if story.past and not story.wiped:
            self._advance(story.past)
        if story.relaunched is not None:
            self._leave_behind()
        for number in range(story.nodes if story.keys else 0):  # as daemons have said it while the job moved
            greeting = Greeting(host(number), ((shared_name(JOB), number * story.per_node),))
            exchange_roster(self._place(number), self._secret(number), greeting)

    def _advance(self, past: int) -> None:
        """The place knows of the job's incidents before."""
        place = self._place(0)
        place.close(Key(shared_name(JOB), place.join(shared_name(JOB), host(0), past - 1)))

    def _leave_behind(self) -> None:
        """A job before, at the same address, that was killed as it stood, minutes ago."""
        self.now = -BEGAN_BEFORE - 100.0
        self._places.set_time(self.now)
        place, job, node = self._place(0), shared_name(JOB), host(0)
        told = Told({"slack": OutputTold(("told",), "not_entered 0", "")}, f"{job}-1")
        _, summary = scene(self.story.nodes, 0, "sleeps", self.story.per_node)[0]
        word = encode_word(
            NodeWord(node, tuple(range(self.story.per_node)), msgspec.msgpack.decode(summary, type=NodeSummary))
        )
        first = exchange(place, self._secret(0), Wish(job, node, summary=word, claims=True))
        exchange(place, self._secret(0), Wish(job, node, first.ordinal, generation=first.generation, told=told))
        order = Posting(Order("acknowledge", f"{job}-1", by="anna"), 3600.0, anew=True)
        exchange_orders(place, self._secret(0), OrdersWish(give=(order,)))
        self.now = 0.0
        self._places.set_time(0.0)

    def run(self) -> list[Sent]:
        """Let it happen; return what people got."""
        story = self.story
        while self.now < story.resolved_at + _AFTER:
            self.now += _TICK if self.now < _LATER else _LATER_TICK
            self._places.set_time(self.now)
            if story.wiped and not self._wiped and self.now >= story.away[1]:
                self._places.wipe()
                self._wiped, self.noted_at = True, None
            while self._again and self._again[0][0] <= self.now:
                _, _, number, request = heapq.heappop(self._again)
                if not self._is_away(number):
                    self._do(number, request)
            for number in range(story.nodes):
                self._live(number)
        for daemon in self.daemons:
            daemon.die()
        return self.sent

    def _live(self, number: int) -> None:
        story, daemon = self.story, self.daemons[number]
        if daemon.alive and story.dies.get(number, 1e9) <= self.now:
            story.dies.pop(number)
            daemon.alive = False
        begins, ends = story.stands.get(number, (0.0, 0.0))
        if daemon.alive and not begins <= self.now < ends:
            daemon.step()
        if not daemon.alive and number not in self._kept:
            self._kept[number] = daemon.kept
            self.died.add(number)
            daemon.die()
            if number in story.back_after:
                story.back_after[number] += self.now
        if not daemon.alive and story.back_after.get(number, 1e9) <= self.now:
            story.back_after.pop(number)
            self.daemons[number] = Daemon(number, self, self._kept.pop(number))

    def _is_away(self, number: int) -> bool:
        spans = (self.story.away, self.story.cut.get(number, (0.0, 0.0)))
        return any(first <= self.now < last for first, last in spans)

    def ask(self, node: int, request: PlaceRequest) -> tuple[float, Seen | None]:
        """Do what a node wants of the place, where it reaches it."""
        if self._is_away(node):
            if self.rng.random() < 0.5:
                return self.now + 0.1, Seen(problem="redis://place: connection refused", advice="Is it up?")
            return self.now + _TIME_OUT, Seen(problem="redis://place: timed out", advice="Is it up?")
        asked = self._asked
        seen = self._do(node, request)
        takes = sum(self.rng.uniform(*self.story.slow) for _ in range(self._asked - asked) if self.story.slow[1])
        if self.rng.random() < self.story.twice:
            self._again_later(node, request)
        if self.rng.random() < self.story.lost:
            return self.now + _TIME_OUT, Seen(problem="redis://place: connection reset by peer")
        arrives = self.now + self.rng.expovariate(1 / self.story.latency) + takes
        if seen.told is not None:
            self.told_at[node].append(arrives)
        return arrives, seen

    def _again_later(self, node: int, request: PlaceRequest) -> None:
        heapq.heappush(self._again, (self.now + self.rng.uniform(0, 5), len(self._again), node, request))

    def _do(self, node: int, request: PlaceRequest) -> Seen:
        try:
            place = self._place(node)
            if request.orders is not None:
                return Seen(orders=exchange_orders(place, self._secret(node), request.orders))
            if request.greeting is not None:
                if self._in_file(node) != self._secret(node):
                    self._secrets[node] = self._in_file(node)
                    del self._opened[node]
                    place = self._place(node)
                return Seen(roster=exchange_roster(place, self._secret(node), request.greeting))
            if request.wish is None:
                place.check()
                return Seen()
        except PlaceProblem as error:
            return Seen(problem=str(error), advice=error.help)
        clock = NodeClock(self, node)
        seen = exchange(place, self._secret(node), request.wish, clock.wall_ns, clock.monotonic_ns)
        if not seen.problem:
            self.heard_at[node].append(self.now)
        if seen.told_noted and self.noted_at is None:
            self.noted_at = self.now
        return seen

    def _place(self, node: int) -> MeetingPlace:
        if node not in self._opened:
            key = key_id(self._secret(node))
            self._opened[node] = cast("MeetingPlace", _Counted(self._places.of_node(node, key), self._count))
        return self._opened[node]

    def _secret(self, node: int) -> bytes:
        """By which its child signs: what was in the file when it looked last."""
        return self._secrets.setdefault(node, self._in_file(node))

    def _in_file(self, node: int) -> bytes:
        return SECRET + b"%d" % (self.story.keys.get(node, 0) if self.now < self.story.mended_at else 0)

    def _count(self) -> None:
        self._asked += 1

    def judge(self, node: int, question: JudgeQuestion) -> _Judged:
        """Judge what stands in the place now, as the child does."""
        if self._is_away(node):
            return _Judged(self, Ended(1, b"", b"redis://place: connection refused"))
        if node in self.story.unable:
            return _Judged(self, Ended(1, b"", b"MemoryError"))
        secret = self._in_file(node)  # the judge reads it anew
        if question.signs not in ("", key_id(secret)):
            return _Judged(self, Ended(1, b"", b"another key"))
        found = self._places.of_node(node, key_id(secret)).summaries(question.key)
        verdict = _verdict(self.story, found, question, self._homes(), secret)
        if verdict is None:
            return _Judged(self, Ended(1, b"", b"nothing that could be believed has been put yet"))
        return _Judged(self, Ended(0, verdict, b""))

    def _homes(self) -> dict[int, Home]:
        """Where ranks run, as paces tell it; a daemon that is dead or cut off puts none any more."""
        gone = {n for n, one in enumerate(self.daemons) if not one.alive or self._silent_seconds(n) > SILENT_SECONDS}
        size, per_node = self.story.nodes * self.story.per_node, self.story.per_node
        return {r: Home(host(r // per_node), r // per_node in gone) for r in range(size)} if self.story.paced else {}

    def _silent_seconds(self, number: int) -> float:
        return self.now - max(self.heard_at[number], default=0.0)


_VERDICTS: dict[tuple[object, ...], bytes | None] = {}


def _verdict(
    story: Story, found: dict[str, bytes], question: JudgeQuestion, homes: dict[int, Home], secret: bytes
) -> bytes | None:
    """Judging is pure, and the same nodes say the same: once for each set of them."""
    names = frozenset(found)
    about = (story.nodes, story.per_node, story.culprit, story.fault, names, tuple(homes.items()))
    if about not in _VERDICTS:
        verdict = judge_job(believed(found, secret, question.key), question.world_size, lambda: homes)
        _VERDICTS[about] = None if verdict is None else msgspec.json.encode(verdict)
    return _VERDICTS[about]


# Why people may be told a second time.


def why_again(run: FleetRun, first: Sent, again: Sent) -> str:
    """Given a first message and one more of the same step, return why it could not be helped; "" where it could."""
    if again.node == first.node or not first.noted:
        return "its sender died between the send and the note" if not first.noted else ""
    if run.story.keys.get(again.node, 0) != run.story.keys.get(first.node, 0):
        return "another key"
    if min(run.told_at[again.node], default=1e9) < again.queued_at - _TICK:
        return ""  # it had been said to this node, which told all the same
    if run.story.disturbed(again.node, 0.0, again.at) or run.story.disturbed(first.node, 0.0, again.at):
        return "a partition"
    if first.node in run.died:
        return "its sender died before it was noted"
    return "a fail-over" if run.story.latency > 0.1 else ""


@dataclass
class Count:
    """What many incidents came to."""

    seed: int
    seconds: float = 0.0
    count: Counter[str] = field(default_factory=Counter)
    twice: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)
    after: list[float] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.bad

    def lines(self) -> list[str]:
        after = sorted(self.after) or [0.0]
        told = self.count["told once"] + self.twice.total()
        return [
            f"seed {self.seed}: {self.count['incidents']} incidents in {self.seconds:.0f} s, {told} told, "
            f"{self.count['not told']} not told, {self.count['wrong culprits']} with a wrong culprit",
            f"told after {after[len(after) // 2]:.0f} s (median), {after[int(0.95 * len(after))]:.0f} s (95 %), "
            f"{after[-1]:.0f} s (most); {self.count['named']} named the culprit at once",
            f"told once {self.count['told once']}; twice: "
            + (", ".join(f"{count} {why}" for why, count in self.twice.most_common()) or "none"),
            f"two keys {self.count['two keys']}; ends told {self.count['ends']}, twice {self.count['ends twice']}",
            "verdict: " + ("nothing lost" if self.good else "SOMETHING WAS LOST"),
        ]


def note(count: Count, seed: int, run: FleetRun) -> None:
    """Add one story to the count."""
    told = [one for one in run.sent if one.step == "told"]
    count.count["incidents"] += 1
    if any(set(one.culprits) & run.story.innocent for one in run.sent):
        count.count["wrong culprits"] += 1
        count.bad.append(f"WRONG CULPRIT seed {seed}: {run.story} {run.sent}")
    if not told:
        count.count["not told"] += 1
        count.bad.append(f"NOT TOLD seed {seed}: {run.story}")
        return
    count.after.append(told[0].at)
    count.count["named"] += run.story.culprit in told[0].culprits
    keys = {one.key for one in told}
    if len(keys) > 1:
        count.count["two keys"] += 1
    # Who tells alone while the place is away counts by what it remembers of the job before, and not all do. Sides that
    # do not believe each other count each for itself.
    unknowable = bool(run.story.keys) or (run.story.relaunched is not None and run.story.away[1] > 0)
    if len(keys) > 1 and not unknowable:
        count.bad.append(f"TWO KEYS seed {seed}: {run.story} {told}")
    whys = [why_again(run, told[0], one) for one in told[1:]]
    for why in whys:
        if not why:
            count.bad.append(f"TWICE seed {seed}: {run.story} {told}, noted at {run.noted_at}")
    if whys:
        count.twice[min(whys) or "for no reason"] += 1
    else:
        count.count["told once"] += 1
    ends = [one for one in run.sent if one.step in ("resolved", "ended")]
    count.count["ends"] += bool(ends)
    count.count["ends twice"] += len(ends) > 1


def play(seed: int, make: MakePlaces = in_memory) -> FleetRun:
    """One story by its seed."""
    rng = random.Random(seed)
    run = FleetRun(random_story(rng), rng, make)
    run.run()
    return run


def incidents(number: int, seed: int, kind: PlaceKind = "memory") -> Count:
    """So many incidents, each by a seed of its own; what goes wrong, and how far it has come, is printed at once."""
    count, began = Count(seed), time.monotonic()
    with places_of(kind) as make:
        for one in range(seed, seed + number):
            known = len(count.bad)
            note(count, one, play(one, make))
            print(*count.bad[known:], sep="\n", end="\n" * (len(count.bad) > known), flush=True)
            if count.count["incidents"] % _EACH == 0:
                print(f"{count.count['incidents']} incidents, {len(count.bad)} of them bad", flush=True)
    count.seconds = time.monotonic() - began
    return count
