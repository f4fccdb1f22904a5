"""Who has left: the loop that others are still in, by the blocks of code around the lines they stand at; or the job,
because others were waited for at its start."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from stallwatch.diagnosis.frames.code_origin import Origin, code_origin
from stallwatch.diagnosis.logs.consequence import SENT

if TYPE_CHECKING:
    from stallwatch.diagnosis.job.case import Case

_LOOPS = ("for", "while")
# What is looped over, not what it is called in the loop: "for shard in self.layers" is no loop over data.
_OVER_DATA = re.compile(r"\bin\b.*(?P<data>loader|dataset|datapipe|datamodule|sampler)", re.IGNORECASE)
_OVER_STAGES = re.compile(r"epoch|stage|phase|fold|trial|round", re.IGNORECASE)
_Loop = tuple[str, str, int, str]  # file, function, line, header


def have_left(case: Case, ranks: Iterable[int], others: Iterable[int]) -> bool | None:
    """True when none of `ranks` is in the loop in which all `others` are, False when they are in it or have not come to
    it yet; None: not told.

    Of a loop within a loop only one over data counts, or one within epochs: rounds within a step are the step's own.
    So are the loops of what a step calls: the loop that was left belongs to a function that `ranks` are still in, or to
    one that all of these were called from outside of any loop.
    """
    ranks, others = tuple(ranks), tuple(others)
    theirs = [loops for rank in others if (loops := _loops(case, rank))]
    mine = [_loops(case, rank) for rank in ranks]
    if not theirs or not mine or any(loops is None for loops in mine):
        return None
    common = [loop for loop in theirs[0] if all(loop in loops for loops in theirs[1:])]
    if not common:
        return None
    missing = [loop for loop in common if not any(loops and loop in loops for loops in mine)]
    if not missing or stand_before(case, ranks, others):
        return False
    if missing[0] is common[0]:
        return True if _is_in(case, ranks, missing[0]) or not _is_called_by_library(case, others) else None
    if _OVER_STAGES.search(common[common.index(missing[0]) - 1][3]):
        return True
    return any(_OVER_DATA.search(header) for _, _, _, header in missing)


def stand_before(case: Case, ranks: Iterable[int], others: Iterable[int]) -> bool:
    """True when `ranks` stand at an earlier line than `others` of one function, and no loop goes round both: what comes
    later they have not left."""
    return all(_is_before(case, rank, other) for other in others for rank in ranks)


def _is_before(case: Case, rank: int, other: int) -> bool:
    mine, theirs = _loops(case, rank), _loops(case, other)
    if mine is None or theirs is None or set(mine) & set(theirs):
        return False
    pairs = zip(reversed(case.activity(rank).place.stack), reversed(case.activity(other).place.stack), strict=False)
    here, there = next(((a, b) for a, b in pairs if a != b), (None, None))
    if here is None or there is None:
        return False
    return (here.filename, here.name) == (there.filename, there.name) and here.line < there.line


def _is_in(case: Case, ranks: Iterable[int], loop: _Loop) -> bool:
    """True when all of them stand in the function that holds the loop."""
    return all(any((f.filename, f.name) == loop[:2] for f in case.activity(rank).place.stack) for rank in ranks)


def _is_called_by_library(case: Case, ranks: Iterable[int]) -> bool:
    """True when the job's own code is called back from a framework, whose own loops nobody has read."""
    for rank in ranks:
        origins = [code_origin(frame.filename).origin for frame in case.activity(rank).place.stack]
        own = [index for index, origin in enumerate(origins) if origin is Origin.JOB]
        if own and any(origin is Origin.LIBRARY for origin in origins[own[0] : own[-1]]):
            return True
    return False


def handles(case: Case, rank: int) -> bool:
    """True when the rank stands in code that runs because of an exception: in an `except`."""
    return any(block.kind == "except" for _, _, block in case.activity(rank).place.blocks or ())


def cleans_up(case: Case, rank: int) -> bool:
    """True when the rank stands in a `finally`, which runs with an exception and without."""
    return any(block.kind == "finally" for _, _, block in case.activity(rank).place.blocks or ())


