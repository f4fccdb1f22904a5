"""The lines at which the calls of a verdict were made: by its culprits, and by those that wait."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim
from stallwatch.diagnosis.frames.code_origin import Origin, code_origin, job_frame
from stallwatch.diagnosis.recorder import signature
from stallwatch.diagnosis.report.text import format_location, frame_of, parallel_call, waiters
from stallwatch.formats.rank_ranges import rank_ranges
from stallwatch.model.evidence import CodeFrame


class Lines(NamedTuple):
    """Where calls were made, in words."""

    others: str = ""  # "called at …" or "standing at …": the line of those that wait
    # Of culprits that stand at that very line: "called from …", who called them there, or "by …", what it called.
    callers: tuple[tuple[int, str], ...] = ()


def called_at(analysis: Analysis, ranks: Sequence[int], site: str = "", what: str = "") -> str:
    """Given ranks, and the recorder's line of a call, return where they made it: by that line, with the text of the
    first that stands there in communication, else by that one's own. `what` they called: by its own line no rank made
    it whose stack names another call, as where a second thread made it."""
    recorded = frame_of(site)
    for rank in ranks:
        activity = analysis.case.activity(rank)
        same = recorded is None or (activity.place.frame and activity.place.frame.line == recorded.line)
        if signature.are_different(what, activity.call.collective or ""):
            continue
        if activity.place.frame and activity.call.in_collective and same:
            return format_location(activity.place.frame)  # with its text
    return format_location(recorded)


def _stands_at(analysis: Analysis, rank: int, site: str) -> str:
    activity = analysis.case.activity(rank)
    called = called_at(analysis, (rank,), site)
    if called:
        return f"called at {called}"
    stands = activity.place.gpu_sync or activity.call.in_collective is not False
    return f"standing at {format_location(activity.place.frame)}" if stands and activity.place.frame else ""


_PLACES_SHOWN = 2  # where those that wait stand at several lines


def _several_places(ranks: Sequence[int], places: Sequence[str]) -> str:
    """ "rank 0 at pipe.py:127 in pipe, ranks 2-3 at pipe.py:131 in pipe, 4 more elsewhere"."""
    by_place: dict[str, list[int]] = {}
    for rank, place in zip(ranks, places, strict=True):
        if place:
            by_place.setdefault(place.partition(" at ")[2], []).append(rank)
    shown = sorted(by_place.items(), key=lambda item: (-len(item[1]), item[1]))[:_PLACES_SHOWN]
    more = len(ranks) - sum(len(there) for _, there in shown)
    said = [f"{waiters(rank_ranges(there), verb='')} at {place}" for place, there in shown]
    return ", ".join([*said, f"{more} more elsewhere"] if said and more else said)


def _others(analysis: Analysis, claim: Claim) -> list[int]:
    """Of a mismatch after which nobody is known to wait: all but the culprits, of whom a stack was read."""
    if claim.cause != "collective_mismatch" or not claim.culprits:
        return []
    return [
        rank for rank in analysis.case.observed if rank not in claim.culprits and analysis.case.activity(rank).known
    ]


def lines_of(analysis: Analysis, claim: Claim, waiting: Sequence[int]) -> Lines:
    """Given those that wait, return the line of the call in which most of them stand, where they stand at several the
    first of these; and where the culprits stand at that line, too, in a helper that all share, who called it."""
    waiting = waiting or _others(analysis, claim)
    sites: dict[int, str] = {}
    records: dict[int, int] = {}
    for wait in analysis.graph.waits:
        call = analysis.case.call(wait.rank, wait.pending)
        if call is not None and (not claim.seq or (wait.point.group, wait.point.seq) == (claim.group, claim.seq)):
            sites.setdefault(wait.rank, call.site)
            records.setdefault(wait.rank, wait.pending.record)
    places = [_stands_at(analysis, rank, sites.get(rank, "")) for rank in waiting]
    counts = Counter(places)
    most = max(sorted(counts), key=counts.__getitem__, default="")
    if not most or 2 * counts[most] <= len(places):
        return Lines(_several_places(waiting, places))
    one = waiting[places.index(most)]
    frames = _frames_of_call(analysis, one, records.get(one))
    through = parallel_call(frames)
    at = f"{most}, in {through}" if through else most
    stacks = {rank: analysis.case.activity(rank).place.stack for rank in sorted(claim.culprits)}
    apart = {rank: _caller(analysis, rank, stack, frames) for rank, stack in stacks.items()}
    if called := {rank: caller for rank, caller in apart.items() if caller}:
        at += f", from {_caller(analysis, one, frames, stacks[min(called)])}"
        return Lines(at, tuple((rank, f"called from {caller}") for rank, caller in called.items()))
    within = {rank: way for rank, stack in stacks.items() if (way := _way(stack, frames))}
    if within:
        at += f", by {_way(frames, stacks[min(within)])}"
    return Lines(at, tuple((rank, f"by {way}") for rank, way in within.items()))


def _caller(analysis: Analysis, rank: int, stack: tuple[CodeFrame, ...], other: tuple[CodeFrame, ...]) -> str:
    """The nearest caller of the line of the job at which both stacks stand, of the first of them, that is not the
    other's as well; "" where they stand at different lines, or came there alike."""
    if not _at_one_line(stack, other):
        return ""
    evidence = analysis.case.evidence.get(rank)
    frame = _first_apart(_of_job(stack), _of_job(other))
    return format_location(job_frame((frame,), evidence.sources if evidence else ())) if frame else ""


