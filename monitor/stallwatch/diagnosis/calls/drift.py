"""Before the hang: ranks of a job that still moves, compared by what they called and how many calls they count at a
step, so that a call too many or too few, or a silent difference of type, is told before somebody waits for ever."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from stallwatch.diagnosis.calls.align import Divergence, describe, find_divergences
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.job.groups import GroupStream, all_alike
from stallwatch.diagnosis.recorder import signature
from stallwatch.diagnosis.recorder.operations import read_recorded_calls
from stallwatch.diagnosis.recorder.reduce import reduce_rank
from stallwatch.diagnosis.step import with_steps
from stallwatch.formats.operation_names import operation_name
from stallwatch.model.evidence import Evidence, RankEvidence, Recorder
from stallwatch.model.snapshot import Heartbeat
from stallwatch.model.summary import Call, GroupId, Offset, RankSummary, SampleMemory
from stallwatch.model.verdict import CulpritProcess, Fact, GroupRef, Mismatch, Verdict

# How many calls a rank had made in a group when it counted a step: equal for all members at the same step.
#
# A call too many or too few of the same shape leaves operations, sizes and types as they were; without call sites only
# this count shows it. It is comparable because collective numbers are, and costs no stack.


# Steps on which a rank must be off by the same number. Calls of other threads come now before, now after the step.
_SETTLED_STEPS = 6
_LEAST_RANKS = 3  # of two, nothing tells which is off


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
        if len(ranks) >= _LEAST_RANKS:
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


_MEMBERS_COMPARED = 1024  # each costs a look at every one of its lines
_SHIFTED = 8  # calls in a row that must agree one place off, and not in place
_SETTLED = 4  # calls before it that must agree in place


class Drift(msgspec.Struct, frozen=True):
    """Where members of a group stopped calling the same thing, though nobody waits yet."""

    description: str
    ranks: tuple[int, ...]
    seq: int
    culprits: tuple[int, ...]  # () where nothing tells who differs
    kind: Literal["op", "size", "dtype", "count"]
    reason: str  # a sentence
    shift: int = 0  # of "count": 1 is a call too few, -1 one too many
    backend: str = ""
    expected: Call | None = None
    found: Call | None = None
    sure: bool = True  # False: a guess by what the group did before


def find_drift(summaries: Sequence[RankSummary], world_size: int | None) -> tuple[Drift, ...]:
    """Given samples of ranks, taken about the same time, return where they have parted: at most one place a group."""
    case = Case(summaries, {}, world_size)
    # One that somebody still waits in is a hang, or a call that was only just made.
    parted = {divergence.group: divergence for divergence in find_divergences(case) if not divergence.open}
    found = [_of_divergence(case, divergence) for divergence in parted.values()]
    for group in case.groups:
        if group.index not in parted:
            found += one_off(case, group.index)
    return tuple(sorted(found, key=lambda drift: (drift.description, drift.seq)))


def _of_divergence(case: Case, divergence: Divergence) -> Drift:
    group = case.groups[divergence.group]
    known = divergence.decided_by != "nothing"
    who = f"rank {divergence.culprits[0]}" if known and len(divergence.culprits) == 1 else "some ranks"
    return Drift(
        group.description,
        group.ranks,
        divergence.seq,
        divergence.culprits if known else (),
        divergence.kind,
        f"under #{divergence.seq} of {group.description or 'the default group'} {who} called "
        f"{describe(divergence.found)} where the others called {describe(divergence.expected)}; the job still moves",
        backend=group.backend,
        expected=divergence.expected,
        found=divergence.found,
        sure=divergence.decided_by == "majority",
    )


def one_off(case: Case, group: int) -> list[Drift]:
    """Equal calls that come from other lines from some number on: one place earlier or later than with the others.

    Groups of more than some thousand members are compared only as far as all their calls are the same.
    """
    description = case.groups[group].description
    found = []
    for rank, seq, lines, usual in apart_by_lines(case.streams[group]):
        if any(lines.get(n) != usual.get(n) for n in range(seq - _SETTLED, seq)):
            continue
        for shift, what in ((1, "one call too few"), (-1, "one call too many")):
            pairs = [(lines.get(n), usual.get(n + shift)) for n in range(seq + (shift < 0), seq + _SHIFTED)]
            if all(mine is not None and mine == theirs for mine, theirs in pairs):
                where = describe_site(usual[seq]) if shift > 0 else describe_site(lines[seq])
                reason = (
                    f"rank {rank} made {what} in {description or 'the default group'}, at #{seq} ({where}): since then "
                    "its calls pair with the wrong ones of the others; the job still moves"
                )
                found.append(Drift(description, case.groups[group].ranks, seq, (rank,), "count", reason, shift))
                break
    return found


class ApartByLines(NamedTuple):
    """A member of at least three, and the first number that it called from another line than most of them."""

    rank: int
    seq: int
    lines: Mapping[int, str]  # by number
    usual: Mapping[int, str]  # of most members, by number


def apart_by_lines(members: Mapping[int, GroupStream]) -> list[ApartByLines]:
    """Given the members of a group, of some thousand at most, return those that parted from the others by their
    lines."""
    if len(members) > _MEMBERS_COMPARED or all_alike(members):
        return []
    sites = {rank: lines for rank, member in sorted(members.items()) if (lines := _sites(member))}
    if len(sites) < _LEAST_RANKS:
        return []
    usual = _usual(sites)
    firsts = (
        (rank, next((n for n in sorted(lines) if n in usual and lines[n] != usual[n]), None), lines)
        for rank, lines in sites.items()
    )
    return [ApartByLines(rank, seq, lines, usual) for rank, seq, lines in firsts if seq is not None]


def _sites(member: GroupStream) -> dict[int, str]:
    """Where each number was called from; {} when call sites were not recorded."""
    first = member.stream.first_seq
    calls = {first + i: member.call_at(first + i) for i in range(len(member.stream.calls) // 2)}
    return {seq: call.site for seq, call in calls.items() if call is not None and call.site}


def _usual(sites: Mapping[int, Mapping[int, str]]) -> dict[int, str]:
    """The line that most members called each number from, where most of them agree."""
    votes: dict[int, dict[str, int]] = {}
    for lines in sites.values():
        for seq, site in lines.items():
            counts = votes.setdefault(seq, {})
            counts[site] = counts.get(site, 0) + 1
    usual = {}
    for seq, counts in votes.items():
        site = max(counts, key=lambda s: (counts[s], s))
        if 2 * counts[site] > sum(counts.values()):
            usual[seq] = site
    return usual


def describe_site(site: str) -> str:
    """A call's line as people read it: without its folders."""
    return site.rsplit("/", 1)[-1]