def raised_alone(case: Case, rank: int) -> bool:
    """True when an exception of its own is known, and no other rank handles the same: a program may spend its life in
    an `except ImportError`."""
    exceptions = case.activity(rank).exceptions
    if not exceptions.text or exceptions.tell_of_a_peer:
        return False
    handled = exceptions.handled
    return handled is None or not any(
        other.exceptions.handled is not None
        and (other.exceptions.handled.kind, other.exceptions.handled.frames[:1]) == (handled.kind, handled.frames[:1])
        for number, other in case.activities.items()
        if number != rank
    )


def told_by(header: str) -> str:
    """The words of a loop's header by which it is told what it runs over; nothing else of it."""
    data, stages = _OVER_DATA.search(header), _OVER_STAGES.search(header)
    return " ".join((*(["in", data["data"]] if data else ()), *([stages[0]] if stages else ())))


def _loops(case: Case, rank: int) -> list[_Loop] | None:
    """Outermost first; None where its source was not read."""
    blocks = case.activity(rank).place.blocks
    if blocks is None:
        return None
    return [(file, name, block.line, block.text) for file, name, block in blocks if block.kind in _LOOPS]


# Ranks that ended because others were waited for at the start of the job: by their time-out, or by their launcher.

_TIMED_OUT = re.compile(r"tim(?:ed|e)[ -]?out", re.IGNORECASE)
_LATER_NS = 30_000_000  # between two ends of which one may be the other's cause


def ended_in_vain(case: Case) -> frozenset[int]:
    """Ranks that ended where they were last seen to wait at the start of the job, for one that did not come, and of
    whose own trouble nothing is known: their time-out ended them, by an exception that names no rank."""
    waiting = {rank for rank in case.observed if case.activity(rank).place.in_store_or_init}
    elsewhere = [rank for rank in case.observed if rank not in waiting and _stood_elsewhere(case, rank)]
    # Or all waited, each for the others, and a log tells that time was over: one came under another's rank, say.
    all_timed_out = len(waiting) == len(case.observed) and bool(case.logs.of_kind("init_timeout"))
    if not (elsewhere or case.meeting.apart or case.meeting.never_seen or all_timed_out):
        return frozenset()
    return frozenset(rank for rank in waiting if _failed_by_others(case, rank))


def _stood_elsewhere(case: Case, rank: int) -> bool:
    """Last seen outside of communication; if it is gone, others ended it."""
    activity = case.activity(rank)
    by_itself = activity.end.gone and activity.end.exit_signal not in SENT
    return activity.known and activity.call.in_collective is False and not by_itself


def _failed_by_others(case: Case, rank: int) -> bool:
    activity = case.activity(rank)
    own = activity.exceptions.text is not None and not activity.exceptions.tell_of_a_peer
    return activity.end.gone and activity.end.exit_signal is None and bool(activity.end.exit_code) and not own


def cleared_away(case: Case) -> frozenset[int]:
    """Ranks that were ended by a signal after the first of their node had ended because it had waited in vain: they
    lived and did not come, and their launcher cleared them away."""
    ends = {
        rank: end for rank in case.observed if case.activity(rank).end.gone and (end := _end(case, rank)) is not None
    }
    first: dict[str | None, int] = {}
    for rank, (at_ns, signal) in ends.items():
        activity = case.activity(rank)
        timed_out = activity.exceptions.tell_of_a_peer and _TIMED_OUT.search(activity.exceptions.text or "")
        if (timed_out or rank in case.ended_at_the_start) and signal is None:
            first[activity.host] = min(at_ns, first.get(activity.host, at_ns))
    return frozenset(
        rank
        for rank, (at_ns, signal) in ends.items()
        if signal in SENT
        and not case.activity(rank).end.out_of_memory
        and at_ns > first.get(case.activity(rank).host, at_ns) + _LATER_NS
    )


def _end(case: Case, rank: int) -> tuple[int, int | None] | None:
    """When the rank's process ended, on its node's clock, and by which signal; None where the first is not known."""
    evidence = case.evidence.get(rank)
    looks = [look for look in evidence.processes if look.ended_ns is not None] if evidence else []
    last = max(looks, key=lambda look: look.look, default=None)
    return None if last is None or last.ended_ns is None else (last.ended_ns, last.exit_signal)
