"""Who stood waiting, look by look: the counters of a job's ranks at one moment, put beside each other.

A look is one step of the job, whatever its length: what one batch did to its ranks is one observation, however many of
the hooks' looks fell into it. Where nobody counts steps it is one completed collective.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from math import sqrt
from operator import mul
from statistics import median_low

import msgspec

from stallwatch.detectors.counter_samples import CounterSample, PeerRank, sampled, with_held, with_late
from stallwatch.detectors.history import RankHistory
from stallwatch.detectors.roles import alike, by_role
from stallwatch.model.snapshot import Heartbeat

KEPT_LOOKS = 768
LOOK_NS = 250_000_000  # between two of a node's moments: hook/pulse.py, LOOKS_PER_PULSE
_TOGETHER_NS = 150_000_000  # looks further apart are of different moments, and their counts cannot be compared
_ABOUT_TOGETHER_NS = 600_000_000  # where each rank's own words say that it waits: on a busy machine hooks come late
_KEPT_OFFSETS = 64
_STEPS_LATELY = 2  # of another rank in the samples that are kept: who has counted none does not step
_ENOUGH_OFFSETS = 4
_ERRORS = 4  # standard errors of two counts' distance that are surely more than none
MISSED_LOOKS = 4  # a busy machine's hooks come late now and then
_UNTIMED_LOOKS = 8  # newest; of two ticks, as a hook makes four looks a second
_STEPS_AHEAD = 2  # of its device, or more: a host that was late for one step is so until it has caught up
_SETTLE_STEPS = 3  # the first steps compile and warm up, each rank as it will
# torch's watchdog notes what NCCL has completed every 0.1 s (ProcessGroupNCCL.hpp, kWatchdogThreadSleepMillis), each
# rank's at its own time, so the latest of several is about half of that old.
_WATCHDOG_SECONDS = 0.1


class StepLook(msgspec.Struct, frozen=True, dict=True):
    """One step: how many moments saw it, and in how many of them each member stood in a collective."""

    at_ns: int  # of the first
    ticks: int
    waited: tuple[int, ...]
    surely: tuple[int, ...]  # whatever the constant distance of the ranks' counts is
    pending: tuple[int, ...] = ()  # in how many each had something pending, which says it to other nodes' ranks too
    steps: tuple[int, ...] = ()  # in which each was
    lasted_ns: tuple[int, ...] = ()  # the longest of these and the few before, by each one's record; 0: not known
    itself_ns: tuple[int, ...] = ()  # how long this one alone took, by each one's record; 0: not known
    apart_ns: int = 0  # the most that lay between two ranks' samples of one moment

    @cached_property
    def step(self) -> int:
        """The step that it is; -1: nobody counts steps."""
        return max(self.steps) if min(self.steps, default=-1) >= 0 else -1

    # A tick asks hundreds of looks for these, most of which were there at the tick before.
    @cached_property
    def waits(self) -> tuple[tuple[int, int], ...]:
        """(ticks, of these waiting) of each member."""
        return _row(self.ticks, self.waited)

    @cached_property
    def sure_waits(self) -> tuple[tuple[int, int], ...]:
        """The same, of those that surely waited."""
        return _row(self.ticks, self.surely)

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """In which part of its moments each member waited."""
        return _shares(self.ticks, self.waited)

    @cached_property
    def sure_shares(self) -> tuple[float, ...]:
        """The same, of those that surely waited."""
        return _shares(self.ticks, self.surely)


@lru_cache(maxsize=1024)
def _row(ticks: int, waits: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple([(ticks, waited) for waited in waits])


@lru_cache(maxsize=1024)
def _shares(ticks: int, waits: tuple[int, ...]) -> tuple[float, ...]:
    return tuple([waited / ticks for waited in waits])


class Looks(msgspec.Struct, frozen=True):
    """The samples of one group's counters so far."""

    members: tuple[PeerRank, ...] = ()
    taken: int = 0  # number of the last moment that was used
    mark: int = -1  # step, or completed collectives, of the newest look
    looks: tuple[StepLook, ...] = ()
    count: int = 0  # of looks so far, those not kept included
    nccl: bool = False  # by what is enqueued: hosts that run ahead of their devices lose less than their looks say

    def column(self, member: PeerRank, window: int, *, surely: bool = False) -> tuple[tuple[int, int], ...]:
        """(ticks, of these waiting) of one member in the last looks, oldest first."""
        place = self.members.index(member)
        return self.columns(window, surely=surely)[place]

    def columns(self, window: int, *, surely: bool = False) -> tuple[tuple[tuple[int, int], ...], ...]:
        """The same of every member, in their order."""
        looks = self.looks[-window:]
        rows = [look.sure_waits for look in looks] if surely else [look.waits for look in looks]
        # Of no look each has an empty column.
        return tuple(zip(*rows, strict=True)) if rows else ((),) * len(self.members)

    def shares(self, windows: Sequence[int], *, surely: bool = False) -> dict[int, list[float]]:
        """By window, of which there are as many looks: which share of each of the last looks every member waited, on
        the average. Columns say more, and take more time."""
        looks = self.looks[-max(windows) :]
        rows = [look.sure_shares for look in looks] if surely else [look.shares for look in looks]
        columns = [*zip(*rows, strict=True)]
        sums, found, before = [0.0] * len(columns), {}, len(looks)
        for window in sorted(windows):
            first = len(looks) - window
            sums = [waited + sum(column[first:before]) for waited, column in zip(sums, columns, strict=True)]
            found[window], before = [waited / window for waited in sums], first
        return found

    def columns_of(
        self, peers: Sequence[PeerRank], window: int, *, surely: bool = False
    ) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
        """(rank, column) of some members."""
        columns = dict(zip(((m.rank, m.pid) for m in self.members), self.columns(window, surely=surely), strict=True))
        return [(peer.rank, columns[peer.rank, peer.pid]) for peer in peers]

    def column_before(self, member: PeerRank, window: int) -> tuple[tuple[int, int], ...]:
        """The same of the looks before the last `window`, as far as they are kept."""
        place = self.members.index(member)
        return tuple((look.ticks, look.waited[place]) for look in self.looks[-2 * window : -window])

    def steps_seen(self, member: PeerRank, window: int, *, itself: bool = False) -> tuple[float, ...]:
        """For how many of one member's own steps each of the last looks stands: for a part of one that lasted long, for
        several where they are shorter than the distance of looks. 0.0 where no record says how long they took.
        `itself`: by the step that was seen, not by the longest of it and the few before."""
        place = self.members.index(member)
        lasted = [look.itself_ns if itself else look.lasted_ns for look in self.looks[-window:]]
        ticks = [look.ticks for look in self.looks[-window:]]
        return tuple(
            many * LOOK_NS / of[place] if of and of[place] else 0.0 for many, of in zip(ticks, lasted, strict=True)
        )

    def step_ns(self, window: int, but: int = 0) -> float:
        """The mean length of a step from the first to the newest of the last looks, `but` the newest so many, without
        the time in which nobody looked (a phase is its own kind of time); 0.0 where it is not known."""
        time_ns, steps = 0, 0
        each = [(look.at_ns, look.ticks, look.step) for look in self.looks[-window : -but or None]]
        for (at_ns, ticks, step), (after_ns, _, after) in pairwise(each):
            if step >= 0 and after_ns - at_ns <= (ticks + MISSED_LOOKS) * LOOK_NS:
                time_ns += after_ns - at_ns
                steps += after - step
        return time_ns / steps if steps > 0 else 0.0

    def steps_within(self, window: int) -> int:
        """How many steps the last looks span; where nobody counts steps, how many they are."""
        first, last = self.looks[-window].step, self.looks[-1].step
        return last - first + 1 if first >= 0 else window

    def apart_ns(self, window: int) -> tuple[int, ...]:
        """How far the samples of each of the last looks lie apart."""
        return tuple(look.apart_ns for look in self.looks[-window:])

    def since_ns(self, window: int) -> int:
        """When the first of the last `window` looks began."""
        return self.looks[-window].at_ns

    def within(self, span_ns: int) -> int:
        """How many looks there are in the last `span_ns`, one more to reach it."""
        if not self.looks:
            return 0
        # They are in the order of their moments.
        before = bisect_right(self.looks, self.looks[-1].at_ns - span_ns, key=lambda look: look.at_ns)
        return len(self.looks) - before + 1


