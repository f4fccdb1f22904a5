"""The verdict over all nodes that reported: the one that `analyze` gives for their folders together. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from stallwatch import __version__
from stallwatch.bundle.report import judged
from stallwatch.diagnosis.node_summary import judge_nodes
from stallwatch.fleet.node_word import Believed, NodeWord
from stallwatch.formats.rank_ranges import rank_ranges
from stallwatch.model.verdict import Report, Verdict

_MOST_NAMED = 8


class Home(NamedTuple):
    """Where a rank ran while the job moved."""

    node: str
    is_silent: bool  # nothing comes from its daemon any more: it is down, or cannot reach the meeting place


class JobVerdict(msgspec.Struct, frozen=True):
    """The verdict over all nodes."""

    report: Report
    nodes: int  # that it rests on
    ranks: int  # of which something is known
    puts: int = 0  # as the meeting place counted when the summaries were read
    silent: tuple[str, ...] = ()  # nodes from which nothing comes any more; only where nobody is found to be at fault
    is_whole: bool = True  # something is known of every rank


def judge_job(
    believed: Believed, world_size: int | None, homes: Callable[[], Mapping[int, Home]] = dict
) -> JobVerdict | None:
    """Given what nodes say and how many ranks the job has, return the verdict over it; None where nobody said
    anything. `homes`: where each rank ran while the job moved, asked where a node has said nothing."""
    words = [word for word in believed.words if word.summary.ranks or word.summary.log_events]
    if not words:
        return None
    judgement = judge_nodes([word.summary for word in words])
    known = {rank for word in words for rank in word.ranks}
    world = world_size or max((word.summary.world_size or 0 for word in words), default=0) or len(known)
    verdict = judgement.verdicts[0]
    absent = [rank for rank in range(world) if rank not in known]
    silent: tuple[str, ...] = ()
    if absent and verdict.traits.state not in ("well", "over"):
        at = homes()
        silent = tuple(sorted({at[rank].node for rank in absent if rank in at and at[rank].is_silent}))
        verdict = _without(verdict, absent, at, silent)
    report = judged(
        judgement,
        (verdict, *judgement.verdicts[1:]),
        captured_at=max((word.captured_at for word in words), default="") or None,
        evidence_complete=not absent and all(word.complete for word in words),
        caveats=(*believed.caveats, *_versions(words)),
    )
    silent = () if verdict.traits.accuses else silent
    return JobVerdict(report, len(words), len(known), silent=silent, is_whole=not absent)


def _without(verdict: Verdict, absent: Sequence[int], homes: Mapping[int, Home], silent: Sequence[str]) -> Verdict:
    """The verdict, which says what is missing. Whose daemon was there while the job moved and is not now may be the
    reason itself: a node that is down, or its link."""
    gone = [rank for rank in absent if rank in homes and homes[rank].is_silent]
    there = [rank for rank in absent if rank in homes and not homes[rank].is_silent]
    unknown = [rank for rank in absent if rank not in homes]
    missing = []
    if gone:
        named, ranks = _named(silent), rank_ranges(gone)
        missing.append(f"what {named} (ranks {ranks}) sees: nothing comes from there any more")
        if not verdict.traits.accuses:
            step = (
                f"Look at {named}, from which nothing comes any more: is the node up, and its link? "
                f"(ping {silent[0]}; there: ip -br link, systemctl status stallwatch)"
            )
            summary = f"{verdict.summary} Nothing comes any more from {named} (ranks {ranks})."
            verdict = msgspec.structs.replace(verdict, summary=summary, next_steps=(step, *verdict.next_steps))
    if there:
        named = _named(sorted({homes[rank].node for rank in there}))
        missing.append(
            f"what {named} (ranks {rank_ranges(there)}) sees: its daemon is there, and does not find that they stand"
        )
    if unknown:
        missing.append(
            f"what the nodes of ranks {rank_ranges(unknown)} see: they have put nothing in the meeting place"
        )
    return msgspec.structs.replace(verdict, missing=(*missing, *verdict.missing))


def _named(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _MOST_NAMED} more" * (len(nodes) > _MOST_NAMED)
    return ", ".join(nodes[:_MOST_NAMED]) + more


def _versions(words: Sequence[NodeWord]) -> tuple[str, ...]:
    others = sorted({word.tool_version for word in words if word.tool_version != __version__})
    if not others:
        return ()
    named = [word.node for word in words if word.tool_version in others][:_MOST_NAMED]
    return (f"nodes {', '.join(named)} run stallwatch {', '.join(others)}, this one {__version__}",)
