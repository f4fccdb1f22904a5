"""The lines at which the calls of a verdict were made: by its culprits, and by those that wait."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim
from stallwatch.diagnosis.frames.code_origin import Origin, code_origin, job_frame
from stallwatch.diagnosis.report.text import format_location, frame_of, parallel_call, waiters
from stallwatch.formats.rank_ranges import rank_ranges
from stallwatch.model.evidence import CodeFrame


class Lines(NamedTuple):
    """Where calls were made, in words."""

    others: str = ""  # "called at …" or "standing at …": the line of those that wait
    callers: tuple[tuple[int, str], ...] = ()  # of culprits that stand at that very line: who called them there


def called_at(analysis: Analysis, ranks: Sequence[int], site: str = "") -> str:
    """Given ranks, and the recorder's line of a call, return where they made it: by that line, with the text of the
    first that stands there in communication, else by that one's own."""
    recorded = frame_of(site)
    for rank in ranks:
        activity = analysis.case.activity(rank)
        same = recorded is None or (activity.place.frame and activity.place.frame.line == recorded.line)
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
    apart = [(rank, _caller(analysis, rank, stack, frames)) for rank, stack in stacks.items()]
    callers = tuple((rank, caller) for rank, caller in apart if caller)
    if callers:
        at += f", from {_caller(analysis, one, frames, stacks[callers[0][0]])}"
    return Lines(at, callers)


def _caller(analysis: Analysis, rank: int, stack: tuple[CodeFrame, ...], other: tuple[CodeFrame, ...]) -> str:
    """The nearest caller of the line of the job at which both stacks stand, of the first of them, that is not the
    other's as well; "" where they stand at different lines, or came there alike."""
    own, met = _of_job(stack), _of_job(other)
    if not own or not met or _line(own[0]) != _line(met[0]):
        return ""
    evidence = analysis.case.evidence.get(rank)
    for frame, theirs in zip(own, met, strict=False):
        if _line(frame) != _line(theirs):
            return format_location(job_frame((frame,), evidence.sources if evidence else ()))
    return ""


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