def peers_of(members: Sequence[PeerRank]) -> list[list[PeerRank]]:
    """Divide the members by what program they run: stages of a pipeline wait unequally by design, and who has no more
    batches only shadows the collectives of those that have (torch's Join)."""
    left = _that_step(members)
    return [[left[place] for place in places] for places in by_role(tuple(member.role for member in left))]


def _that_step(members: Sequence[PeerRank]) -> list[PeerRank]:
    """All of them, where none has counted two steps lately."""
    counted = [member.samples[-1].step - member.samples[0].step if member.samples else 0 for member in members]
    if max(counted, default=0) < _STEPS_LATELY:
        return list(members)
    return [member for member, steps in zip(members, counted, strict=True) if steps > 0]


def looked(before: Looks, alive: Sequence[RankHistory]) -> Looks:
    """Given a job's living ranks at this tick, return the looks with those that they make since the last."""
    known = {(member.rank, member.pid): member for member in before.members}
    if set(known) != {(rank.sample.rank, rank.sample.pid) for rank in alive}:
        before, known = Looks(), {}
    nccl = all(any(group.recorder == "nccl" and group.enqueued > 0 for group in rank.groups) for rank in alive)
    if nccl != before.nccl:
        before, known = Looks(nccl=nccl), {}
    members = tuple(sampled(known, rank, nccl=nccl) for rank in alive)
    members = with_late(members, taken=before.taken, nccl=nccl)
    members = with_held(members, alive)
    looks = msgspec.structs.replace(before, members=members)
    if not members:
        return looks
    # Two late looks may tell of one moment: the first of them was made soonest after it.
    by_number = [{sample.number: sample for sample in reversed(member.samples)} for member in members]
    numbers = set(by_number[0]).intersection(*by_number[1:])
    due = sorted(number for number in numbers if number > looks.taken)
    if not due:
        return looks
    if all(_takes_part(rank) for rank in alive):
        for number in due:
            looks = _with(looks, [samples[number] for samples in by_number])
        looks = _timed(looks, alive)
    return msgspec.structs.replace(looks, taken=due[-1])


