"""What a periodic sample of a job that moves says: a verdict where a rank has parted from the others, though nobody
waits. Pure: what the sample before said is handed in, and out."""

from collections.abc import Sequence

from stallwatch.diagnosis.calls.drift import Drift, find_drift
from stallwatch.diagnosis.calls.step_counts import Shift, offsets, shifts, step_counts
from stallwatch.diagnosis.recorder import signature
from stallwatch.diagnosis.recorder.reduce import reduce_rank
from stallwatch.diagnosis.step import with_steps
from stallwatch.formats.operation_names import operation_name
from stallwatch.model.evidence import Evidence, RankEvidence
from stallwatch.model.summary import Call, Offset, SampleMemory
from stallwatch.model.verdict import CulpritProcess, Fact, GroupRef, Mismatch, Verdict

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
