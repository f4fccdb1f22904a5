"""What the threads of a process without a hook usually do, and whether those that train do so now.

A thread that trains is on a processor for about as long in each second, however short that is; in a lock, a collective
or a receive it is there not at all. Others go on, whatever it does: recorders, keep-alives, savers. Measured, of a
core: twenty steps a second that compute nothing 0.008, gloo's threads for these 0.0025 each, a poll ten times a second
0.0005, with a file looked for 0.0007.
"""

from collections.abc import Sequence
from math import exp, log

import msgspec

from stallwatch.model.snapshot import ThreadSample

# Shares of one core.
_AT_WORK = 0.001
_SURELY_AT_WORK = 0.005  # no poll takes so much
_MUCH = 0.03  # as much is work, whatever is usual
_TAKES_OVER = 0.2  # of a thread that did nothing of the kind before
_TOGETHER = 2  # ticks, give or take: one began when the others stood
_OF_USUAL = 0.4
_SPINS = 0.5
SPINNING_WAKES = 5  # in a second or so at full speed; each pause of ours for a stack makes two
_LEARNED = 10  # ticks at work
_AVERAGED = 16
_LEARNS = 32  # first ticks, of which some are of a start
# Of the ticks from the first to the last at which it was at work. One with steps of some seconds rests in between.
_DUTY_OF_MAIN = 0.2
_DUTY = 0.5


class ThreadLevel(msgspec.Struct, frozen=True):
    """One thread so far."""

    tid: int
    run_ns: int
    wakes: int | None = None
    communicates: bool = False
    usual: float = 0.0  # share of a core at which it works: the geometric mean of about the last ticks
    worked: int = 0  # ticks at which it was at work
    spanned: int = 0  # from the first of these to the last
    rests: int = 0  # since
    moves: bool = True  # it does what it usually does, at this tick
    spins: bool = False  # for its GPU
    share: float = 0.0  # of a core, at this tick

    def is_steady(self, duty: float = _DUTY) -> bool:
        """Whether it works all the time, or did until it stood."""
        return self.worked >= _LEARNED and self.worked >= duty * self.spanned


def leveled(
    before: Sequence[ThreadLevel], samples: Sequence[ThreadSample], seconds: float, *, has_gpu: bool
) -> tuple[ThreadLevel, ...]:
    """Given what is known of the threads and what they have done at this tick, `seconds` after the last, return what is
    known now, in the order of the samples."""
    known = {level.tid: level for level in before}
    return tuple(_after(known.get(sample.tid), sample, seconds, has_gpu=has_gpu) for sample in samples)


def passed_over(before: Sequence[ThreadLevel], samples: Sequence[ThreadSample]) -> tuple[ThreadLevel, ...]:
    """The same of a tick that says nothing of them."""
    now = {sample.tid: sample for sample in samples}
    return tuple(
        msgspec.structs.replace(level, run_ns=now[level.tid].run_ns, wakes=now[level.tid].wakes)
        for level in before
        if level.tid in now
    )


def training_stands(levels: Sequence[ThreadLevel]) -> bool | None:
    """Given the threads of a process, the main one first, return whether those that train stand; None: nothing tells
    which these are. They are the main thread, where that is seen to work and communication did not begin when it
    ended its start; else those that work all the time with threads that communicate, and stand with these."""
    if not levels:
        return None
    main, *others = levels
    steady = [level for level in others if level.is_steady()]
    standing = [level for level in steady if not level.moves]
    flowed = any(level.communicates for level in steady)
    if main.is_steady(_DUTY_OF_MAIN):
        if main.moves:
            return False
        if not any(_began_after(level, main.rests) and level.communicates and level.moves for level in steady):
            return True
    if any(_took_over(level, standing) for level in levels):
        return None  # for whom it works is not known
    if any(level.spins for level in standing):
        return True
    if flowed:
        with_whom = {level.communicates for level in standing}
        return with_whom == {True, False} if standing else False
    # Under NCCL no thread shows what is communicated: who trains does most.
    done = sum(level.usual for level in steady)
    return None if not steady else sum(level.usual for level in standing) >= 0.5 * done


def have_communicated(levels: Sequence[ThreadLevel]) -> bool:
    """Whether threads of gloo were seen to work for long: those of a start meet a few times. Steps of some seconds rest
    in between, as the main thread does. None is seen under NCCL."""
    return any(level.communicates and level.is_steady(_DUTY_OF_MAIN) for level in levels)


def _began_after(level: ThreadLevel, stood: int) -> bool:
    """Whether a thread works since another stands, for so many ticks, and did not before."""
    return level.spanned + level.rests <= stood + _TOGETHER


def _took_over(level: ThreadLevel, standing: Sequence[ThreadLevel]) -> bool:
    """Whether a thread does much more than before these stood."""
    if level.share < _TAKES_OVER or level.spins:
        return False
    stood = max((one.rests for one in standing), default=0)
    return _began_after(level, stood) or level.share >= level.usual / _OF_USUAL


def _after(before: ThreadLevel | None, sample: ThreadSample, seconds: float, *, has_gpu: bool) -> ThreadLevel:
    if before is None:
        return ThreadLevel(sample.tid, sample.run_ns, sample.wakes, sample.communicates)
    share = max(0, sample.run_ns - before.run_ns) / 1e9 / seconds
    slept = None if None in (before.wakes, sample.wakes) else (sample.wakes or 0) - (before.wakes or 0)
    spins = has_gpu and share >= _SPINS and slept is not None and slept <= SPINNING_WAKES * seconds
    at_work = share >= _AT_WORK and not spins
    moves = at_work and share >= min(_OF_USUAL * before.usual, _MUCH)
    worked = before.worked + at_work
    usual = before.usual
    # A poll that began when training stood is not what it usually does.
    if at_work and (moves or share >= _SURELY_AT_WORK or worked <= _LEARNS):
        weight = 1 / min(worked, _AVERAGED)
        usual = exp(log(usual or share) * (1 - weight) + log(share) * weight)
    return ThreadLevel(
        sample.tid,
        sample.run_ns,
        sample.wakes,
        sample.communicates,
        usual,
        worked,
        before.spanned + (before.rests if worked > 1 else 0) + 1 if at_work else before.spanned,
        0 if at_work else before.rests + 1,
        moves or not before.worked,
        spins,
        share,
    )