def _with(looks: Looks, together: Sequence[CounterSample]) -> Looks:
    """Add what the members' samples of one moment say, in their order."""
    members = looks.members
    moments = [sample.at_ns for sample in together]
    at_ns = min(moments)
    apart_ns = max(moments) - at_ns
    if apart_ns > (_TOGETHER_NS if looks.nccl else _ABOUT_TOGETHER_NS):
        return looks
    pending = tuple([int(sample.pending) for sample in together])
    waited = certainly = pending
    if looks.nccl:
        seen = _ahead(members, together)
        same = alike(tuple(member.role for member in members))
        # By those with the same role, itself among them; who are alike are so to the same ones, as a rule.
        middles = {places: median_low([together[place].completed for place in places]) for places in set(same)}
        members = tuple(
            _taken(member, mine.completed - middles[places])
            for member, mine, places in zip(members, together, same, strict=True)
        )
        looks = msgspec.structs.replace(looks, members=members)
        if seen is None:
            return looks
        # Who does not step is nobody's peer, and said to wait for nobody.
        waited, certainly = (tuple([int(of.get(member.rank, False)) for member in members]) for of in seen)
    steps = tuple([sample.step for sample in together])
    mark = max(steps) if min(steps) >= 0 else max(sample.completed for sample in together)
    untimed = (0,) * len(steps)
    look = StepLook(at_ns, 1, waited, certainly, pending, steps, untimed, untimed, apart_ns)
    if looks.looks and mark == looks.mark:
        return msgspec.structs.replace(looks, looks=(*looks.looks[:-1], _both(looks.looks[-1], look)))
    kept = (*looks.looks, look)[-KEPT_LOOKS:]
    return msgspec.structs.replace(looks, mark=mark, looks=kept, count=looks.count + 1)


def _both(one: StepLook, other: StepLook) -> StepLook:
    return StepLook(
        one.at_ns,
        one.ticks + other.ticks,
        tuple(a + b for a, b in zip(one.waited, other.waited, strict=True)),
        tuple(a + b for a, b in zip(one.surely, other.surely, strict=True)),
        tuple(a + b for a, b in zip(one.pending, other.pending, strict=True)),
        other.steps,
        tuple(map(max, one.lasted_ns, other.lasted_ns)),
        tuple(map(max, one.itself_ns, other.itself_ns)),
        max(one.apart_ns, other.apart_ns),
    )


def _timed(looks: Looks, alive: Sequence[RankHistory]) -> Looks:
    """With how long the steps of the newest looks took: a record has the last steps, and what it is at is not over."""
    beats = [rank.heartbeat for rank in alive]
    newest = looks.looks[-_UNTIMED_LOOKS:]
    timed = tuple(
        look
        if place < _UNTIMED_LOOKS // 2 and all(look.lasted_ns)  # at the tick before
        else msgspec.structs.replace(
            look,
            lasted_ns=tuple(map(_lasted_with_those_before_ns, beats, look.steps, look.lasted_ns)),
            itself_ns=tuple(map(_lasted_ns, beats, look.steps, look.itself_ns)),
        )
        for place, look in enumerate(newest)
    )
    return msgspec.structs.replace(looks, looks=(*looks.looks[: -len(timed)], *timed)) if timed else looks


def _lasted_with_those_before_ns(beat: Heartbeat | None, step: int, known_ns: int) -> int:
    """How long the step took that was begun when so many had been counted, or one of those just before."""
    return _lasted_ns(beat, step, known_ns, _STEPS_AHEAD)


