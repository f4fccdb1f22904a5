"""A meeting place in memory whose clock is the test's: it does what a real one promises, and nothing else."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from stallwatch.fleet.place import (
    CLAIM_SECONDS,
    DESERTED_SECONDS,
    GREETED_SECONDS,
    LEFT_SECONDS,
    MOST_ORDERS,
    Board,
    Dated,
    Guest,
    Key,
    Kind,
    Life,
    PlaceProblem,
    Published,
    Standing,
    Turn,
    Turned,
    is_of_another,
    step_by_step,
)


@dataclass
class _Incident:
    summaries: dict[str, bytes] = field(default_factory=dict)
    put_at: dict[str, float] = field(default_factory=dict)
    members: dict[str, float] = field(default_factory=dict)
    puts: int = 0
    generation: int = 0
    holder: str = ""
    until: float = 0.0
    kept: dict[str, bytes] = field(default_factory=dict)
    revision: int = 0
    reported: float = 0.0
    closed: bool = False
    opened: float = 0.0


class MemoryPlace:
    def __init__(self, seconds: Callable[[], float], key: str = "") -> None:
        self._seconds = seconds
        self._key = key
        self._all: dict[str, MemoryPlace] = {key: self}
        self._guests: dict[str, tuple[Guest, float]] = {}
        self._incidents: dict[Key, _Incident] = defaultdict(_Incident)
        self._last: dict[str, int] = defaultdict(int)
        self._open: dict[str, int] = {}
        self.problem = ""  # what every call raises while it is set
        self.operations = 0
        self._orders: dict[str, tuple[bytes, float]] = {}
        self._posts = 0
        self._life = 0

    def _at(self, key: Key) -> _Incident:
        self.operations += 1
        if self.problem:
            raise PlaceProblem(self.problem, "Start it again.")
        return self._incidents[key]

    def _living(self, incident: _Incident, seconds: float) -> bool:
        return any(seen > self._seconds() - seconds for seen in incident.members.values())

    def check(self) -> None:
        self._at(Key("probe", 0))

    def join(self, job: str, node: str, past: int = 0, life: Life | None = None) -> int:
        self.check()
        open_ = self._open.get(job, 0)
        incident = self._at(Key(job, open_))
        age, attended = self._seconds() - incident.opened, self._living(incident, LEFT_SECONDS)
        is_over = not self._living(incident, DESERTED_SECONDS) or is_of_another(life, age, attended=attended)
        if not open_ or is_over:
            self._last[job] = max(self._last[job], past) + 1
            open_ = self._open[job] = self._last[job]
            self._at(Key(job, open_)).opened = self._seconds()
        self._at(Key(job, open_)).members[node] = self._seconds()
        return open_

    def put(self, key: Key, node: str, summary: bytes) -> None:
        incident = self._at(key)
        incident.summaries[node] = summary
        incident.put_at[node] = self._seconds()
        incident.puts += 1

    def summaries(self, key: Key) -> dict[str, bytes]:
        return dict(self._at(key).summaries)

    def dated_summaries(self, key: Key) -> Dated:
        ages = {node: self._seconds() - at for node, at in self._at(key).put_at.items()}
        return Dated(self.summaries(key), ages)

    def look(self, key: Key, node: str, *, whole: bool) -> Board:
        incident = self._at(key)
        if node in incident.members:
            incident.members[node] = self._seconds()
        holder = incident.holder if incident.until > self._seconds() else ""
        return Board(
            incident.puts if whole else 0,
            holder,
            incident.generation,
            incident.kept.get("told", b""),
            incident.revision,
            incident.closed,
            node in incident.members,
        )

    def turn(self, key: Key, node: str, turn: Turn) -> Turned:
        return step_by_step(self, key, node, turn)

    def claim(self, key: Key, node: str) -> int:
        incident = self._at(key)
        if incident.until > self._seconds():
            return 0
        incident.generation += 1
        incident.holder, incident.until = node, self._seconds() + CLAIM_SECONDS
        return incident.generation

    def renew(self, key: Key, node: str, generation: int) -> bool:
        incident = self._at(key)
        held = (incident.holder, incident.generation) == (node, generation) and incident.until > self._seconds()
        if held:
            incident.until = self._seconds() + CLAIM_SECONDS
        return held

    def mark(self, key: Key, generation: int, kind: Kind, data: bytes) -> bool:
        incident = self._at(key)
        if kind in incident.kept if generation == 0 else generation != incident.generation:
            return False
        incident.kept[kind] = data
        if kind == "report":
            incident.revision, incident.reported = incident.revision + 1, self._seconds()
        return True

    def report(self, key: Key) -> Published:
        incident = self._at(key)
        if not incident.revision:
            return Published()
        return Published(incident.revision, incident.kept["report"], self._seconds() - incident.reported)

    def close(self, key: Key) -> None:
        self._at(key).closed = True
        if self._open.get(key.job) == key.ordinal:
            del self._open[key.job]

    def leave(self, key: Key, node: str) -> None:
        incident = self._at(key)
        incident.members.pop(node, None)
        incident.summaries.pop(node, None)
        if not self._living(incident, LEFT_SECONDS):
            self.close(key)

    def lose_everything(self) -> None:
        for place in self._all.values():
            place._lose()

    def _lose(self) -> None:
        self._guests.clear()
        self._orders, self._posts, self._life = {}, 0, self._life + 1
        self._incidents.clear()
        self._last.clear()
        self._open.clear()

    def post(self, name: str, data: bytes, seconds: float, *, anew: bool) -> None:
        self.check()
        standing = {name for name, (_, until) in self._orders.items() if until > self._seconds()}
        if name in standing and not anew:
            return
        if name not in standing and len(standing) >= MOST_ORDERS:
            raise PlaceProblem("too many orders", "Some must end first.")
        self._orders[name] = (data, self._seconds() + seconds)
        self._posts += 1

    def posted(self, known: str) -> tuple[str, list[Standing] | None]:
        self.check()
        revision = f"{self._life}:{self._posts}" if self._posts else ""
        if revision == known and known:
            return known, None
        left = {name: (data, until - self._seconds()) for name, (data, until) in self._orders.items()}
        return revision, [Standing(name, data, seconds) for name, (data, seconds) in left.items() if seconds > 0]

    def of_key(self, key: str) -> "MemoryPlace":
        """The same place, as one sees it that signs with this key."""
        if key not in self._all:
            other = self._all[key] = MemoryPlace(self._seconds, key)
            other._all, other._guests = self._all, self._guests
        return self._all[key]

    def greet(self, node: str, word: bytes, about: str = "") -> list[Guest]:
        self.check()
        before, at = self._guests.get(about or node, (Guest("", "", b""), 0.0))
        before = before if self._seconds() - at < GREETED_SECONDS else Guest("", "", b"")
        said = [before] if before.node and before.key != self._key else []
        if node:
            self._guests[node] = (Guest(node, self._key, word), self._seconds())
        guests = [guest for guest, at in self._guests.values() if self._seconds() - at < GREETED_SECONDS]
        asked = before.word if before.key == self._key else b""
        return said + [
            one if one.key != self._key else one._replace(word=asked * (one.node == (about or node))) for one in guests
        ]

    def hang_up(self) -> None:
        return
