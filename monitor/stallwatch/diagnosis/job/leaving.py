"""Who has left: the loop that others are still in, by the blocks of code around the lines they stand at; or the job,
because others were waited for at its start, or because all of it was ended from outside: by one signal within a second,
or asked to end (SIGTERM) and left in order."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from signal import SIGKILL, SIGTERM
from typing import TYPE_CHECKING

from stallwatch.diagnosis.frames.code_origin import Origin, code_origin
from stallwatch.diagnosis.logs.consequence import SENT
from stallwatch.formats.xid import FOLLOW_ON
from stallwatch.model.evidence import NodeEvidence, ProcessLook
from stallwatch.model.process import ENDED, SHELL_SIGNAL
from stallwatch.model.signals import OWN_FAULTS, named_signal
from stallwatch.progress.ticks import RAN_AHEAD_NS

if TYPE_CHECKING:
    from stallwatch.diagnosis.job.case import Case

AT_ONCE_NS = 20_000_000  # ends are seen by pidfd, in milliseconds
CLEARLY_LATER_NS = 300_000_000  # a peer's end is felt by the others within less
_TOGETHER_NS = 1_000_000_000
_SHORTLY_BEFORE_SECONDS = 60.0
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


def went_on_without(case: Case, waiting: Iterable[int], ends: Mapping[int, ProcessLook | None]) -> bool:
    """Whether all that wait have stepped for long since these left (without a hook: began to stand). Where somebody who
    lives has not entered what they wait in, that is a world that shrank in its processes; who steps alone until it
    meets the others waits for those that left."""
    hosts = {case.activity(rank).host for rank in (*ends, *waiting)}
    times = [end.ended_ns for end in ends.values() if end is not None and end.ended_ns is not None]
    if len(hosts) > 1 or len(times) < len(ends):
        return False
    return all(_stepped_since(case, rank, max(times)) for rank in waiting)


def _stepped_since(case: Case, rank: int, left_ns: int) -> bool:
    evidence = case.evidence.get(rank)
    if evidence is None or not evidence.heartbeat:
        return rank in case.went_on
    return (evidence.heartbeat[-1].last_step_ns or 0) > left_ns + RAN_AHEAD_NS


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

TIMED_OUT = re.compile(r"tim(?:ed|e)[ -]?out", re.IGNORECASE)
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
        timed_out = activity.exceptions.tell_of_a_peer and TIMED_OUT.search(activity.exceptions.text or "")
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


def signal_of(end: ProcessLook) -> int | None:
    """Return the signal that ended a process, also where a shell in between tells it by an exit code."""
    if end.exit_signal is not None:
        return end.exit_signal
    shell = end.exit_code is not None and end.exit_code > SHELL_SIGNAL
    return end.exit_code - SHELL_SIGNAL if shell and end.exit_code is not None else None


def may_be_cleared_away(case: Case, ranks: Collection[int], ends: Mapping[int, ProcessLook | None]) -> bool:
    """Given ranks that were killed at once, return whether some of several may only have been cleared away after
    another, as launchers do within milliseconds: by SIGKILL, of which the kernel's log does not tell."""
    logged = {(node.host, e.pid) for node in case.nodes for e in node.kernel_events if e.kind == "oom_kill"}
    untold = [rank for rank in ranks if (case.activity(rank).host, case.activity(rank).pid) not in logged]
    return len(ranks) > 1 and any((end := ends[r]) is not None and signal_of(end) == SIGKILL for r in untold)


def unseen_since(case: Case, gone: Collection[int]) -> list[int]:
    """Return the ranks of which nothing was seen any more, neither process nor stack nor dump, in the look that shows
    the first of `gone` as such, nor later: they may live, or have gone before it."""
    since = min((_first_look_of_end(case, rank) for rank in gone), default=1)
    return [rank for rank in case.observed if rank not in gone and _last_look(case, rank) < since]


def _first_look_of_end(case: Case, rank: int) -> int:
    evidence = case.evidence.get(rank)
    looks = evidence.processes if evidence else ()
    by_hook = (look for look, beat in enumerate(evidence.heartbeat if evidence else (), 1) if beat.ended)
    return min((look.look for look in looks if look.state in ENDED or is_told(look)), default=next(by_hook, 1))


def _last_look(case: Case, rank: int) -> int:
    evidence, summary = case.evidence.get(rank), case.summaries.get(rank)
    looks = [summary.look] if summary is not None else []
    if evidence is not None:
        looks += [look.look for look in evidence.processes]
        looks += [look.look for look in evidence.stacks if look.threads]  # not one that py-spy failed to read
        looks += [look.look for look in evidence.recorders]
    return max(looks, default=0)


