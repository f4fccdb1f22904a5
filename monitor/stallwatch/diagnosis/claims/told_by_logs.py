"""What torch, gloo, NCCL, the launcher and the kernel wrote themselves: the only witness where there are logs and
nothing else, and of ranks that left no dump."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, named
from stallwatch.diagnosis.logs.consequence import passes_on
from stallwatch.diagnosis.logs.failure_line import headline
from stallwatch.diagnosis.logs.later_failures import is_before
from stallwatch.diagnosis.logs.log_reading import LogReading
from stallwatch.diagnosis.logs.logged_failure import LoggedFailure
from stallwatch.diagnosis.logs.ranks_meeting import incomplete, oddities, place_of, too_many, who_is_missing
from stallwatch.diagnosis.logs.remedies_by_origin import recorder_settings, words_in
from stallwatch.diagnosis.logs.remedies_by_text import Words
from stallwatch.diagnosis.logs.watchdog_reports import UNTOLD, Waiter, places_of
from stallwatch.formats.operation_names import operation_name
from stallwatch.model.log_event import PROCESS_ENDS
from stallwatch.model.verdict import Cause, Confidence, Fact, Rejected

_NO_RANK = ("the rank: the launcher's summary of that node, or lines that begin with [rankN]:",)
_MOST_FACTS = 6
_STALE_STORE_STEP = (
    "Look who else uses MASTER_PORT (`ss -ltnp | grep MASTER_PORT`): end what an older run left there, or take another "
    "port."
)
_GONE = (
    *PROCESS_ENDS, "memory_killed", "node_failed", "evicted", "actor_died", "native_crash", "program_died",
)  # fmt: skip
_RAISED = (
    "exception", "native_exception", "out_of_memory", "memory_allocation", "shared_memory", "dataloader_killed",
    "open_files", "locked_memory", "duplicate_gpu", "cuda_error", "native_crash", "not_started", "nccl_no_interface",
    "nccl_no_adapter",
    "name_unresolved", "address_in_use", "nccl_version_mismatch", "nccl_error",
)  # fmt: skip


def ended(analysis: Analysis) -> Saying:
    """A process that ended by itself, by its launcher's word, where no process was seen to end; where all ended of what
    one of them raised and all passed on, that one."""
    told = [] if analysis.case.logs.ended_together else _first_of(analysis, _GONE)
    if any(activity.end.gone for activity in analysis.case.activities.values()):
        passed = [one for one in analysis.case.logs.causes if one.event.passed_from is not None]
        return replace(_claim(analysis, "rank_exited", passed, ()), told_waiting=()) if passed else None
    ended_too = {one.rank for one in analysis.case.logs.told if one.kind in PROCESS_ENDS and one.rank is not None}
    raised = _first_of(analysis, _RAISED)
    if not told and raised and all(one.rank in ended_too for one in raised if one.rank is not None):
        told = raised if any(one.rank is not None for one in raised) else []
    if not told:
        return None
    return _claim(analysis, "rank_exited", told, ())


def raised(analysis: Analysis) -> Saying:
    """A failure of a rank's own that its log ends with, where the rank was not seen alive."""
    told = _first_of(analysis, _RAISED) or _left_on_a_signal(analysis)
    if not told or analysis.case.logs.only_warned:
        return None
    alone = len(told) == 1 and any(one.consequence and one.event.exception for one in analysis.case.logs.told)
    if told[0].kind == "nccl_error" and not alone:
        return None  # a call that failed without a reason is its own only where the others lost a peer
    return _claim(analysis, "rank_raised", told, ())


def _left_on_a_signal(analysis: Analysis) -> list[LoggedFailure]:
    """Who raised at SIGTERM, where others had begun a further step and waited there: ranks see it at other steps."""
    first = analysis.case.logs.first
    waits = [waiter for group in analysis.case.logs.groups for waiter in group.waiters.values()]
    if first is None or not first.event.exception or first.rank in (None, *(waiter.rank for waiter in waits)):
        return []
    before = waits and all(is_before(first.event, waiter.event) for waiter in waits)
    return _first_of(analysis, ("cancelled",)) if before else []


