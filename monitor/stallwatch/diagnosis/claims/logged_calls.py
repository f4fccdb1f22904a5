"""Who called what, as logs tell it: the DETAIL wrapper's fingerprints, refusals of messages that are too long, what
NCCL's watchdogs print of each rank's last call."""

from collections.abc import Iterable, Sequence
from signal import SIGABRT

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, named
from stallwatch.diagnosis.logs.blame import (
    Blame,
    called_by_sides,
    detail_sides,
    few_that_differ,
    mismatch_words,
    partition_text,
    side_words,
    what_differs,
    who_is_behind,
)
from stallwatch.diagnosis.logs.failure_line import headline
from stallwatch.diagnosis.logs.logged_failure import LoggedFailure
from stallwatch.diagnosis.logs.remedies_by_origin import words_in
from stallwatch.diagnosis.logs.watchdog_reports import UNTOLD
from stallwatch.formats.log_mismatch import Refusal, refusal_of
from stallwatch.formats.operation_names import operation_name
from stallwatch.model.verdict import Fact, Mismatch, Rejected

_MOST_FACTS = 6


def mismatch(analysis: Analysis) -> Saying:
    """The DETAIL wrapper's fingerprints, and gloo's or NCCL's refusal of a message that is too long."""
    told = analysis.case.logs.of_kind("collective_mismatch", "size_mismatch")
    told = [one for one in told if not one.consequence or one.kind == "size_mismatch"]
    if any(one.kind == "collective_mismatch" for one in told):
        return _of_detail(analysis, [one for one in told if one.kind == "collective_mismatch"])
    if not told or analysis.logged_mismatch is not None:
        return None  # where watchdogs tell what each rank called, `watchdog` says more
    one = min(told, key=lambda one: not _aborted(analysis, one.rank))
    event = one.event
    refusal = refusal_of(f"{event.message or ''} {event.text}") or Refusal("gloo", None, None)
    by = refusal.library
    received, expected = (
        otherwise if size is None else str(size)
        for size, otherwise in ((refusal.received_bytes, "more"), (refusal.expected_bytes, "fewer"))
    )
    sender = tuple(rank for rank in event.ranks if rank != one.rank)
    return Claim(
        cause="collective_mismatch",
        culprits=(),
        confidence="possible",
        because=(
            Fact(event.text.strip()[:400], one.source),
            *(Fact(f"the message came from {named(sender)}", one.source) for _ in sender[:1]),
            Fact(
                "the rank that printed it is a victim: it received what it did not expect",
                f"{by} and torch",
            ),
            *_lines_of_others(analysis, one),
        ),
        mismatch=Mismatch("size", expected, received),
        told=f"{received} bytes in a collective where it expected {expected}, and was aborted by {by}",
        missing=("flight recorder dumps, which show who called what",),
    )


def _of_detail(analysis: Analysis, told: Sequence[LoggedFailure]) -> Claim:
    """Both sides as torch printed them; who is right, only a majority of more than two tells."""
    sides = detail_sides(told)
    culprits, differs = few_that_differ(sides), what_differs(sides)
    facts = tuple(
        Fact(f"rank {rank} was in {side_words(side)}", "torch's DETAIL wrapper") for rank, side in sorted(sides.items())
    )
    one = told[0]
    behind = who_is_behind(sides)
    facts = (*facts[:_MOST_FACTS], *(Fact(behind, "torch's DETAIL wrapper") for _ in (behind,) if behind))
    seqs = {side.seq for side in sides.values()}
    return Claim(
        cause="collective_mismatch",
        culprits=culprits,
        confidence="likely" if culprits else "possible",
        because=(*facts, Fact(headline(one), one.source))
        if facts
        else (Fact(one.event.text.strip()[:400], one.source),),
        mismatch=differs,
        operation=operation_name(next(iter(sides.values())).operation) or None if sides else None,
        seq=next((side.seq for _, side in sorted(sides.items()) if side.seq is not None), None)
        if culprits or len(seqs) == 1
        else None,
        parts=() if culprits else called_by_sides(sides),
        told=behind if culprits else "",
        by_line=words_in(one, analysis.case.logs.events) if differs is None else mismatch_words(differs),
    )


def watchdog(analysis: Analysis) -> Saying:
    """NCCL's watchdogs print in what each rank waited, and how far it had come."""
    blame = analysis.logged_blame
    if blame is None:
        return None
    group = f"group {blame.group.name}" if blame.group.name and not blame.group.is_default else "the default group"
    operation: str | None = operation_name(blame.operation) if blame.operation else "a collective"
    seq: int | None = blame.seq
    call = f"{operation} number {seq} of {group}"
    if blame.seq == UNTOLD:
        operation, seq, call = None, None, group
    waits = Fact(f"{named(blame.waiting)} waited in vain in {call}", "logs")
    place = _place_of(blame)
    facts = (waits, *(Fact(f"they called it at {place}", "torch's stack of the failed collective") for _ in place[:1]))
    if blame.kind == "unknown":
        return Rejected("comm_stuck", f"{waits.fact}: nothing tells whether all members were there")
    if blame.kind == "cleared":
        lost = (
            f"{named(blame.ranks)} printed nothing: any of them may have died, and the others been cleared away with it"
        )
        return Rejected("not_entered", f"{waits.fact}; {lost}")
    if blame.kind == "stuck":
        return Claim("comm_stuck", (), "possible", facts, operation=operation, seq=seq, told_waiting=blame.waiting)
    if blame.kind == "mismatch":
        return _partitioned(blame, facts, operation)
    enqueued = [blame.group.enqueued[rank] for rank in blame.ranks if rank in blame.group.enqueued]
    behind = f"had last enqueued number {min(enqueued)}" if enqueued and blame.kind == "absent" else "printed nothing"
    stands = all(analysis.case.activity(rank).known for rank in blame.ranks)  # its log ends with its stacks
    behind = "printed no time-out" if stands and blame.kind != "absent" else behind
    return Claim(
        cause="not_entered",
        culprits=blame.ranks,
        confidence="likely" if blame.sure else "possible",
        because=(*facts, Fact(f"{named(blame.ranks)} {behind}", "logs")),
        where=None if stands else "unknown",
        operation=operation,
        seq=seq,
        told="" if blame.kind == "absent" or stands else "printed nothing while all others did",
        told_waiting=blame.waiting,
    )


def _partitioned(blame: Blame, facts: Iterable[Fact], operation: str | None) -> Claim:
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


def _lines_of_others(analysis: Analysis, victim: LoggedFailure) -> list[Fact]:
    """Where the other ranks stood, by their own tracebacks."""
    facts = []
    for one in analysis.case.logs.told:
        frame = one.event.frame
        if one.event.exception and frame is not None and one.rank is not None and one.rank != victim.rank:
            facts.append(Fact(f"rank {one.rank} was at {frame.filename}:{frame.line} in {frame.name}", one.source))
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
    return evidence is not None and any(look.exit_signal == SIGABRT for look in evidence.processes)