def ended_alike(case: Case, ends: dict[int, ProcessLook | None]) -> str | None:
    """Given the ranks that are gone and how each ended, return in words how the whole job was ended from outside, None
    where it was not.

    Nothing that a job dies of by itself may be seen: a kill for memory, a fault of a GPU, an exception, another first
    death. What the ranks did before is another question: where they stood, that is what counts.
    """
    known = [end for end in ends.values() if end is not None]
    if len(ends) + len(unseen_since(case, ends)) < len(case.observed) or not len(ends) == len(known) > 1:
        return None
    if any(_has_fault(node, known) for node in case.nodes):
        return None
    if any(end.out_of_memory for end in known):
        return None
    told = {rank: end for rank, end in ends.items() if end is not None and is_told(end)}
    signals = {signal_of(end) for end in told.values()}
    if signals & OWN_FAULTS or _raised(case, ends, signals):
        return None
    together = are_together(case, ends)
    # Who gets no processor time dies long after a kill: of those that were seen to be killed it is told.
    by_one_signal = len(signals) == 1 and None not in signals and are_together(case, told)
    if len(told) < len(ends) and not (by_one_signal and _one_was_not_seen(told, ends)):
        return None
    asked = all(signal_of(end) == SIGTERM or (signal_of(end) is None and end.exit_code == 0) for end in told.values())
    if not (asked and SIGTERM in signals) and not by_one_signal:
        return None
    names = " or ".join(named_signal(signal) if signal else "exit code 0" for signal in signals)
    ranks = f"all {len(told)} ranks{'' if len(told) == len(case.observed) else ' that were seen'}"
    return f"{ranks} ended by {names}{' within a second' if together else ''}"


def is_told(end: ProcessLook) -> bool:
    """Whether a look says how its process ended."""
    return end.exit_signal is not None or end.exit_code is not None


def _raised(case: Case, ends: dict[int, ProcessLook | None], signals: set[int | None]) -> bool:
    """Whether somebody failed by itself. Whoever was killed a moment after its peers may still have written that they
    are gone (seen where everything was killed by hand at a load of 13), unless all of these were killed at once, and
    later: so a launcher clears away after a first death."""
    wrote = [rank for rank in ends if case.activity(rank).exceptions.text is not None]
    if not wrote:
        return False
    if signals != {SIGKILL} or not all(case.activity(rank).exceptions.tell_of_a_peer for rank in wrote):
        return True
    times = sorted(end.ended_ns for end in ends.values() if end is not None and end.ended_ns is not None)
    return len(times) < 2 or (times[1] - times[0] >= CLEARLY_LATER_NS and times[-1] - times[1] <= AT_ONCE_NS)


def _one_was_not_seen(told: dict[int, ProcessLook], ends: dict[int, ProcessLook | None]) -> bool:
    """Most are known to have been killed, and nobody saw that who is gone unseen went first: nobody is known to have
    died of it. Of one whose time nobody saw nothing orders the others either: where a whole job is killed as it is
    looked at, how the last one ended is told after the look."""
    times = {rank: end.ended_ns for rank, end in ends.items() if end is not None and end.ended_ns is not None}
    first = min(times[rank] for rank in told)
    return len(ends) < 2 * len(told) and all(at_ns >= first - AT_ONCE_NS for at_ns in times.values())


def are_together(case: Case, ends: Mapping[int, ProcessLook | None]) -> bool:
    """On each host, by its own clock; one rank of a host shows nothing."""
    times: dict[str | None, list[int]] = {}
    for rank, end in ends.items():
        if end is None or end.ended_ns is None:
            return False
        times.setdefault(case.activity(rank).host, []).append(end.ended_ns)
    return all(len(of_host) > 1 and max(of_host) - min(of_host) <= _TOGETHER_NS for of_host in times.values())


def _has_fault(node: NodeEvidence, ends: list[ProcessLook]) -> bool:
    """Whether the kernel told of something, shortly before, that may have ended them. Its log goes back for months, and
    a GPU's channels are cleared away because a process was ended (XID 43, 45)."""
    pids = {end.pid for end in ends} - {None}
    first_ns = min((end.ended_ns for end in ends if end.ended_ns is not None), default=None)
    # Their cgroups have counted no kill for memory: that of a process that is none of theirs was another job's.
    spared = all(end.exit_signal == SIGKILL and end.out_of_memory is False for end in ends)
    return any(
        event.kind in ("xid", "sxid", "off_bus", "oom_kill")
        and event.xid not in FOLLOW_ON
        and not (spared and event.kind == "oom_kill" and event.pid not in {*pids, None})
        and (
            event.pid in pids
            or event.seconds is None
            or first_ns is None
            or first_ns / 1e9 - event.seconds <= _SHORTLY_BEFORE_SECONDS
        )
        for event in node.kernel_events
    )