# What a periodic sample of a job that moves says: a verdict where a rank has parted from the others, though nobody
# waits. Pure: what the sample before said is handed in, and out.


_STILL_MOVES = "The job still moves: its results are wrong from here on, or it hangs later"
_COMPARE = "Compare the code paths of the named rank and of another one that lead to this call, and what they depend on"
_DETAIL = (
    "Run a small job with TORCH_DISTRIBUTED_DEBUG=DETAIL: it checks every collective and raises on the first that "
    "differs (slow, so not for production)"
)
_GO_BACK = "Decide whether checkpoints written since then can be used; restart from one before, with the call mended"


def judge_sample(
    evidence: Evidence, before: SampleMemory, wall_minus_monotonic_ns: int
) -> tuple[tuple[Verdict, ...], SampleMemory]:
    """Given dumps of ranks taken about the same time, what the last sample left, and the node's clock (wall minus
    CLOCK_MONOTONIC, ns), return a verdict for each group in which ranks parted, and what to remember."""
    parted = find_drift([reduce_rank(rank) for rank in evidence.ranks], evidence.world_size)
    counts = [count for rank in evidence.ranks for count in step_counts(rank, wall_minus_monotonic_ns)]
    now = offsets(counts)
    found = [_of_drift(drift, evidence.ranks) for drift in parted]
    found += [_of_shift(shift, evidence.ranks) for shift in shifts(before.offsets, now)]
    return tuple(found), SampleMemory(_merged(before.offsets, now))


def _merged(before: Sequence[Offset], now: Sequence[Offset]) -> tuple[Offset, ...]:
    """The first offset of each member stays: a shift is told as long as it lasts."""
    known = {(one.group, one.rank): one for one in now} | {(one.group, one.rank): one for one in before}
    return tuple(known[key] for key in sorted(known, key=lambda key: (key[0], key[1])))