def over(analysis: Analysis) -> Saying:
    """The job was ended from outside, or has ended by itself."""
    logs = analysis.case.logs
    if _seen(analysis) or analysis.hangs:
        return None
    if logs.groups:
        return None  # it hung before
    if logs.ended_well:
        return Claim("job_ended", (), "likely", (Fact("the logs tell an ordinary end and no failure", "logs"),))
    if logs.ended_together:
        many = len(logs.ended_together)
        said = f"all {many} ranks were ended by the same signal at once, and nothing tells of another end"
        return Claim("job_ended", (), "likely", (Fact(said, "logs"),))
    first = logs.first
    ended_by_others = [one for one in logs.told if one.kind == "cancelled"]
    if first is None and ended_by_others and all(one.kind in ("cancelled", *PROCESS_ENDS) for one in logs.told):
        first = ended_by_others[0]  # and whoever else ended was ended by that
    if first is not None and first.kind in ("cancelled", "interrupted"):
        fact = Fact(f"{headline(first)}", first.place)
        return Claim("job_ended", (), "likely", (fact,), by_line=words_in(first, logs.events))
    return None


def barrier(analysis: Analysis) -> Saying:
    """monitoredBarrier names who did not come."""
    for told in analysis.case.logs.told:
        if told.kind == "barrier_absent" and told.event.ranks:
            absent = tuple(sorted(other for other in told.event.ranks if other != told.rank))
            return Claim(
                cause="not_entered",
                culprits=absent,
                confidence="likely",
                because=(Fact(told.event.text.strip()[:300], told.source),),
                where="unknown",
                operation="monitored_barrier",
            )
    return _of_traces(analysis)


def _of_traces(analysis: Analysis) -> Claim | None:
    """torch's desync report: who had not joined the collective in which others waited, by all ranks' traces. Its ranks
    count within the group: they are the job's where no rank is known to have another place."""
    logs = analysis.case.logs
    told = [one for one in logs.of_kind("desync_absent") if one.event.ranks and not one.consequence]
    elsewhere = any(e.rank is not None and e.group_rank not in (None, e.rank) for e in logs.events)
    absent = set(told[0].event.ranks).intersection(*(one.event.ranks for one in told[1:])) if told else set()
    waiting = {rank for group in logs.groups for rank in group.waiters}
    if not absent or elsewhere or absent & waiting or analysis.graph.waits:
        return None
    return Claim(
        cause="not_entered",
        culprits=tuple(sorted(absent)),
        confidence="likely",
        because=(Fact(told[0].event.text.strip()[:300], told[0].source),),
        where="unknown",
        operation=_waited_in(analysis)[0],
        seq=told[0].event.seq,
        told_waiting=tuple(sorted(waiting)),
    )


def init(analysis: Analysis) -> Saying:
    """Who did not come to the rendezvous, or did not write what others asked the store for."""
    if analysis.graph.waits:
        return None
    found = who_is_missing(analysis.case.logs)
    if found is None:
        return None
    cause: Cause = "init_missing" if found.at_rendezvous else "not_entered"
    return Claim(
        cause=cause,
        culprits=found.ranks,
        confidence="likely",
        because=found.facts,
        where="unknown",
        operation=found.operation,
        told_waiting=found.waiting,
    )


def communicator(analysis: Analysis) -> Saying:
    """All members began a communicator of NCCL, and none completed it."""
    logs = analysis.case.logs
    found = incomplete(logs)
    if found is None or analysis.graph.waits or _seen(analysis):
        return None
    fact = oddities(logs)[-1]
    comm, ranks, size = found
    if len(ranks) < size:
        return Rejected("comm_stuck", f"{fact.fact}: of the other members nothing is told")
    return Claim(
        "comm_stuck", (), "possible", (fact,), operation=f"the creation of communicator {comm}", told_waiting=ranks
    )


