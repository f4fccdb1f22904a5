"""What a rank's hook noted of its counters at its node's moments, several a second."""

from collections.abc import Sequence

import msgspec

from stallwatch.detectors.history import RankHistory
from stallwatch.detectors.stopped import is_stopped
from stallwatch.model.process import is_frozen
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import CounterLook, is_pending

_KEPT_SAMPLES = 12  # a record may be read a moment before its newest look: that one is used at the next tick


class CounterSample(msgspec.Struct, frozen=True):
    """One rank at one of its node's moments."""

    number: int
    at_ns: int
    step: int
    enqueued: int  # over all groups of the recorder that matters
    completed: int

    @property
    def pending(self) -> bool:
        """Whether something was enqueued that has not completed."""
        return is_pending(self.enqueued, self.completed)


class PeerRank(msgspec.Struct, frozen=True):
    """One rank of the job. `offsets`: its completed count less its peers' median, at the last looks."""

    rank: int
    pid: int
    role: tuple[int, ...] = ()  # completed per group: ranks with other programs are no peers
    samples: tuple[CounterSample, ...] = ()
    offsets: tuple[int, ...] = ()


def sampled(known: dict[tuple[int, int], PeerRank], rank: RankHistory, *, nccl: bool) -> PeerRank:
    """Given what is known of members by (rank, pid), return this rank with the samples that are new."""
    member = known.get((rank.sample.rank, rank.sample.pid), PeerRank(rank.sample.rank, rank.sample.pid))
    beat = rank.heartbeat
    last = member.samples[-1].number if member.samples else 0
    new = tuple(_sample(look, nccl=nccl) for look in beat.looks if look.number > last) if beat else ()
    if not new:
        return member
    role = tuple(sorted(group.completed for group in rank.groups))
    return msgspec.structs.replace(member, role=role, samples=(*member.samples, *new)[-_KEPT_SAMPLES:])


def _sample(look: CounterLook, *, nccl: bool) -> CounterSample:
    if nccl:
        return CounterSample(look.number, look.at_ns, look.step, look.nccl_enqueued, look.nccl_completed)
    # Where the one recorder holds nothing its counts are zero: what pends is pending in either.
    enqueued, completed = look.nccl_enqueued + look.gloo_enqueued, look.nccl_completed + look.gloo_completed
    return CounterSample(look.number, look.at_ns, look.step, enqueued, completed)


def with_held(members: tuple[PeerRank, ...], alive: Sequence[RankHistory]) -> tuple[PeerRank, ...]:
    """Given the members, and their ranks in the same order, return them with the moments that who is held now has
    missed: a process that is stopped, or frozen with its control group, notes nothing, and its counters stand. Its
    peers wait for it just then."""
    held = [is_held(rank) for rank in alive]
    if not any(held) or all(held):
        return members
    moments = {sample.number: sample.at_ns for member in members for sample in member.samples}
    return tuple(
        _held(member, moments) if stands and member.samples else member
        for member, stands in zip(members, held, strict=True)
    )


def is_held(rank: RankHistory) -> bool:
    """Whether its process stands stopped by a signal, or frozen with its control group."""
    process = rank.sample.process
    return is_stopped(rank) or (isinstance(process, Known) and is_frozen((process.value.wchan,)))


def _held(member: PeerRank, moments: dict[int, int]) -> PeerRank:
    last = member.samples[-1]
    missed = (
        msgspec.structs.replace(last, number=number, at_ns=moments[number])
        for number in sorted(moments)
        if number > last.number
    )
    return msgspec.structs.replace(member, samples=(*member.samples, *missed)[-_KEPT_SAMPLES:])