def _of_drift(drift: Drift, ranks: Sequence[RankEvidence]) -> Verdict:
    who = _named(drift.culprits)
    group = drift.description or "the default group"
    if drift.expected is None or drift.found is None:
        few = drift.shift > 0
        what = f"made one call {'fewer' if few else 'more'} than the others at #{drift.seq} of {group}"
        counts = ("one call more", "none") if few else ("none", "one call more")
        mismatch = Mismatch("count", *counts)
        operation = None
    else:
        expected, found = _value(drift, drift.expected), _value(drift, drift.found)
        operation = operation_name(drift.expected.operation)
        mismatch = Mismatch(drift.kind, expected, found)
        if drift.kind == "op":
            what = f"called {operation_name(found)} where the others called {operation} (#{drift.seq} of {group})"
        else:
            with_ = "data type " if drift.kind == "dtype" else ""
            what = f"called {operation} #{drift.seq} of {group} with {with_}{found} where the others have {expected}"
    steps = (f"{_COMPARE}.", f"{_DETAIL}.", f"{_GO_BACK}.")
    verdict = Verdict(
        cause="collective_mismatch",
        culprits=drift.culprits,
        confidence="likely" if drift.culprits and drift.sure else "possible",
        summary=f"{who} {what}. {_STILL_MOVES}.",
        culprit_processes=_processes(drift.culprits, ranks),
        where="collective",
        mismatch=mismatch,
        process_group=GroupRef(drift.description, drift.ranks),
        operation=operation,
        seq=drift.seq,
        because=(Fact(drift.reason, "flight recorders, sampled while the job moves"),),
    )
    return with_steps(verdict, steps)


def _of_shift(shift: Shift, ranks: Sequence[RankEvidence]) -> Verdict:
    number, more = abs(shift.calls), shift.calls > 0
    calls = "one call" if number == 1 else f"{number} calls"
    group = shift.group.description or "the default group"
    what = f"made {calls} {'more' if more else 'fewer'} in {group} than the others in the same number of steps"
    facts = [
        Fact(
            f"between two samples rank {shift.rank} {what}: since then its calls pair with the others' of another "
            "place",
            "call times in the flight recorders against the steps that hooks counted",
        )
    ]
    if shift.whole_steps:
        facts.append(
            Fact("that is as many as whole steps make: steps that it does not count look the same", "hooks' steps")
        )
    steps = (
        f"{_COMPARE}: a call that only some ranks make, an early `continue`, a retry.",
        f"{_DETAIL}.",
        f"{_GO_BACK}.",
    )
    verdict = Verdict(
        cause="collective_mismatch",
        culprits=(shift.rank,),
        confidence="possible" if shift.whole_steps else "likely",
        summary=f"Rank {shift.rank} {what}. {_STILL_MOVES}.",
        culprit_processes=_processes((shift.rank,), ranks),
        where="collective",
        mismatch=Mismatch("count", *(("none", f"{calls} more") if more else (f"{calls} more", "none"))),
        process_group=GroupRef(shift.group.description, shift.group.ranks),
        because=tuple(facts),
        missing=("call sites, which tell the call itself; samples ask for none because they hold the GIL for seconds",),
    )
    return with_steps(verdict, steps)


def _named(culprits: Sequence[int]) -> str:
    if not culprits:
        return "Some ranks"
    return f"Rank {culprits[0]}" if len(culprits) == 1 else "Ranks " + ", ".join(map(str, culprits))


def _value(drift: Drift, call: Call) -> str:
    if drift.kind == "op":
        return call.operation
    if drift.kind == "dtype":
        return call.dtype
    return "no elements" if signature.is_barrier(call.operation) else f"{call.elements} elements"


def _processes(culprits: Sequence[int], ranks: Sequence[RankEvidence]) -> tuple[CulpritProcess, ...]:
    known = {rank.rank: rank for rank in ranks}
    return tuple(
        CulpritProcess(rank, known[rank].host, known[rank].pid) if rank in known else CulpritProcess(rank)
        for rank in culprits
    )