def undecided(analysis: Analysis) -> Claim | None:
    """What the logs tell though it decides nothing, and what would."""
    logs = analysis.case.logs
    told = sorted(logs.told, key=_says_little)
    facts = [*oddities(logs), *(Fact(headline(one), one.source) for one in told)]
    if not facts:  # the watchdogs' words are lost but for where each of them stood
        facts = [_waits_by_status(waiter) for group in logs.groups for waiter in group.waiters.values()]
    if not facts:
        facts = [Fact(event.text.strip()[:200], f"{event.source}:{event.line}") for event in logs.unrecognised]
    if not facts:
        facts = _before_the_steps(logs)
    if not facts or analysis.graph.waits or _seen(analysis):
        return None
    silent = () if logs.groups else ("the logs of all ranks, from their start to their end",)
    dumps = (
        (f"flight recorder dumps of all ranks ({recorder_settings(logs.events)} before the next run)",)
        if logs.groups
        else ()
    )
    waiters = [waiter for group in logs.groups for waiter in group.waiters.values()]
    waiting = tuple(sorted({waiter.rank for waiter in waiters}))
    operation, seq = _waited_in(analysis)
    in_one = sum(bool(group.waiters) for group in logs.groups) == 1 and len({waiter.seq for waiter in waiters}) == 1
    by_status = [LoggedFailure(waiter.event, waiter.rank, "collective_timeout") for waiter in waiters]
    meaning = next(iter((*told, *by_status)), None)
    words = words_in(meaning, logs.events) if meaning else None
    if too_many(logs):
        words = Words("", _STALE_STORE_STEP, "start")
    meant = (Fact(words.why, "what such a line means"),) if words and words.why and not logs.groups else ()
    return Claim(
        cause="undecided",
        culprits=(),
        confidence="possible",
        because=(*facts[:_MOST_FACTS], *meant),
        missing=silent + _unread(logs, waiting) + dumps,
        by_line=words,
        told=(_after_the_end(logs) or places_of(logs.groups)) if logs.groups else _said(logs, facts),
        told_waiting=waiting,
        operation=operation if in_one else None,
        seq=seq if in_one else None,
    )


def _unread(logs: LogReading, waiting: Sequence[int]) -> tuple[str, ...]:
    """Ranks between those that wait of which no line is known, where they are the fewer: they are no culprits by that,
    and the first to look at. Other lines of theirs may have been there."""
    spoke = {*waiting, *(event.rank for event in logs.events if event.rank is not None)}
    unread = [rank for rank in range(max(waiting, default=0)) if rank not in spoke]
    if not unread or 2 * len(unread) > len(waiting):
        return ()
    return (f"what {named(unread)} did: nothing that was read tells it",)


def _before_the_steps(logs: LogReading) -> list[Fact]:
    """That ranks were started again and make steps, and what had ended the attempt before; [] where they do not."""
    steps = next((event for event in logs.events if event.kind == "steps_again"), None)
    if steps is None or not logs.earlier:
        return []
    ended = logs.earlier[-1][0]
    return [
        Fact(f"the ranks were started again, and the log tells of {steps.text}", place_of(steps)),
        Fact(f"an attempt before had ended: {headline(ended)}", ended.place),
    ]


def _says_little(one: LoggedFailure) -> tuple[bool, bool, bool]:
    """For a sort: what only passes on, what no launcher saw first, a watchdog's warning before its reason."""
    return passes_on(one.event), not one.event.first, one.kind == "watchdog_end" and not one.event.message


def _waits_by_status(waiter: Waiter) -> Fact:
    return Fact(f"rank {waiter.rank}: {waiter.event.text.strip()[:200]}", place_of(waiter.event))


def _said(logs: LogReading, facts: Sequence[Fact]) -> str:
    """What says most; of a log in which nothing looks like an error, how it ends."""
    ends = logs.unrecognised
    only_ends = not logs.told and any(event.kind == "last_line" for event in ends)
    return f"the log ends with {facts[-1].fact}" if only_ends else facts[0].fact


def _after_the_end(logs: LogReading) -> str:
    """That a log told the end of training before somebody waited there in vain; "" where none did."""
    waits = [waiter.event for group in logs.groups for waiter in group.waiters.values()]
    for end in (event for event in logs.events if event.kind == "clean_end"):
        if any(end.source == wait.source and end.line < wait.line and end.rank in (None, wait.rank) for wait in waits):
            said = end.text.strip()[:100]
            return f'before that the log tells the end of training ("{said}"), and a rank that has left does not come'
    return ""


