"""What torch, gloo, NCCL, the launcher and the kernel wrote themselves: the only witness where there are logs and
nothing else, and of ranks that left no dump."""

import re
from collections.abc import Iterable, Sequence

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, named
from stallwatch.diagnosis.logs import detail_mismatch, start
from stallwatch.diagnosis.logs.blame import Blame, operation_name, partition_text
from stallwatch.diagnosis.logs.consequence import LoggedFailure
from stallwatch.diagnosis.logs.detail_mismatch import mismatch_words
from stallwatch.diagnosis.logs.remedies import headline, words_for
from stallwatch.diagnosis.logs.remedies_by_text import Words
from stallwatch.model.evidence import LogEvent
from stallwatch.model.verdict import Cause, Confidence, Fact, Mismatch, Rejected

_SIGABRT = 6
_TRUNCATED = re.compile(r"receiving (?P<received>\d+) bytes instead of (?P<expected>\d+)")
_NO_RANK = ("the rank: the launcher's summary of that node, or lines that begin with [rankN]:",)
_MOST_FACTS = 6
_ENDS = ("launcher_failure", "process_failed")
_GONE = (*_ENDS, "memory_killed", "node_failed", "evicted", "actor_died", "native_crash")
_RAISED = (
    "exception", "native_exception", "out_of_memory", "memory_allocation", "shared_memory", "dataloader_killed",
    "open_files",
    "locked_memory", "duplicate_gpu", "cuda_error", "native_crash", "not_started", "nccl_no_interface",
    "name_unresolved", "address_in_use", "nccl_version_mismatch", "nccl_error",
)  # fmt: skip


def ended(analysis: Analysis) -> Saying:
    """A process that ended by itself, by its launcher's word, where no process was seen to end."""
    told = [] if analysis.case.logs.ended_together else _first_of(analysis, _GONE)
    if any(activity.end.gone for activity in analysis.case.activities.values()):
        return None
    ended_too = {one.rank for one in analysis.case.logs.told if one.kind in _ENDS and one.rank is not None}
    raised = _first_of(analysis, _RAISED)
    if not told and raised and all(one.rank in ended_too for one in raised if one.rank is not None):
        told = raised if any(one.rank is not None for one in raised) else []
    if not told:
        return None
    return _claim(analysis, "rank_exited", told, ())


def raised(analysis: Analysis) -> Saying:
    """A failure of a rank's own that its log ends with, where the rank was not seen alive."""
    told = _first_of(analysis, _RAISED)
    if not told or analysis.case.logs.only_warned:
        return None
    alone = len(told) == 1 and any(one.consequence and one.event.exception for one in analysis.case.logs.told)
    if told[0].kind == "nccl_error" and not alone:
        return None  # a call that failed without a reason is its own only where the others lost a peer
    return _claim(analysis, "rank_raised", told, ())


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
    if first is None and ended_by_others and all(one.kind in ("cancelled", *_ENDS) for one in logs.told):
        first = ended_by_others[0]  # and whoever else ended was ended by that
    if first is not None and first.kind in ("cancelled", "interrupted"):
        fact = Fact(f"{headline(first)}", first.place)
        return Claim("job_ended", (), "likely", (fact,), by_line=words_for(first))
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
                because=(Fact(told.event.text.strip()[:300], _source(told)),),
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
        because=(Fact(told[0].event.text.strip()[:300], _source(told[0])),),
        where="unknown",
        operation=_waited_in(analysis)[0],
        seq=told[0].event.seq,
        told_waiting=tuple(sorted(waiting)),
    )


def mismatch(analysis: Analysis) -> Saying:
    """The DETAIL wrapper's fingerprints, and gloo's or NCCL's refusal of a message that is too long."""
    told = analysis.case.logs.of_kind("collective_mismatch", "size_mismatch")
    told = [one for one in told if not one.consequence or one.kind == "size_mismatch"]
    if any(one.kind == "collective_mismatch" for one in told):
        return _of_detail([one for one in told if one.kind == "collective_mismatch"])
    if not told or analysis.logged_mismatch is not None:
        return None  # where watchdogs tell what each rank called, `watchdog` says more
    one = min(told, key=lambda one: not _aborted(analysis, one.rank))
    event = one.event
    received, expected = _message_sizes(event)
    by = "NCCL" if event.exception else "gloo"
    sender = tuple(rank for rank in event.ranks if rank != one.rank)
    return Claim(
        cause="collective_mismatch",
        culprits=(),
        confidence="possible",
        because=(
            Fact(event.text.strip()[:400], _source(one)),
            *(Fact(f"the message came from {named(sender)}", _source(one)) for _ in sender[:1]),
            Fact("the rank that printed it is a victim: it received what it did not expect", f"{by} and torch"),
            *_lines_of_others(analysis, one),
        ),
        mismatch=Mismatch("size", expected, received),
        told=f"{received} bytes in a collective where it expected {expected}, and was aborted by {by}",
        missing=("flight recorder dumps, which show who called what",),
    )


