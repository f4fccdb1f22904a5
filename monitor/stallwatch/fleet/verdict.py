"""The verdict over all nodes that reported: the one that `analyze` gives for their folders together. Pure."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from stallwatch import __version__
from stallwatch.bundle.report import judged
from stallwatch.diagnosis.node_summary import judge_nodes
from stallwatch.fleet.node_word import Believed, NodeWord
from stallwatch.formats.rank_ranges import rank_ranges
from stallwatch.model.verdict import Report, Verdict

_MOST_NAMED = 8


class JobVerdict(msgspec.Struct, frozen=True):
    """The verdict over all nodes."""

    report: Report
    nodes: int  # that it rests on
    ranks: int  # of which something is known
    puts: int = 0  # as the meeting place counted when the summaries were read


def judge_job(
    believed: Believed, world_size: int | None, homes: Callable[[], Mapping[int, str]] = dict
) -> JobVerdict | None:
    """Given what nodes say and how many ranks the job has, return the verdict over it; None where nobody said
    anything. `homes`: on which node each rank ran while the job moved, asked where a node has said nothing."""
    words = [word for word in believed.words if word.summary.ranks or word.summary.log_events]
    if not words:
        return None
    judgement = judge_nodes([word.summary for word in words])
    known = {rank for word in words for rank in word.ranks}
    world = world_size or max((word.summary.world_size or 0 for word in words), default=0) or len(known)
    verdict = judgement.verdicts[0]
    absent = [rank for rank in range(world) if rank not in known]
    if absent and verdict.traits.state not in ("well", "over"):
        verdict = _without(verdict, absent, homes())
    report = judged(
        judgement,
        (verdict, *judgement.verdicts[1:]),
        captured_at=max((word.captured_at for word in words), default="") or None,
        evidence_complete=not absent and all(word.complete for word in words),
        caveats=(*believed.caveats, *_versions(words)),
    )
    return JobVerdict(report, len(words), len(known))


def _without(verdict: Verdict, absent: Sequence[int], homes: Mapping[int, str]) -> Verdict:
    """The verdict, which says what is missing. Whose daemon was there while the job moved and is not now may be the
    reason itself: a node that is down, or its link."""
    silent = sorted({homes[rank] for rank in absent if rank in homes})
    unknown = [rank for rank in absent if rank not in homes]
    missing = []
    if silent:
        named = ", ".join(silent[:_MOST_NAMED]) + (
            f" and {len(silent) - _MOST_NAMED} more" * (len(silent) > _MOST_NAMED)
        )
        ranks = rank_ranges([rank for rank in absent if rank in homes])
        missing.append(f"what {named} (ranks {ranks}) sees: nothing has come from there since the job stands")
        if not verdict.traits.accuses:
            step = (
                f"Look at {named}, from which nothing has come since the job stands: is the node up, and its link? "
                f"(ping {silent[0]}; there: ip -br link, systemctl status stallwatch)"
            )
            summary = f"{verdict.summary} Nothing has come from {named} (ranks {ranks}) since the job stands."
            verdict = msgspec.structs.replace(verdict, summary=summary, next_steps=(step, *verdict.next_steps))
    if unknown:
        missing.append(
            f"what the nodes of ranks {rank_ranges(unknown)} see: they have put nothing in the meeting place"
        )
    return msgspec.structs.replace(verdict, missing=(*missing, *verdict.missing))


def _versions(words: Sequence[NodeWord]) -> tuple[str, ...]:
    others = sorted({word.tool_version for word in words if word.tool_version != __version__})
    if not others:
        return ()
    named = [word.node for word in words if word.tool_version in others][:_MOST_NAMED]
    return (f"nodes {', '.join(named)} run stallwatch {', '.join(others)}, this one {__version__}",)
