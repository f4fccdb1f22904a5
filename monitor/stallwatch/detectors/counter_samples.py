"""What a rank's hook noted of its counters at its node's moments, several a second."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median, median_low

import msgspec

from stallwatch.detectors.history import RankHistory
from stallwatch.detectors.roles import by_role
from stallwatch.detectors.stopped import is_stopped
from stallwatch.model.process import is_frozen
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import CounterLook, GroupCounter, Heartbeat, is_pending

_STEPS_BESIDE = 2  # in which what pends all the time is waited for by another thread
_USUAL_STEPS = 3  # as long a step may last until training is taken to wait as well for what pends
_KEPT_SAMPLES = 12  # a record may be read a moment before its newest look: that one is used at the next tick
_NEVER_NS = 1 << 63
_IN_TIME_NS = 2_000_000  # after the first of all ranks, whose hooks look at the same moments


class CounterSample(msgspec.Struct, frozen=True):
    """One rank at one of its node's moments."""

    number: int
    at_ns: int
    step: int
    enqueued: int  # over all groups of the recorder that matters
    completed: int
    beside: int = 0  # of what pends, that which another thread waits for

    @property
    def pending(self) -> bool:
        """Whether something was enqueued that has not completed, and is the training thread's."""
        return is_pending(self.enqueued - self.beside, self.completed)


class OpenGroup(msgspec.Struct, frozen=True):
    """A group of one rank as ticks show it. It is `beside` training when operations of it have been pending while its
    rank went on stepping: a checkpoint's thread waits in it, and training does without."""

    counter: GroupCounter
    first_step: int  # when these numbers were seen first
    step: int  # at this tick
    beside: bool = False


class PeerRank(msgspec.Struct, frozen=True):
    """One rank of the job. `offsets`: its completed count less its peers' median, at the last looks."""

    rank: int
    pid: int
    role: tuple[int, ...] = ()  # completed per group: ranks with other programs are no peers
    samples: tuple[CounterSample, ...] = ()
    offsets: tuple[int, ...] = ()
    groups: tuple[OpenGroup, ...] = ()


def sampled(known: dict[tuple[int, int], PeerRank], rank: RankHistory, *, nccl: bool) -> PeerRank:
    """Given what is known of members by (rank, pid), return this rank with the samples that are new."""
    member = known.get((rank.sample.rank, rank.sample.pid), PeerRank(rank.sample.rank, rank.sample.pid))
    beat = rank.heartbeat
    last = member.samples[-1].number if member.samples else 0
    groups = () if nccl or beat is None else _open_groups(member.groups, beat)
    beside = sum(one.counter.enqueued - one.counter.completed for one in groups if one.beside and one.counter.pending)
    new = tuple(
        _sample(look, beside if beside and _steps_on(look, beat, member) else 0, nccl=nccl)
        for look in (beat.looks if beat else ())
        if beat and look.number > last
    )
    if not new:
        return member if groups == member.groups else msgspec.structs.replace(member, groups=groups)
    role = tuple(sorted(group.completed for group in rank.groups))
    samples = (*member.samples, *new)[-_KEPT_SAMPLES:]
    return msgspec.structs.replace(member, role=role, samples=samples, groups=groups)


def _open_groups(known: Sequence[OpenGroup], beat: Heartbeat) -> tuple[OpenGroup, ...]:
    """The groups in which something pends, or of which it is known whose they are."""
    if beat.step is None:
        return ()
    before = {(one.counter.recorder, one.counter.pg_id): one for one in known}
    now = (_open_group(before.get((group.recorder, group.pg_id)), group, beat.step) for group in beat.groups)
    return tuple(one for one in now if one.counter.pending or one.beside)


def _open_group(before: OpenGroup | None, now: GroupCounter, step: int) -> OpenGroup:
    if before is None:
        return OpenGroup(now, step, step)
    if before.counter == now:
        # As far as the tick before: a record's numbers are up to a second older than its step.
        stepped = before.step - before.first_step >= _STEPS_BESIDE
        return OpenGroup(now, before.first_step, step, before.beside or (now.pending and stepped))
    # What training does in each step is its own.
    often = now.completed - before.counter.completed >= max(step - before.step, 1)
    return OpenGroup(now, step, step, before.beside and not often)


def _steps_on(look: CounterLook, beat: Heartbeat, before: PeerRank) -> bool:
    """Whether training went on at this moment, by the record that holds it and by what was known of the rank: who steps
    no more may have come to wait for what pends, as for an average over all that was begun steps ago."""
    if beat.step is not None and look.step < beat.step:
        return True
    if beat.step_durations_ns and beat.last_step_ns is not None:
        return look.at_ns - beat.last_step_ns <= _USUAL_STEPS * median(beat.step_durations_ns)
    return not before.samples or before.samples[-1].step < look.step


