"""Who stood waiting, look by look: the pulses of a job's ranks at one moment, put beside each other.

A look is one step of the job, whatever its length: what one batch did to its ranks is one observation, however many of
our ticks fell into it. Where nobody counts steps it is one completed collective.
"""

from collections.abc import Sequence
from math import sqrt
from statistics import median_low, stdev

import msgspec

from stallwatch.detectors.history import RankHistory

KEPT_LOOKS = 768
_KEPT_SAMPLES = 3  # a record may be read a moment before its newest pulse: that look is made at the next tick
_TOGETHER_NS = 150_000_000  # pulses further apart are of different moments, and their counts cannot be compared
_ABOUT_TOGETHER_NS = 600_000_000  # where each rank's own words say that it waits: on a busy machine pulses come late
_KEPT_OFFSETS = 64
_ENOUGH_OFFSETS = 4
_ERRORS = 4  # standard errors of two counts' distance that are surely more than none
_SETTLE_STEPS = 3  # the first steps compile and warm up, each rank as it will
# torch's watchdog notes what NCCL has completed every 0.1 s (ProcessGroupNCCL.hpp, kWatchdogThreadSleepMillis), each
# rank's at its own time, so the latest of several is about half of that old.
_WATCHDOG_SECONDS = 0.05


class Sample(msgspec.Struct, frozen=True):
    """What one pulse said of one rank."""

    pulses: int
    at_ns: int
    enqueued: int  # over all groups of the recorder that matters
    completed: int
    pending: bool


class Member(msgspec.Struct, frozen=True):
    """One rank of the job. `offsets`: its completed count less its peers' median, at the last looks."""

    rank: int
    pid: int
    role: tuple[int, ...] = ()  # completed per group: ranks with other programs are no peers
    samples: tuple[Sample, ...] = ()
    taken: int = -1  # pulses at the last look
    offsets: tuple[int, ...] = ()


class Look(msgspec.Struct, frozen=True):
    """One step: ticks that saw it, and in how many of them each member stood in a collective."""

    ticks: int
    waited: tuple[int, ...]


class Looks(msgspec.Struct, frozen=True):
    members: tuple[Member, ...] = ()
    mark: int = -1  # step, or completed collectives, of the newest look
    looks: tuple[Look, ...] = ()
    count: int = 0  # of looks so far, those not kept included
    nccl: bool = False  # by what is enqueued: hosts that run ahead of their devices lose less than their looks say

    def column(self, member: Member, window: int) -> tuple[tuple[int, int], ...]:
        """(ticks, of these waiting) of one member in the last looks, oldest first."""
        place = self.members.index(member)
        return tuple((look.ticks, look.waited[place]) for look in self.looks[-window:])


def peers_of(members: Sequence[Member]) -> list[list[Member]]:
    """Divide the members by what program they run: stages of a pipeline wait unequally by design."""
    groups, left = [], list(members)
    while left:
        peers = [member for member in left if _same_role(member.role, left[0].role)]
        left = [member for member in left if member not in peers]
        groups.append(peers)
    return groups


def looked(before: Looks, alive: Sequence[RankHistory]) -> Looks:
    """Given a job's living ranks at this tick, return the looks with the one that they make, if they make one."""
    known = {(member.rank, member.pid): member for member in before.members}
    if set(known) != {(rank.sample.rank, rank.sample.pid) for rank in alive}:
        before, known = Looks(), {}
    nccl = all(any(group.recorder == "nccl" and group.enqueued > 0 for group in rank.groups) for rank in alive)
    members = [_sampled(known, rank, "nccl" if nccl else "gloo") for rank in alive]
    looks = msgspec.structs.replace(before, members=tuple(members), nccl=nccl)
    together = _together(members, _TOGETHER_NS if nccl else _ABOUT_TOGETHER_NS)
    if together is None or not all(_takes_part(rank) for rank in alive):
        return looks
    waits = _ahead(members, together) if nccl else {m.rank: s.pending for m, s in zip(members, together, strict=True)}
    members = [_taken(member, members, together) for member in members]
    looks = msgspec.structs.replace(looks, members=tuple(members))
    if waits is None:
        return looks
    waited = tuple(int(waits[member.rank]) for member in members)
    steps = [rank.heartbeat.step for rank in alive if rank.heartbeat and rank.heartbeat.step is not None]
    mark = max(steps) if len(steps) == len(alive) else max(sample.completed for sample in together)
    if looks.looks and mark == looks.mark:
        last = looks.looks[-1]
        both = tuple(a + b for a, b in zip(last.waited, waited, strict=True))
        return msgspec.structs.replace(looks, looks=(*looks.looks[:-1], Look(last.ticks + 1, both)))
    kept = (*looks.looks, Look(1, waited))[-KEPT_LOOKS:]
    return msgspec.structs.replace(looks, mark=mark, looks=kept, count=looks.count + 1)


