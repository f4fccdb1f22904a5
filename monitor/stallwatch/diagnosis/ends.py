"""How and when processes of ranks ended: in words, and in which order."""

from signal import SIGKILL, SIGTERM

import msgspec

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import named
from stallwatch.diagnosis.job.leaving import is_told, signal_of
from stallwatch.formats.rank_ranges import verb
from stallwatch.model.evidence import ProcessLook
from stallwatch.model.signals import named_signal


def end_of(analysis: Analysis, rank: int) -> ProcessLook | None:
    """The look that shows how a rank's process ended, else the last one, with the exit code that its hook said; None
    where nobody looked at the process and its hook does not say."""
    evidence = analysis.case.evidence.get(rank)
    looks = [look for look in evidence.processes if evidence] if evidence else []
    ended = [look for look in looks if look.exit_code is not None or look.exit_signal is not None]
    last = max(ended or looks, key=lambda look: look.look, default=None)
    beats = evidence.heartbeat if evidence else ()
    said = next((beat for beat in reversed(beats) if beat.ended and not beat.is_child), None)
    if ended or said is None or said.exit_code is None:
        return last
    if last is None:
        return ProcessLook(source="", look=1, exit_code=said.exit_code, exit_source="hook")
    return msgspec.structs.replace(last, exit_code=said.exit_code, exit_source="hook")  # its last word


def exit_code(end: ProcessLook | None) -> int | None:
    """The exit code of an end; None where a signal ended it, or nobody saw it."""
    return None if end is None or end.exit_signal is not None else end.exit_code


def end_times(ends: dict[int, ProcessLook | None]) -> dict[int, int]:
    """When each ended, on its node's clock, of those of which it is known."""
    return {rank: end.ended_ns for rank, end in ends.items() if end is not None and end.ended_ns is not None}


def earliest(analysis: Analysis, ranks: list[int], ends: dict[int, ProcessLook | None], apart_ns: int = 0) -> list[int]:
    """The first to end, where one node's clock orders them; with those that ended within `apart_ns` after it."""
    times = end_times({rank: ends[rank] for rank in ranks})
    hosts = {analysis.case.activity(rank).host for rank in ranks}
    if len(times) < len(ranks) or len(hosts) > 1 or len(ranks) < 2:
        return sorted(ranks)
    first = min(times.values())
    return sorted(rank for rank, at in times.items() if at <= first + apart_ns)


def ahead_ns(analysis: Analysis, ends: dict[int, ProcessLook | None], one: int, other: int) -> int | None:
    """By how much one ended before another; None where no clock tells."""
    times, of_one, of_other = end_times(ends), analysis.case.activity(one).host, analysis.case.activity(other).host
    return times[other] - times[one] if {one, other} <= times.keys() and of_one == of_other else None


def is_known(end: ProcessLook | None) -> bool:
    return end is not None and is_told(end)


def is_untold(end: ProcessLook | None) -> bool:
    """Neither how nor when it ended."""
    return end is None or (not is_told(end) and end.ended_ns is None)


def is_swept(end: ProcessLook | None) -> bool:
    """So do launchers and schedulers end whoever is left, or all."""
    return end is not None and not end.out_of_memory and signal_of(end) in (SIGTERM, SIGKILL)


def sentence(rank: int, end: ProcessLook | None) -> str:
    if end is None or not is_told(end):
        return f"rank {rank}'s process is gone; nobody saw how it ended"
    memory = ", out of memory" if end.out_of_memory else ""
    if end.exit_signal is not None:
        return f"rank {rank} was ended by {named_signal(end.exit_signal)}{memory}"
    return f"rank {rank} ended with exit code {end.exit_code}{memory}"


def sentence_of(ranks: list[int], ends: dict[int, ProcessLook | None]) -> str:
    told = [sentence(rank, ends[rank]) for rank in ranks]
    hows = {text.partition(" ended ")[2] for text in told}
    if hows == {""}:
        return f"{named(ranks)} {verb(ranks, 'is', 'are')} gone, and nobody saw how"
    return f"{named(ranks)} ended {hows.pop()}" if len(hows) == 1 else "; ".join(told)


def seen_by(end: ProcessLook | None) -> str:
    return (end.exit_source or "/proc") if end else "/proc"