def _waited_in(analysis: Analysis) -> tuple[str | None, int | None]:
    """The operation and number that most ranks waited in, by their watchdogs."""
    groups = [group for group in analysis.case.logs.groups if group.waiters]
    group = max(groups, key=lambda group: len(group.waiters), default=None)
    if group is None or group.waited == UNTOLD:
        return None, None
    name = next((w.operation for w in group.waiters.values() if w.seq == group.waited and w.operation), "")
    return operation_name(name) or None, group.waited


def _claim(analysis: Analysis, cause: Cause, told: Sequence[LoggedFailure], extra: Iterable[Fact]) -> Claim:
    first = analysis.case.logs.first
    assert first is not None
    culprits = tuple(sorted({rank for one in told for rank in _ranks(one)}))
    confidence: Confidence = "likely" if culprits else "possible"
    words = words_in(first, analysis.case.logs.events)
    facts = [Fact(headline(one), one.source) for one in told[:_MOST_FACTS]]
    ends = {one.rank: one for one in analysis.case.logs.told if one.kind in PROCESS_ENDS and one.rank in culprits}
    facts += [Fact(headline(one), one.source) for one in ends.values() if one not in told][:2]
    operation, seq = _waited_in(analysis)
    others = sorted(
        {one.rank for one in analysis.case.logs.told if one.consequence and one.rank is not None} - set(culprits)
    )
    if others:
        facts.append(Fact(f"what {named(others)} told is a consequence", "logs"))
    # Of whom the launcher alone tells that he was ended, nothing tells that he waited.
    spoke = {one.rank for one in analysis.case.logs.told if one.kind not in PROCESS_ENDS and one.rank is not None}
    waited = {rank for group in analysis.case.logs.groups for rank in group.waiters}
    return Claim(
        cause=cause,
        culprits=culprits,
        confidence=confidence,
        because=(*facts, Fact(words.why, "what such a line means"), *extra),
        told=headline(first, who=False).rstrip("."),
        unnamed=_by_local_rank(told) if not culprits else "",
        missing=_NO_RANK if not culprits and _by_local_rank(told) else (),
        operation=operation,
        seq=seq,
        by_line=words,
        told_waiting=tuple(sorted(({*others} & spoke) | waited - {*culprits})),
    )


def _by_local_rank(told: Sequence[LoggedFailure]) -> str:
    """What is known of a rank of which the logs of several nodes tell its place on its node only."""
    event = told[0].event
    if event.local_rank is None or len({(one.event.source, one.event.local_rank) for one in told}) > 1:
        return ""
    return f"a rank known only as local rank {event.local_rank} of its node ({event.host or event.source or 'log'})"


def _first_of(analysis: Analysis, kinds: Sequence[str]) -> list[LoggedFailure]:
    """The first cause and its like on other ranks, if it is of these kinds and of no rank that was seen alive."""
    causes = analysis.case.logs.causes
    if not causes or causes[0].consequence or causes[0].kind not in kinds:
        return []
    seen = _seen(analysis)
    if not any(_ranks(one) for one in causes):
        # A line that names nobody, where ranks were seen or left dumps: it is of the one that left none and is absent.
        absent = {rank for rank, _ in analysis.roots.absent if not analysis.case.recorded(rank)}
        if seen or (analysis.graph.waits and len(absent) != 1):
            return []
        return [one._replace(rank=next(iter(absent))) for one in causes] if analysis.graph.waits else list(causes)
    return [one for one in causes if not set(_ranks(one)) & seen]


def _ranks(one: LoggedFailure) -> tuple[int, ...]:
    if one.rank is not None:
        return (one.rank,)
    return one.event.ranks if one.kind in _GONE else ()


def _seen(analysis: Analysis) -> set[int]:
    """Ranks whose process or stack was looked at: what they do, their log does not decide."""
    return {rank for rank, evidence in analysis.case.evidence.items() if evidence.processes or evidence.stacks}