def _way(stack: tuple[CodeFrame, ...], other: tuple[CodeFrame, ...]) -> str:
    """The line of a framework, below the line of the job at which both stacks stand, where the first of them goes
    another way than the other: `trainer.fit()` is one line for every rank. "" where no framework's line tells them
    apart."""
    if not _at_one_line(stack, other):
        return ""
    frame = _first_apart(_of_frameworks(stack), _of_frameworks(other))
    # Everybody finds it by its package: "transformers/trainer.py".
    return f"{frame.filename.rpartition('-packages/')[2]}:{frame.line} in {frame.name}" if frame else ""


def _at_one_line(stack: tuple[CodeFrame, ...], other: tuple[CodeFrame, ...]) -> bool:
    own, met = _of_job(stack), _of_job(other)
    return bool(own and met and _line(own[0]) == _line(met[0]))


def _first_apart(own: Sequence[CodeFrame], other: Sequence[CodeFrame]) -> CodeFrame | None:
    pairs = zip(own, other, strict=False)
    return next((frame for frame, theirs in pairs if _line(frame) != _line(theirs)), None)


def _of_frameworks(stack: tuple[CodeFrame, ...]) -> list[CodeFrame]:
    """Below the innermost line of the job, outermost first."""
    origins = [code_origin(frame.filename).origin for frame in stack]
    inside = stack[: origins.index(Origin.JOB)]
    return [frame for frame in reversed(inside) if code_origin(frame.filename).origin is Origin.LIBRARY]


def _of_job(stack: tuple[CodeFrame, ...]) -> list[CodeFrame]:
    return [frame for frame in stack if code_origin(frame.filename).origin is Origin.JOB]


def _line(frame: CodeFrame) -> tuple[str, int]:
    return frame.filename, frame.line


def _frames_of_call(analysis: Analysis, rank: int, record: int | None) -> tuple[CodeFrame, ...]:
    """Of the call that a rank waits in: by its stack where that shows it, else by its recorder."""
    activity, evidence = analysis.case.activity(rank), analysis.case.evidence.get(rank)
    if activity.call.in_collective or record is None or evidence is None:
        return activity.place.stack
    newest = max(evidence.recorders, key=lambda recorder: recorder.look, default=None)
    operations = newest.operations if newest else ()
    return next((entry.frames for entry in reversed(operations) if entry.record_id == record), ())
