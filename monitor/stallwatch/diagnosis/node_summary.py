"""One node's evidence reduced to what a verdict over all nodes needs, and the verdict from many of them.

Raw dumps, stacks and logs stay on the node; what a rank does (its Activity) is read where its evidence lies.
"""

from collections.abc import Sequence

import msgspec

from stallwatch.diagnosis.activity import Activity
from stallwatch.diagnosis.activity.membership import is_of_group
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.logs import read_logs
from stallwatch.diagnosis.verdicts import Judgement, judge, judged
from stallwatch.model.evidence import SHARED_LOG, Attempt, Evidence, LogEvent, NodeEvidence, ProcessLook, RankEvidence
from stallwatch.model.snapshot import Heartbeat
from stallwatch.model.summary import SCHEMA_VERSION, RankSummary, Stream

_LOG_EVENTS_KEPT = 20
_FRAMES_KEPT = 24


class RankDigest(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    summary: RankSummary
    activity: Activity
    processes: tuple[ProcessLook, ...] = ()  # without their threads, but for the main one and one of a group
    log_events: tuple[LogEvent, ...] = ()
    has_log: bool = False
    attempts: tuple[Attempt, ...] = ()  # of what is asked whether it was asked for: its record, its log
    last_words: tuple[Heartbeat, ...] = ()  # its hook's, where it said that it ends: the exit code


class Run(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Ranks start, start + step, …, below stop. A mesh dimension of any size is one of these."""

    start: int
    stop: int
    step: int


class NodeSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one daemon writes for the one that merges. `schema_version` grows; a reader takes its own and the last."""

    schema_version: int
    world_size: int | None
    ranks: tuple[RankDigest, ...]
    nodes: tuple[NodeEvidence, ...]
    looks: int = 1
    log_events: tuple[LogEvent, ...] = ()
    # Member sets of groups: a stream holds the negative index - 1 instead of sixteen thousand ranks.
    members: tuple[tuple[Run, ...], ...] = ()


def summarise_node(evidence: Evidence, judgement: Judgement | None = None) -> NodeSummary:
    """Given a node's evidence, and the judgement of it where there is one, return its summary. Linear in the evidence,
    small in the result."""
    judgement = judgement or judge(evidence)
    table: dict[tuple[int, ...], int] = {}
    ranks = tuple(_digest(rank, judgement, table) for rank in judgement.ranks)
    return NodeSummary(
        schema_version=SCHEMA_VERSION,
        world_size=evidence.world_size,
        ranks=ranks,
        nodes=tuple(_shorten_node(node) for node in evidence.nodes),
        looks=evidence.looks,
        log_events=evidence.log_events[-_LOG_EVENTS_KEPT:],
        members=tuple(_runs(ranks) for ranks in table),
    )


def judge_nodes(summaries: Sequence[NodeSummary]) -> Judgement:
    """Given the summaries of all nodes that reported, in any order, return the judgement over the whole job.

    A rank that two nodes report (a restart, a stray bundle) counts once: the later look, then the first host.
    """
    digests: dict[int, RankDigest] = {}
    shared: dict[tuple[Run, ...], tuple[int, ...]] = {}
    for summary in sorted(summaries, key=lambda s: [node.host for node in s.nodes]):
        for runs in summary.members:
            if runs not in shared:
                shared[runs] = tuple(rank for run in runs for rank in range(run.start, run.stop, run.step))
        members = [shared[runs] for runs in summary.members]
        for digest in summary.ranks:
            known = digests.get(digest.summary.rank)
            if known is None or digest.summary.look > known.summary.look:
                digests[digest.summary.rank] = _with_members(digest, members)
    ranks = [digests[rank] for rank in sorted(digests)]
    evidence = {digest.summary.rank: _evidence(digest) for digest in ranks}
    nodes = [node for summary in summaries for node in summary.nodes]
    loose = [event for summary in summaries for event in summary.log_events]
    case = Case(
        [digest.summary for digest in ranks],
        {digest.summary.rank: digest.activity for digest in ranks},
        max((summary.world_size for summary in summaries if summary.world_size), default=None),
        nodes,
        evidence,
        max((summary.looks for summary in summaries), default=1),
        read_logs(evidence.values(), loose, nodes),
    )
    return judged(case, tuple(evidence.values()))


def _with_members(digest: RankDigest, members: Sequence[tuple[int, ...]]) -> RankDigest:
    """The members of each group, as tuples that all ranks share."""
    streams = tuple(
        msgspec.structs.replace(stream, ranks=members[-stream.ranks[0] - 1]) if _is_reference(stream) else stream
        for stream in digest.summary.streams
    )
    return msgspec.structs.replace(digest, summary=msgspec.structs.replace(digest.summary, streams=streams))


def _is_reference(stream: Stream) -> bool:
    return len(stream.ranks) == 1 and stream.ranks[0] < 0


def _runs(ranks: tuple[int, ...]) -> tuple[Run, ...]:
    """Given ranks in a group's own order, return them as few arithmetic runs."""
    runs: list[Run] = []
    start = 0
    while start < len(ranks):
        end = start + 1
        step = ranks[end] - ranks[start] if end < len(ranks) else 1
        while step > 0 and end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
        runs.append(Run(ranks[start], ranks[end - 1] + 1, max(step, 1)))
        start = end
    return tuple(runs)


def _digest(rank: RankEvidence, judgement: Judgement, table: dict[tuple[int, ...], int]) -> RankDigest:
    summary, activity = judgement.summaries[rank.rank], judgement.activities[rank.rank]
    streams = tuple(
        msgspec.structs.replace(stream, ranks=(-table.setdefault(stream.ranks, len(table)) - 1,))
        if stream.ranks
        else stream
        for stream in summary.streams
    )
    return RankDigest(
        summary=msgspec.structs.replace(summary, streams=streams),
        activity=msgspec.structs.replace(activity, stack=activity.stack[:_FRAMES_KEPT]),
        processes=tuple(_shorten(look) for look in rank.processes),
        log_events=rank.log_events[-_LOG_EVENTS_KEPT:],
        has_log=bool(rank.log),
        attempts=tuple(
            msgspec.structs.replace(attempt, detail=SHARED_LOG if attempt.detail == SHARED_LOG else "")
            for attempt in rank.attempts
            if attempt.what in ("heartbeat", "log")
        ),
        last_words=tuple(
            msgspec.structs.replace(beat, path="", step_durations_ns=(), groups=(), looks=(), differs=())
            for beat in rank.heartbeat
            if beat.ended and not beat.is_child
        )[-1:],
    )


def _shorten(look: ProcessLook) -> ProcessLook:
    """The main thread, and one of those that only a process with a group has."""
    main = tuple(thread for thread in look.threads if thread.tid == look.pid)
    of_group = tuple(thread for thread in look.threads if is_of_group(thread))[:1]
    return msgspec.structs.replace(look, threads=(*main, *of_group), children=())


def _shorten_node(node: NodeEvidence) -> NodeEvidence:
    """`kernel_log` empty and not None: it was read."""
    return msgspec.structs.replace(node, gpus=node.gpus[-1:], kernel_log=None if node.kernel_log is None else ())


def _evidence(digest: RankDigest) -> RankEvidence:
    return RankEvidence(
        rank=digest.summary.rank,
        host=digest.activity.host,
        pid=digest.activity.pid,
        processes=digest.processes,
        log_events=digest.log_events,
        log=("",) if digest.has_log else (),
        attempts=digest.attempts,
        heartbeat=digest.last_words,
    )
