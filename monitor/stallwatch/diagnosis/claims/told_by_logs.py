"""What torch, gloo and the launcher wrote themselves: the only witness where there are logs and nothing else."""

from collections import defaultdict
from collections.abc import Iterator

from stallwatch.diagnosis.claims.claim import Claim, Saying, named
from stallwatch.diagnosis.story import Story
from stallwatch.model.evidence import LogEvent
from stallwatch.model.verdict import Fact, Mismatch

_SIGABRT = 6


def launcher(story: Story) -> Saying:
    """torchrun's own "Root Cause (first observed failure)", where no process was seen to end."""
    if any(activity.gone for activity in story.case.activities.values()):
        return None
    # A process that was looked at and lives is not the one that the log tells of.
    alive = {rank for rank, evidence in story.case.evidence.items() if evidence.processes}
    failures = [
        event
        for _, event in _events(story)
        if event.kind == "launcher_failure" and event.rank is not None and event.rank not in alive
    ]
    first = [event for event in failures if event.first] or failures[:1]
    if not first:
        return None
    event = first[0]
    how = f"signal {event.exit_signal}" if event.exit_signal else f"exit code {event.exit_code}"
    assert event.rank is not None
    return Claim(
        cause="rank_exited",
        culprits=(event.rank,),
        confidence="likely",
        because=(Fact(f"the launcher saw rank {event.rank} fail first, with {how}", "launcher's log"),),
    )


def barrier(story: Story) -> Saying:
    """monitoredBarrier names who did not come."""
    for rank, event in _events(story):
        if event.kind == "barrier_absent" and event.ranks:
            absent = tuple(sorted(other for other in event.ranks if other != rank))
            return Claim(
                cause="not_entered",
                culprits=absent,
                confidence="likely",
                because=(Fact(event.text.strip()[:300], _source(rank)),),
                where="unknown",
                operation="monitored_barrier",
            )
    return None


def mismatch(story: Story) -> Saying:
    """The DETAIL wrapper's fingerprints, and gloo's refusal of a message that is too long."""
    for rank, event in sorted(_events(story), key=lambda told: not _aborted(story, told[0])):
        if event.kind in ("collective_mismatch", "gloo_size_mismatch"):
            kind = "size" if event.kind == "gloo_size_mismatch" else "op"
            values = (str(event.numel_out or ""), str(event.numel_in or "")) if kind == "size" else ("", "")
            return Claim(
                cause="collective_mismatch",
                culprits=(),
                confidence="possible",
                because=(
                    Fact(event.text.strip()[:400], _source(rank)),
                    Fact("the rank that printed it is a victim: it received what it did not expect", "gloo and torch"),
                ),
                mismatch=Mismatch("size" if kind == "size" else "op", *values),
                missing=("flight recorder dumps, which show who called what",),
            )
    return None


def watchdog(story: Story) -> Saying:
    """NCCL's watchdog prints how far each rank had come when it timed out."""
    if story.graph.waits:
        return None
    enqueued: dict[str, dict[int, int]] = defaultdict(dict)
    timed_out: dict[str, int] = {}
    for rank, event in _events(story):
        owner = event.rank if event.rank is not None else rank
        if event.kind == "group_status" and event.enqueued is not None and owner is not None:
            known = enqueued[event.group or ""].get(owner, event.enqueued)
            enqueued[event.group or ""][owner] = min(known, event.enqueued)
            if event.seq is not None and event.seq > 0:
                timed_out[event.group or ""] = min(event.seq, timed_out.get(event.group or "", event.seq))
    for group, ranks in sorted(enqueued.items()):
        waited = timed_out.get(group)
        if waited is None:
            continue
        behind = sorted(rank for rank, last in ranks.items() if last < waited)
        if behind and 2 * len(behind) < len(ranks):
            facts = (
                Fact(f"{named(ranks.keys() - set(behind))} timed out at work {waited} of {group or 'a group'}", "logs"),
                Fact(f"{named(behind)} had last enqueued work {min(ranks[rank] for rank in behind)}", "logs"),
            )
            return Claim("not_entered", tuple(behind), "likely", facts, where="unknown", seq=waited)
    return None


def _aborted(story: Story, rank: int | None) -> bool:
    """Whether it is this rank that gloo ended: where ranks share a log, each of them seems to have printed it."""
    evidence = story.case.evidence.get(rank) if rank is not None else None
    return evidence is not None and any(look.exit_signal == _SIGABRT for look in evidence.processes)


def _events(story: Story) -> Iterator[tuple[int | None, LogEvent]]:
    for rank, evidence in story.case.evidence.items():
        for event in evidence.log_events:
            yield rank, event
    for event in story.case.log_events:
        yield event.rank, event


def _source(rank: int | None) -> str:
    return "log" if rank is None else f"log of rank {rank}"