def _message_sizes(event: LogEvent) -> tuple[str, str]:
    """Bytes that came, and bytes that were expected, in the words of gloo's line or of NCCL's last error."""
    if event.numel_in is not None and event.numel_out is not None:
        return str(event.numel_in), str(event.numel_out)
    match = _TRUNCATED.search(event.message or "")
    return (match["received"], match["expected"]) if match else ("more", "fewer")


def _of_detail(told: Sequence[LoggedFailure]) -> Claim:
    """Both sides as torch printed them; who is right, only a majority of more than two tells."""
    sides = detail_mismatch.by_rank(told)
    culprits, differs = detail_mismatch.minority(sides), detail_mismatch.difference(sides)
    facts = tuple(
        Fact(f"rank {rank} was in {detail_mismatch.describe(side)}", "torch's DETAIL wrapper")
        for rank, side in sorted(sides.items())
    )
    one = told[0]
    behind = detail_mismatch.behind(sides)
    facts = (*facts[:_MOST_FACTS], *(Fact(behind, "torch's DETAIL wrapper") for _ in (behind,) if behind))
    seqs = {side.seq for side in sides.values()}
    return Claim(
        cause="collective_mismatch",
        culprits=culprits,
        confidence="likely" if culprits else "possible",
        because=(*facts, Fact(headline(one), _source(one)))
        if facts
        else (Fact(one.event.text.strip()[:400], _source(one)),),
        mismatch=differs,
        operation=operation_name(next(iter(sides.values())).operation) or None if sides else None,
        seq=next((side.seq for _, side in sorted(sides.items()) if side.seq is not None), None)
        if culprits or len(seqs) == 1
        else None,
        parts=() if culprits else detail_mismatch.parts(sides),
        by_line=words_for(one) if differs is None else mismatch_words(differs),
    )


def watchdog(analysis: Analysis) -> Saying:
    """NCCL's watchdogs print in what each rank waited, and how far it had come."""
    blame = analysis.logged_blame
    if blame is None:
        return None
    group = f"group {blame.group.name}" if blame.group.name and not blame.group.is_default else "the default group"
    operation = operation_name(blame.operation) if blame.operation else "a collective"
    waits = Fact(f"{named(blame.waiting)} waited in vain in {operation} number {blame.seq} of {group}", "logs")
    place = _place_of(blame)
    facts = (waits, *(Fact(f"they called it at {place}", "torch's stack of the failed collective") for _ in place[:1]))
    if blame.kind == "unknown":
        return Rejected("comm_stuck", f"{waits.fact}: nothing tells whether all members were there")
    if blame.kind == "stuck":
        return Claim(
            "comm_stuck", (), "possible", facts, operation=operation, seq=blame.seq, told_waiting=blame.waiting
        )
    if blame.kind == "mismatch":
        return _partitioned(blame, facts, operation)
    enqueued = [blame.group.enqueued[rank] for rank in blame.ranks if rank in blame.group.enqueued]
    behind = f"had last enqueued number {min(enqueued)}" if enqueued and blame.kind == "absent" else "printed nothing"
    return Claim(
        cause="not_entered",
        culprits=blame.ranks,
        confidence="likely" if blame.sure else "possible",
        because=(*facts, Fact(f"{named(blame.ranks)} {behind}", "logs")),
        where="unknown",
        operation=operation,
        seq=blame.seq,
        told="" if blame.kind == "absent" else "printed nothing while all others did",
        told_waiting=blame.waiting,
    )


def _partitioned(blame: Blame, facts: Iterable[Fact], operation: str) -> Claim:
    text = partition_text(blame)
    reason = (
        "all must enter it together, and it has ended for some alone"
        if blame.differs == "count"
        else "under one number all must call the same"
    )
    expected, found = blame.parts[0][0], blame.parts[1][0]
    return Claim(
        cause="collective_mismatch",
        culprits=blame.ranks,
        confidence="likely" if blame.sure and blame.ranks else "possible",
        because=(Fact(text, "logs"), Fact(reason, "torch"), *facts),
        mismatch=Mismatch(blame.differs, expected, found),
        operation=operation,
        seq=blame.seq if blame.ranks or blame.differs != "count" else None,
        parts=() if blame.ranks else blame.called,
        told_waiting=blame.waiting,
    )


def init(analysis: Analysis) -> Saying:
    """Who did not come to the rendezvous, or did not write what others asked the store for."""
    if analysis.graph.waits:
        return None
    found = start.who_is_missing(analysis.case.logs, analysis.case.observed)
    if found is None:
        return None
    cause: Cause = "init_missing" if found.at_rendezvous else "not_entered"
    return Claim(
        cause=cause,
        culprits=found.ranks,
        confidence="likely",
        because=tuple(Fact(text, source) for text, source in found.facts),
        where="unknown",
        operation=found.operation,
        told_waiting=found.waiting,
    )


