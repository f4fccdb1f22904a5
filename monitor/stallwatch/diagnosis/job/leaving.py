"""Whether ranks have left the loop that others are still in: by the blocks of code around the lines they stand at."""

import re
from collections.abc import Iterable

from stallwatch.diagnosis.frames.code_origin import Origin, code_origin
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