def _sample(look: CounterLook, beside: int, *, nccl: bool) -> CounterSample:
    if nccl:
        return CounterSample(look.number, look.at_ns, look.step, look.nccl_enqueued, look.nccl_completed)
    # Where the one recorder holds nothing its counts are zero: what pends is pending in either.
    enqueued, completed = look.nccl_enqueued + look.gloo_enqueued, look.nccl_completed + look.gloo_completed
    beside = max(0, min(beside, enqueued - completed))
    return CounterSample(look.number, look.at_ns, look.step, enqueued, completed, beside)


def with_late(members: tuple[PeerRank, ...], *, taken: int, nccl: bool) -> tuple[PeerRank, ...]:
    """Given the members, return them with what their late samples say of the moments at which their hooks could not
    look: while a call holds the GIL, or there is no CPU, the rank comes to no collective, and just then its peers wait
    for it. What it had not enqueued when its hook looked at last it had not enqueued before. `taken`: the newest
    moment that was used; what is older than that is used no more."""
    first: dict[int, int] = {}
    for member in members:
        for sample in member.samples:
            if sample.at_ns < first.get(sample.number, _NEVER_NS):
                first[sample.number] = sample.at_ns
    late = [_has_late(member, first, taken) for member in members]
    if not any(late):
        return members
    in_time = [_in_time(member, first) for member in members]
    roles = by_role(tuple(member.role for member in members))
    peers = {place: [in_time[other] for other in places if other != place] for places in roles for place in places}
    return tuple(
        _with_late(member, in_time[place], () if nccl else peers[place], first, taken) if late[place] else member
        for place, member in enumerate(members)
    )


def _has_late(member: PeerRank, first: Mapping[int, int], taken: int) -> bool:
    for sample in reversed(member.samples):
        if sample.number < taken:
            return False
        if is_late(sample, first):
            return True
    return False


def is_late(sample: CounterSample, first: Mapping[int, int]) -> bool:
    """Whether it was made after its moment. `first`: when the first rank looked at each."""
    return sample.at_ns - first[sample.number] > _IN_TIME_NS


def _with_late(
    member: PeerRank,
    in_time: Mapping[int, int],
    peers: Sequence[Mapping[int, int]],
    first: Mapping[int, int],
    taken: int,
) -> PeerRank:
    """`in_time` and `peers`: what it and they had completed when they looked in time."""
    offsets: dict[int, int | None] = {}  # by place among the peers, as far as they are asked
    noted, samples = {sample.number for sample in member.samples}, [*member.samples[:1]]
    for before, sample in pairwise(member.samples):
        if sample.number < taken or not is_late(sample, first):
            samples.append(sample)
            continue
        stood = (sample.step, sample.enqueued, sample.completed) == (before.step, before.enqueued, before.completed)
        surely: list[int] = []
        if stood or not sample.pending:  # who waits has come
            missed = [n for n in sorted(first) if n > sample.number and n not in noted and first[n] <= sample.at_ns]
            surely = [
                number
                for number in (sample.number, *missed)
                if stood or _had_not_come(sample, number, in_time, peers, offsets)
            ]
        samples += [] if sample.number in surely else [sample]
        samples += (msgspec.structs.replace(sample, number=number, at_ns=first[number]) for number in surely)
    return msgspec.structs.replace(member, samples=tuple(samples)[-_KEPT_SAMPLES:])


def _in_time(member: PeerRank, first: Mapping[int, int]) -> dict[int, int]:
    """What it had completed at each of the moments at which it looked in time."""
    return {one.number: one.completed for one in member.samples if one.at_ns - first[one.number] <= _IN_TIME_NS}


def _offset(mine: Mapping[int, int], theirs: Mapping[int, int]) -> int | None:
    """By how much more a rank has completed than another of its program: a constant, but for moments in which one of
    them has not noted yet what is over. None: they were not seen together."""
    apart = [completed - theirs[number] for number, completed in mine.items() if number in theirs]
    return median_low(apart) if apart else None


def _had_not_come(
    sample: CounterSample,
    number: int,
    mine: Mapping[int, int],
    peers: Sequence[Mapping[int, int]],
    offsets: dict[int, int | None],
) -> bool:
    """Whether all that a rank with nothing pending had enqueued when its hook looked had been completed at a moment
    before that, of this number: then it waited for nothing there. `mine` and `peers`: what it and each of its peers had
    completed; `offsets`: how much more it has than each as a rule, as far as that was asked before."""
    seen = False
    for place, theirs in enumerate(peers):
        completed = theirs.get(number)
        if completed is None:
            continue
        if place not in offsets:
            offsets[place] = _offset(mine, theirs)
        offset = offsets[place]
        if offset is not None:
            seen = True
            if sample.enqueued > completed + offset:
                return False  # the distances to the others need not be known
    return seen


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