def communicator(analysis: Analysis) -> Saying:
    """All members began a communicator of NCCL, and none completed it."""
    logs = analysis.case.logs
    found = start.incomplete(logs)
    if found is None or analysis.graph.waits or _seen(analysis):
        return None
    fact = Fact(*start.oddities(logs)[-1])
    comm, ranks, size = found
    if len(ranks) < size:
        return Rejected("comm_stuck", f"{fact.fact}: of the other members nothing is told")
    return Claim(
        "comm_stuck", (), "possible", (fact,), operation=f"the creation of communicator {comm}", told_waiting=ranks
    )


def undecided(analysis: Analysis) -> Claim | None:
    """What the logs tell though it decides nothing, and what would."""
    logs = analysis.case.logs
    facts = [Fact(text, source) for text, source in start.oddities(logs)]
    facts += [Fact(headline(one), _source(one)) for one in logs.told]
    if not facts:
        facts = [Fact(event.text.strip()[:200], f"{event.source}:{event.line}") for event in logs.unrecognised]
    if not facts or analysis.graph.waits or _seen(analysis):
        return None
    silent = () if logs.groups else ("the logs of all ranks, from their start to their end",)
    dumps = (
        ("flight recorder dumps of all ranks (TORCH_FR_BUFFER_SIZE=2000 before the next run)",) if logs.groups else ()
    )
    waiting = tuple(sorted({rank for group in logs.groups for rank in group.waiters}))
    words = words_for(logs.told[0]) if logs.told else None
    if start.stale_store(logs):
        words = Words("", start.STALE_STORE_STEP, "start")
    return Claim(
        cause="undecided",
        culprits=(),
        confidence="possible",
        because=tuple(facts[:_MOST_FACTS]),
        missing=silent + dumps,
        by_line=words,
        told="" if logs.groups else facts[0].fact,
        told_waiting=waiting,
        operation=_waited_in(analysis)[0],
        seq=_waited_in(analysis)[1],
    )


def _waited_in(analysis: Analysis) -> tuple[str | None, int | None]:
    """The operation and number that most ranks waited in, by their watchdogs."""
    groups = [group for group in analysis.case.logs.groups if group.waiters]
    group = max(groups, key=lambda group: len(group.waiters), default=None)
    if group is None:
        return None, None
    name = next((w.operation for w in group.waiters.values() if w.seq == group.waited and w.operation), "")
    return operation_name(name) or None, group.waited


def _claim(analysis: Analysis, cause: Cause, told: Sequence[LoggedFailure], extra: Iterable[Fact]) -> Claim:
    first = analysis.case.logs.first
    assert first is not None
    culprits = tuple(sorted({rank for one in told for rank in _ranks(one)}))
    confidence: Confidence = "likely" if culprits else "possible"
    words = words_for(first)
    facts = [Fact(headline(one), _source(one)) for one in told[:_MOST_FACTS]]
    ends = {one.rank: one for one in analysis.case.logs.told if one.kind in _ENDS and one.rank in culprits}
    facts += [Fact(headline(one), _source(one)) for one in ends.values() if one not in told][:2]
    operation, seq = _waited_in(analysis)
    others = sorted(
        {one.rank for one in analysis.case.logs.told if one.consequence and one.rank is not None} - set(culprits)
    )
    if others:
        facts.append(Fact(f"what {named(others)} told is a consequence", "logs"))
    return Claim(
        cause=cause,
        culprits=culprits,
        confidence=confidence,
        because=(*facts, Fact(words.why, "what such a line means"), *extra),
        told=headline(first, who=False),
        unnamed=_by_local_rank(told) if not culprits else "",
        missing=_NO_RANK if not culprits and _by_local_rank(told) else (),
        operation=operation,
        seq=seq,
        by_line=words,
        told_waiting=tuple(others),
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


def _lines_of_others(analysis: Analysis, victim: LoggedFailure) -> list[Fact]:
    """Where the other ranks stood, by their own tracebacks."""
    facts = []
    for one in analysis.case.logs.told:
        frame = one.event.frame
        if one.event.exception and frame is not None and one.rank is not None and one.rank != victim.rank:
            facts.append(Fact(f"rank {one.rank} was at {frame.filename}:{frame.line} in {frame.name}", _source(one)))
    return facts[:_MOST_FACTS]


def _place_of(blame: Blame) -> str:
    frames = {w.frame for w in blame.group.waiters.values() if w.frame is not None and w.seq == blame.seq}
    if len(frames) != 1:
        return ""
    frame = frames.pop()
    return f"{frame.filename}:{frame.line} in {frame.name}"


def _aborted(analysis: Analysis, rank: int | None) -> bool:
    """Whether it is this rank that gloo ended: where ranks share a log, each of them seems to have printed it."""
    evidence = analysis.case.evidence.get(rank) if rank is not None else None
    return evidence is not None and any(look.exit_signal == _SIGABRT for look in evidence.processes)


def _source(one: LoggedFailure) -> str:
    if one.event.source:
        return one.place
    return "log" if one.rank is None else f"log of rank {one.rank}"