def _lasted_ns(beat: Heartbeat | None, step: int, known_ns: int, before: int = 0) -> int:
    if beat is None or beat.step is None or not 0 < beat.step - step <= len(beat.step_durations_ns):
        return known_ns
    place = len(beat.step_durations_ns) + step - beat.step
    return max(known_ns, *beat.step_durations_ns[max(0, place - before) : place + 1])


def _takes_part(rank: RankHistory) -> bool:
    """It trains: a phase is its own kind of time, so is the start, and our own dump holds the GIL."""
    beat = rank.heartbeat
    if beat is None or not rank.readable or rank.phase or not rank.groups or beat.dump_started_ns is not None:
        return False
    return beat.step is None or beat.step > _SETTLE_STEPS


def _taken(member: PeerRank, offset: int) -> PeerRank:
    return msgspec.structs.replace(member, offsets=(*member.offsets, offset)[-_KEPT_OFFSETS:])


def _ahead(
    members: Sequence[PeerRank], together: Sequence[CounterSample]
) -> tuple[dict[int, bool], dict[int, bool]] | None:
    """Who waits under NCCL: who has enqueued what its least peer has not, while that one has nothing left to do.

    `completed` lags by up to 0.1 s there, so that every rank of a job with short steps is nearly always pending; what
    is enqueued is true at once. The counts of ranks may differ by a constant (sends are counted too): it is their usual
    distance in completed counts, as far as it is more than their watchdogs' lag makes. Return who probably waits (no
    distance where there may be none), and who does by that and by the measured distance as well.
    """
    probably: dict[int, bool] = {}
    surely: dict[int, bool] = {}
    sample_of = dict(zip((member.rank for member in members), together, strict=True))
    for peers in peers_of(members):
        if any(len(peer.offsets) < _ENOUGH_OFFSETS for peer in peers):
            return None
        per_ns = _rate(peers)
        lag = _WATCHDOG_SECONDS * 1e9 * per_ns
        measured = {peer.rank: _offset(peer.offsets) for peer in peers}
        error = max(unsure for _, unsure in measured.values())
        exact = {rank: float(offset) for rank, (offset, _) in measured.items()}
        none = {rank: 0.0 if abs(offset) <= lag else offset for rank, offset in exact.items()}
        # Within the watchdogs' lag most looks may agree on the distance of one's own phase; a constant is there always.
        constant = not error and all(
            len(set(peer.offsets)) == 1 for peer in peers if none[peer.rank] != exact[peer.rank]
        )
        mine = {peer.rank: sample_of[peer.rank] for peer in peers}
        by_none = _ahead_by(mine, none, 0.5 + lag / 2, per_ns, 0.0)
        by_exact = _ahead_by(mine, exact, 0.5 + error + lag / 2, per_ns, _ERRORS * error)
        for rank in mine:
            probably[rank] = by_exact[rank] if constant else by_none[rank]
            surely[rank] = by_none[rank] and by_exact[rank]
    return probably, surely


def _ahead_by(
    samples: dict[int, CounterSample], offset: dict[int, float], left: float, per_ns: float, unsure: float
) -> dict[int, bool]:
    """By one idea of the counts' constant distances. `left`: as much more than completed is nothing left to do."""
    enqueued = {rank: sample.enqueued - offset[rank] for rank, sample in samples.items()}
    completed = max(sample.completed - offset[rank] for rank, sample in samples.items())
    least = min(enqueued, key=lambda rank: enqueued[rank])
    # A rank that is behind and still has work enqueued keeps nobody waiting: its device does.
    starved = enqueued[least] - completed <= left
    return {
        rank: starved
        and enqueued[rank] - enqueued[least] > 0.5 + unsure + abs(sample.at_ns - samples[least].at_ns) * per_ns
        for rank, sample in samples.items()
    }


def _offset(offsets: Sequence[int]) -> tuple[int, float]:
    """Median and its standard error: none where most looks agree, as in jobs whose steps are not very short."""
    if 2 * offsets.count(offsets[-1]) > len(offsets):  # so it is the median
        return offsets[-1], 0.0
    middle = median_low(offsets)
    if 2 * offsets.count(middle) > len(offsets):
        return middle, 0.0
    # Of whole numbers: statistics.stdev goes by way of fractions, which took a tenth of a tick of eight ranks, and a
    # generator here another one.
    looks = len(offsets)
    squares = looks * sum(map(mul, offsets, offsets)) - sum(offsets) ** 2
    return middle, 1.25 * sqrt(squares / (looks * (looks - 1))) / sqrt(looks)


def _rate(peers: Sequence[PeerRank]) -> float:
    """Collectives per nanosecond, by the samples that are kept."""
    first, last = peers[0].samples[0], peers[0].samples[-1]
    return max(0, last.completed - first.completed) / (last.at_ns - first.at_ns) if last.at_ns > first.at_ns else 0.0