def _takes_part(rank: RankHistory) -> bool:
    """It trains: a phase is its own kind of time, so is the start, and our own dump holds the GIL."""
    beat = rank.heartbeat
    if beat is None or not rank.readable or rank.phase or not rank.groups or beat.dump_started_ns is not None:
        return False
    return beat.step is None or beat.step > _SETTLE_STEPS


def _sampled(known: dict[tuple[int, int], Member], rank: RankHistory, recorder: str) -> Member:
    member = known.get((rank.sample.rank, rank.sample.pid), Member(rank.sample.rank, rank.sample.pid))
    beat = rank.heartbeat
    if beat is None or (member.samples and member.samples[-1].pulses == beat.pulse_count):
        return member
    groups = [group for group in rank.groups if group.recorder == recorder] or rank.groups
    sample = Sample(
        beat.pulse_count,
        beat.pulse_ns,
        sum(group.enqueued for group in groups),
        sum(group.completed for group in groups),
        any(group.enqueued > group.completed for group in groups),
    )
    role = tuple(sorted(group.completed for group in rank.groups))
    return msgspec.structs.replace(member, role=role, samples=(*member.samples, sample)[-_KEPT_SAMPLES:])


def _together(members: Sequence[Member], apart_ns: int) -> list[Sample] | None:
    """The newest samples of one moment that no look has used, None where there are none."""
    if len(members) < 2 or not all(member.samples for member in members):
        return None
    at_ns = min(member.samples[-1].at_ns for member in members)
    chosen = [min(member.samples, key=lambda sample: abs(sample.at_ns - at_ns)) for member in members]
    fresh = all(sample.pulses > member.taken for sample, member in zip(chosen, members, strict=True))
    return chosen if fresh and all(sample.at_ns - at_ns <= apart_ns for sample in chosen) else None


def _taken(member: Member, members: Sequence[Member], together: Sequence[Sample]) -> Member:
    mine = together[members.index(member)]
    peers = [s.completed for m, s in zip(members, together, strict=True) if _same_role(m.role, member.role)]
    offsets = (*member.offsets, mine.completed - median_low(peers))[-_KEPT_OFFSETS:]
    return msgspec.structs.replace(member, taken=mine.pulses, offsets=offsets)


def _ahead(members: Sequence[Member], together: Sequence[Sample]) -> dict[int, bool] | None:
    """Who waits under NCCL: who has enqueued what its least peer has not, while that one has nothing left to do.

    `completed` lags by up to 0.1 s there, so that every rank of a job with short steps is nearly always pending; what
    is enqueued is true at once. The counts of ranks may differ by a constant (sends are counted too): it is their usual
    distance in completed counts, in which the lags of the ranks' watchdogs cancel.
    """
    waits: dict[int, bool] = {}
    sample_of = dict(zip((member.rank for member in members), together, strict=True))
    for peers in peers_of(members):
        if any(len(peer.offsets) < _ENOUGH_OFFSETS for peer in peers):
            return None
        offset, error = {}, 0.0
        for peer in peers:
            offset[peer.rank], unsure = _offset(peer.offsets)
            error = max(error, unsure)
        enqueued = {rank: sample_of[rank].enqueued - offset[rank] for rank in offset}
        completed = max(sample_of[rank].completed - offset[rank] for rank in offset)
        least = min(enqueued, key=lambda rank: enqueued[rank])
        per_ns = _rate(peers)
        # A rank that is behind and still has work enqueued keeps nobody waiting: its device does.
        starved = enqueued[least] - completed <= 0.5 + error + _WATCHDOG_SECONDS * 1e9 * per_ns
        for rank in enqueued:
            apart_ns = abs(sample_of[rank].at_ns - sample_of[least].at_ns)
            ahead = enqueued[rank] - enqueued[least] > 0.5 + _ERRORS * error + apart_ns * per_ns
            waits[rank] = starved and ahead
    return waits


def _offset(offsets: Sequence[int]) -> tuple[int, float]:
    """Median and its standard error: none where most looks agree, as in jobs whose steps are not very short."""
    middle = median_low(offsets)
    if 2 * offsets.count(middle) > len(offsets):
        return middle, 0.0
    return middle, 1.25 * stdev(offsets) / sqrt(len(offsets))


def _rate(peers: Sequence[Member]) -> float:
    """Collectives per nanosecond, by the samples that are kept."""
    first, last = peers[0].samples[0], peers[0].samples[-1]
    return max(0, last.completed - first.completed) / (last.at_ns - first.at_ns) if last.at_ns > first.at_ns else 0.0


def _same_role(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """The counts that ranks of one program have differ by what a step in progress holds, not by a part of them."""
    return len(one) == len(other) and all(
        abs(a - b) <= max(64, 0.02 * max(a, b)) for a, b in zip(sorted(one), sorted(other), strict=True)
    )
