"""What this node says of its ranks' waiting, for a comparison with those of other nodes: shares by step, no times.

A step has the same number on every node, so blocks of steps can be laid beside each other whatever the nodes' clocks
say. Which ranks wait least among all of them is then asked as it is among those of one node (detectors.waiting).
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

import msgspec
from msgspec.structs import replace

from stallwatch.clock import SECOND_NS
from stallwatch.detectors.detection import DetectionState
from stallwatch.detectors.history import NodeHistory
from stallwatch.detectors.looks import LOOK_NS, MISSED_LOOKS, Looks, StepLook
from stallwatch.detectors.slow import SlowDetector, SlowState, waits_of
from stallwatch.model.snapshot import JobKey

_LEAST_TICKS = 3  # of a block: fewer moments say little of a share
MOST_BLOCKS = 64
MOST_EARLIER = 192  # blocks; more looks than that are not kept
_MOST_RANKS = 64


class RankPace(msgspec.Struct, frozen=True):
    """How a rank waits and works in its job."""

    rank: int
    role: tuple[float, ...]  # what it has completed per group, by step: ranks with other programs are no peers
    waited: tuple[int, ...]  # by block: in how many of the moments it had a collective pending


class NodePace(msgspec.Struct, frozen=True):
    """One node's ranks of a job."""

    steps: int  # of a block: a power of two
    first: int  # number of the first block: its first step divided by `steps`
    ticks: tuple[int, ...]  # by block: moments at which was looked; 0: the ranks did something else
    ranks: tuple[RankPace, ...]
    step_seconds: float
    nccl: bool  # what pends there is seen up to 0.1 s longer
    since_step: int  # of the first look
    # By block: from its first look to the next block's, by this node's clock; 0: that is not known, or nobody looked
    # for a while. Whether steps are as long as they were is told by it.
    lasted_ms: tuple[int, ...] = ()
    earlier: "NodePace | None" = None  # the same of more blocks, which reach further back


def paces(state: DetectionState) -> dict[JobKey, NodePace]:
    """Given what detection remembers, return what is to be said of each job that has ranks elsewhere too."""
    slow = dict(state.of_detectors).get(SlowDetector.name)
    if state.history is None or not isinstance(slow, SlowState):
        return {}
    return dict(_paces(state.history, waits_of(slow)))


def _paces(history: NodeHistory, waits: dict[JobKey, tuple[Looks, int]]) -> Iterator[tuple[JobKey, NodePace]]:
    for job, ranks in history.jobs():
        looks, first_mark = waits.get(job, (Looks(), -1))
        here = {rank.sample.rank for rank in ranks}
        is_whole = max(rank.sample.world_size for rank in ranks) <= len(here)
        if is_whole or not looks.members or len(here) > _MOST_RANKS:
            continue
        durations = [d for rank in ranks if rank.heartbeat for d in rank.heartbeat.step_durations_ns]
        pace = pace_of(looks, median(durations) / SECOND_NS if durations else 0.0, first_mark)
        if pace is not None:
            yield job, pace


def pace_of(looks: Looks, step_seconds: float, since_step: int) -> NodePace | None:
    """Return a node's pace by its looks; None where nobody counts steps, or there are too few."""
    counted = [look for look in looks.looks if look.step >= 0]
    if len(counted) < 2 or not step_seconds:
        return None
    each = sum(look.ticks for look in counted) / max(counted[-1].step - counted[0].step + 1, 1)
    steps = 1
    while steps * each < _LEAST_TICKS and steps < 1 << 16:
        steps *= 2
    pace = _in_blocks(looks, counted, steps, MOST_BLOCKS)
    if pace is None:
        return None
    earlier = _in_blocks(looks, counted, steps, MOST_EARLIER)
    return replace(pace, step_seconds=step_seconds, since_step=since_step, earlier=earlier)


def _in_blocks(looks: Looks, counted: Sequence[StepLook], steps: int, most: int) -> NodePace | None:
    """The newest blocks of so many steps; None where none is whole."""
    last = counted[-1].step // steps  # it is under way
    first = max(counted[0].step // steps + 1, last - most)
    if last <= first:
        return None
    ticks = [0] * (last - first)
    waited = [[0] * (last - first) for _ in looks.members]
    for look in counted:
        block = look.step // steps - first
        if 0 <= block < len(ticks):
            ticks[block] += look.ticks
            for own, pending in zip(waited, look.pending, strict=True):
                own[block] += pending
    newest = max(counted[-1].step, 1)
    members = zip(looks.members, waited, strict=True)
    ranks = tuple(
        RankPace(member.rank, tuple(round(count / newest, 3) for count in member.role), tuple(own))
        for member, own in members
    )
    lasted_ms = _lasted_ms(counted, steps, first, last)
    return NodePace(steps, first, tuple(ticks), ranks, 0.0, looks.nccl, 0, lasted_ms)


def _lasted_ms(counted: Sequence[StepLook], steps: int, first: int, last: int) -> tuple[int, ...]:
    began_ns: dict[int, int] = {}
    unseen: set[int] = set()  # in which nobody looked for a while: a phase is its own kind of time
    for look, after in pairwise(counted):
        block = look.step // steps
        began_ns.setdefault(block, look.at_ns)
        if after.at_ns - look.at_ns > (look.ticks + MISSED_LOOKS) * LOOK_NS:
            unseen |= {*range(block, after.step // steps + 1)}
    began_ns.setdefault(counted[-1].step // steps, counted[-1].at_ns)
    return tuple(
        (began_ns[block + 1] - began_ns[block]) // 1_000_000
        if {block, block + 1} <= began_ns.keys() and block not in unseen
        else 0
        for block in range(first, last)
    )
