"""Ranks of an asynchronous job whose steps fall further and further behind those of the others."""

from collections.abc import Sequence
from statistics import median_low

import msgspec

from stallwatch.detectors.history import RankHistory

LAG_LOOKS = 8
_LAG_STEPS = 10
_COUNTS_LOOKS = 3  # a step that takes longer is seen at the look after it
# Of its peers' steps, to be of their kind at all: an evaluator that scores every thirtieth checkpoint counts something
# else. Who was once as fast as they, over the looks that are kept, counts what they do, however slow it has become.
_SAME_KIND = 0.25
_AS_FAST = 0.75


class Lagging(msgspec.Struct, frozen=True):
    """One rank's distance to its job, at the last looks."""

    rank: int
    pid: int
    lags: tuple[int, ...] = ()  # steps behind the median, newest last
    counted: tuple[bool, ...] = ()  # at the same looks: whether it has counted a step since the one before
    counts: bool = False  # and whether since the last of them
    usual: tuple[int, ...] = ()  # at the same looks: the median's steps
    began: tuple[int, int] = (0, 0)  # at its first look, its own steps and the median's: it may have begun later
    was_as_fast: bool = False
    comparable: bool = True  # its steps are of the kind of its peers'


def lags_of(before: Sequence[Lagging], alive: Sequence[RankHistory]) -> tuple[Lagging, ...]:
    """Given what was seen of each rank, return that and what this tick says."""
    known = {(one.rank, one.pid): one for one in before}
    steps = sorted(rank.heartbeat.step for rank in alive if rank.heartbeat and rank.heartbeat.step is not None)
    usual_groups = median_low([len(rank.groups) for rank in alive]) if alive else 0
    lagging = []
    for rank in alive:
        pid = rank.sample.pid
        one = known.get((rank.sample.rank, pid)) or Lagging(rank.sample.rank, pid)
        counts = one.counts or rank.ticks.stepped
        if rank.readable and rank.heartbeat and rank.heartbeat.step is not None and not rank.phase:
            own, usual = rank.heartbeat.step, steps[len(steps) // 2]
            one = _looked_at(one, own, usual, counts=counts, same_groups=len(rank.groups) == usual_groups)
        elif counts != one.counts:
            one = msgspec.structs.replace(one, counts=counts)
        lagging.append(one)
    return tuple(lagging)


def _looked_at(before: Lagging, own: int, usual: int, *, counts: bool, same_groups: bool) -> Lagging:
    """Given its own steps and the median's at this look, and whether it is in as many groups as its peers, return what
    is known now."""
    lags, medians = (*before.lags, usual - own)[-LAG_LOOKS:], (*before.usual, usual)[-LAG_LOOKS:]
    began = before.began if before.lags else (own, usual)
    passed = usual - medians[0]
    lost = lags[-1] - lags[0]
    as_fast = len(lags) == LAG_LOOKS and passed >= _LAG_STEPS and lost <= (1 - _AS_FAST) * passed
    was_as_fast = before.was_as_fast or as_fast
    same_kind = own >= _SAME_KIND * usual or own - began[0] >= _SAME_KIND * (usual - began[1])
    return Lagging(
        before.rank,
        before.pid,
        lags,
        (*before.counted, counts)[-LAG_LOOKS:],
        usual=medians,
        began=began,
        was_as_fast=was_as_fast,
        comparable=was_as_fast or (same_kind and same_groups),
    )


def who_lags(lagging: Sequence[Lagging]) -> Lagging | None:
    """Return the one rank whose steps fall further and further behind the median of its job. One that counts no step
    any more is not slow: it stands, or its data are at an end and it cleans up, or takes part in the others'
    collectives (DDP's join). Nor is one that runs another program than they do, by its count of steps or its groups."""
    late = [
        one
        for one in lagging
        if len(one.lags) >= LAG_LOOKS
        and one.lags[-1] >= _LAG_STEPS
        and any(one.counted[-_COUNTS_LOOKS:])
        and one.comparable
        and all(a < b for a, b in zip(one.lags, one.lags[1:], strict=False))
    ]
    return late[0] if len(late) == 1 and len(lagging) >= 3 else None
