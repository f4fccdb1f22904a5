"""How many calls a rank had made in a group when it counted a step: equal for all members at the same step.

A call too many or too few of the same shape leaves operations, sizes and types as they were; without call sites only
this count shows it. It is comparable because collective numbers are, and costs no stack.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from stallwatch.diagnosis.recorder.operations import read_recorded_calls
from stallwatch.model.evidence import RankEvidence, Recorder
from stallwatch.model.snapshot import Heartbeat
from stallwatch.model.summary import GroupId, Offset

# Steps on which a rank must be off by the same number. Calls of other threads come now before, now after the step.
_SETTLED_STEPS = 6
LEAST_RANKS = 3  # of two, nothing tells which is off


class StepCounts(msgspec.Struct, frozen=True):
    """How many calls one rank had made in a group when it counted each of its last steps."""

    rank: int
    group: GroupId
    calls: tuple[tuple[int, int], ...]  # (step, calls made before it was counted)


class Shift(msgspec.Struct, frozen=True):
    """An offset that was not there at an earlier sample: between the two the rank made so many calls more (or less)."""

    rank: int
    group: GroupId
    calls: int
    whole_steps: bool  # a step that was not counted looks the same


def step_counts(rank: RankEvidence, wall_minus_monotonic_ns: int) -> tuple[StepCounts, ...]:
    """Given a rank's sample and its node's clock, return its counts at the steps that both records hold."""
    if not rank.heartbeat or not rank.recorders:
        return ()
    times = _step_times(rank.heartbeat[-1])
    found = []
    for recorder in rank.recorders:
        for group, (numbers, created) in _calls(recorder).items():
            calls = []
            for step, monotonic_ns in times:
                place = bisect_right(created, monotonic_ns + wall_minus_monotonic_ns)
                if 0 < place < len(created):  # before its first entry the ring knows nothing, after its last perhaps
                    calls.append((step, numbers[place - 1]))
            if calls:
                found.append(StepCounts(rank.rank, group, tuple(calls)))
    return tuple(found)


def _step_times(heartbeat: Heartbeat) -> list[tuple[int, int]]:
    if heartbeat.step is None or heartbeat.last_step_ns is None:
        return []
    times, step, at_ns = [], heartbeat.step, heartbeat.last_step_ns
    times.append((step, at_ns))
    for duration in reversed(heartbeat.step_durations_ns):
        step, at_ns = step - 1, at_ns - duration
        times.append((step, at_ns))
    return times[::-1]


def _calls(recorder: Recorder) -> dict[GroupId, tuple[list[int], list[int]]]:
    """Numbers and times of each group's collectives, in order; groups with a time missing or out of order are left."""
    members = {group.name: group.ranks for group in recorder.groups}
    groups: dict[GroupId, tuple[list[int], list[int]]] = {}
    broken = set()
    for node in read_recorded_calls(recorder):
        if node.is_transfer:
            continue
        group = GroupId(node.group_description, node.first.backend, members.get(node.group_name, ()))
        numbers, created = groups.setdefault(group, ([], []))
        at_ns = node.first.created_ns
        if at_ns is None or (created and at_ns < created[-1]):
            broken.add(group)
            continue
        numbers.append(node.seq)
        created.append(at_ns)
    return {group: calls for group, calls in groups.items() if group not in broken}


def offsets(counts: Iterable[StepCounts]) -> tuple[Offset, ...]:
    """Return how far each member is off, where enough steps agree on it."""
    by_group: dict[GroupId, dict[int, dict[int, int]]] = {}
    for one in counts:
        by_group.setdefault(one.group, {})[one.rank] = dict(one.calls)
    found: list[Offset] = []
    for group, ranks in sorted(by_group.items()):
        if len(ranks) >= LEAST_RANKS:
            found += _of_group(group, ranks)
    return tuple(found)


def _of_group(group: GroupId, ranks: Mapping[int, Mapping[int, int]]) -> list[Offset]:
    usual: dict[int, int] = {}
    for step in sorted({step for calls in ranks.values() for step in calls}):
        votes = Counter(calls[step] for calls in ranks.values() if step in calls)
        number, times = votes.most_common(1)[0]
        if 2 * times > len(ranks):
            usual[step] = number
    found = []
    for rank, calls in sorted(ranks.items()):
        differences = [calls[step] - usual[step] for step in sorted(calls) if step in usual]
        if len(differences) >= _SETTLED_STEPS and len(set(differences)) == 1:
            found.append(Offset(rank, group, differences[0], _calls_per_step(usual)))
    return found


def _calls_per_step(usual: Mapping[int, int]) -> int:
    steps = {usual[step + 1] - usual[step] for step in usual if step + 1 in usual}
    return steps.pop() if len(steps) == 1 else 0


def shifts(before: Sequence[Offset], now: Sequence[Offset]) -> tuple[Shift, ...]:
    """Return the members, fewer than half of a group, that are off by another number than at the sample before."""
    then = {(one.group, one.rank): one.offset for one in before}
    known: dict[GroupId, list[Offset]] = {}
    for one in now:
        if (one.group, one.rank) in then:
            known.setdefault(one.group, []).append(one)
    found = []
    for group, members in known.items():
        moved = [one for one in members if one.offset != then[group, one.rank]]
        if 2 * len(moved) < len(members):
            for one in moved:
                calls = one.offset - then[group, one.rank]
                whole = not one.calls_per_step or calls % one.calls_per_step == 0
                found.append(Shift(one.rank, group, calls, whole))
    return tuple(found)
