"""The verdict over all nodes that reported: the one that `analyze` gives for their folders together. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from stallwatch import __version__
from stallwatch.bundle.report import judged
from stallwatch.diagnosis.node_summary import judge_nodes
from stallwatch.diagnosis.verdicts import Judgement
from stallwatch.fleet.node_word import MOST_NAME, Believed, NodeWord
from stallwatch.formats.rank_ranges import rank_ranges
from stallwatch.formats.tolerant import NOT_JSON
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
    all_words = [_of_job(word, world_size) for word in believed.words]
    all_words = [word for word in all_words if word.summary.ranks or word.summary.log_events]
    judgement, words = _judgement(all_words)
    if judgement is None:
        return None
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
        caveats=(*believed.caveats, *_unjudged(all_words, words), *_versions(words)),
    )
    silent = () if verdict.traits.accuses else silent
    return JobVerdict(report, len(words), len(known), silent=silent, is_whole=not absent)


def _of_job(word: NodeWord, world_size: int | None) -> NodeWord:
    """What it says of ranks that the job has; how many that are, this node knows by its own."""
    if not world_size:
        return word
    ranks = tuple(digest for digest in word.summary.ranks if 0 <= digest.summary.rank < world_size)
    summary = msgspec.structs.replace(word.summary, world_size=world_size, ranks=ranks)
    return msgspec.structs.replace(word, ranks=tuple(r for r in word.ranks if 0 <= r < world_size), summary=summary)


def _judgement(words: Sequence[NodeWord]) -> tuple[Judgement | None, Sequence[NodeWord]]:
    """Return what is judged of these, and of which: what cannot be judged costs the other nodes nothing."""
    judgement = _try(words)
    if judgement is None and words:
        words = _added([], words)
        judgement = _try(words)
    return judgement, words


def _added(known: Sequence[NodeWord], more: Sequence[NodeWord]) -> Sequence[NodeWord]:
    """Given words that can be judged, and more, return them with what of those can be judged beside them."""
    if _try([*known, *more]) is not None:
        return [*known, *more]
    if len(more) < 2:
        return known
    half = len(more) // 2
    return _added(_added(known, more[:half]), more[half:])


def _try(words: Sequence[NodeWord]) -> Judgement | None:
    try:
        return judge_nodes([word.summary for word in words]) if words else None
    except Exception:  # noqa: BLE001 - others wrote it: whatever it raises, it cannot be judged
        return None


def _unjudged(words: Sequence[NodeWord], judged: Sequence[NodeWord]) -> tuple[str, ...]:
    known = {word.node for word in judged}
    left = [word.node for word in words if word.node not in known]
    return (f"what {_named(left)} says is not used: it cannot be judged",) if left else ()


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
            verdict = msgspec.structs.replace(verdict, summary=summary).with_first_step(step)
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
    return ", ".join(node[:MOST_NAME] for node in nodes[:_MOST_NAMED]) + more


def _versions(words: Sequence[NodeWord]) -> tuple[str, ...]:
    others = sorted({word.tool_version for word in words if word.tool_version != __version__})
    if not others:
        return ()
    named = [word.node for word in words if word.tool_version in others][:_MOST_NAMED]
    return (f"nodes {', '.join(named)} run stallwatch {', '.join(others)}, this one {__version__}",)


class PublishedVerdict(msgspec.Struct, frozen=True):
    """The job's verdict as it stands in the meeting place."""

    report: Report
    nodes: int


_PUBLISHED = msgspec.json.Decoder(PublishedVerdict)


def published(data: bytes) -> tuple[Report, int] | None:
    """Given the job's verdict as another put it, return it with the number of its nodes; None for another form."""
    try:
        found = _PUBLISHED.decode(data)
    except NOT_JSON:
        return None
    return found.report, found.nodes
