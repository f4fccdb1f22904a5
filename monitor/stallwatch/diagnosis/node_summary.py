"""One node's evidence reduced to what a verdict over all nodes needs, and the verdict from many of them.

Raw dumps, stacks and logs stay on the node; what a rank does (its activity) is read where its evidence lies.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from stallwatch.diagnosis.activity.flat import FlatActivity, flatten, unflatten
from stallwatch.diagnosis.activity.threads import is_of_group
from stallwatch.diagnosis.frames.code_origin import Origin, code_origin
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.job.leaving import told_by
from stallwatch.diagnosis.logs import read_logs
from stallwatch.diagnosis.verdicts import Judgement, judge, judged
from stallwatch.model.evidence import (
    SHARED_LOG,
    Attempt,
    CodeFrame,
    Evidence,
    NodeEvidence,
    ProcessLook,
    RankEvidence,
    SourceBlock,
)
from stallwatch.model.log_event import LogEvent
from stallwatch.model.snapshot import Heartbeat
from stallwatch.model.summary import SCHEMA_VERSION, Call, RankSummary, Stream
from stallwatch.model.verdict import Fact, Frame

_LOG_EVENTS_KEPT = 20
_FRAMES_KEPT = 24


class RankDigest(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What other nodes get of one rank: summary and activity, and the few raw facts that a verdict asks for."""

    summary: RankSummary
    activity: FlatActivity
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
    calls: dict[tuple[Call, ...], tuple[Call, ...]] = {}
    for summary in sorted(summaries, key=lambda s: [node.host for node in s.nodes]):
        for runs in summary.members:
            if runs not in shared:
                shared[runs] = tuple(rank for run in runs for rank in range(run.start, run.stop, run.step))
        members = [shared[runs] for runs in summary.members]
        for digest in summary.ranks:
            known = digests.get(digest.summary.rank)
            if known is None or digest.summary.look > known.summary.look:
                digests[digest.summary.rank] = _shared(digest, members, calls)
    ranks = [digests[rank] for rank in sorted(digests)]
    evidence = {digest.summary.rank: _evidence(digest) for digest in ranks}
    nodes = [node for summary in summaries for node in summary.nodes]
    loose = [event for summary in summaries for event in summary.log_events]
    case = Case(
        [digest.summary for digest in ranks],
        {digest.summary.rank: unflatten(digest.activity) for digest in ranks},
        max((summary.world_size for summary in summaries if summary.world_size), default=None),
        nodes,
        evidence,
        max((summary.looks for summary in summaries), default=1),
        read_logs(evidence.values(), loose, nodes),
    )
    return judged(case, tuple(evidence.values()))


def _shared(
    digest: RankDigest, members: Sequence[tuple[int, ...]], calls: dict[tuple[Call, ...], tuple[Call, ...]]
) -> RankDigest:
    """With the members of each group, and tables of calls, as tuples that all ranks share."""
    streams = tuple(
        msgspec.structs.replace(stream, ranks=members[-stream.ranks[0] - 1]) if _is_reference(stream) else stream
        for stream in digest.summary.streams
    )
    table = calls.setdefault(digest.summary.calls, digest.summary.calls)
    return msgspec.structs.replace(
        digest, summary=msgspec.structs.replace(digest.summary, streams=streams, calls=table)
    )


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
    summary, activity = judgement.summaries[rank.rank], flatten(judgement.activities[rank.rank])
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


# What a node summary may tell of code to other nodes. Pure.
#
# `lines`: all that the verdict of its own node shows. `functions`: functions, lines' numbers and the last parts of
# paths; no source line, none of the job's own words (exceptions' messages, lines of logs that no framework wrote).
# `none`: not where in the job's code either. What decides who hung the job is the same in all of them.


Detail = Literal["none", "functions", "lines"]


def as_detail(text: str) -> Detail:
    """Given what a person wrote, return it if it is a Detail. Raise ValueError (msgspec's), which names the choices."""
    found: Detail = msgspec.convert(text, Detail)
    return found


_PATH = re.compile(r"(?<![\w./…])/(?:[^\s/:'\"`,;()<>]+/)+[^\s/:'\"`,;()<>]+")
# What frames.code_origin knows a file's origin by, the surest first.
_TELLS_ORIGIN = (
    re.compile(r"/(?:site|dist)-packages/"),
    re.compile(r"/lib(?:64|32)?/(?:python|pypy)[\d.]*t?/"),
    re.compile(r"/torch/"),
)
_PARTS_KEPT = 3
# Kinds of events whose text is the job's own; other kinds are lines of torch, NCCL, gloo, launchers and the kernel.
_OF_THE_JOB = frozenset({"exception", "native_exception", "failed_stack", "actor_died", "error_like", "last_line"})


def redacted(summary: NodeSummary, detail: Detail) -> NodeSummary:
    """Given a summary as its node knows it, return it as `detail` lets it go."""
    if detail == "lines":
        return summary
    kept = replace(
        summary,
        ranks=tuple(_redacted_digest(digest, detail) for digest in summary.ranks),
        log_events=tuple(_event(event, detail) for event in summary.log_events),
    )
    return msgspec.convert(_relative(msgspec.to_builtins(kept, builtin_types=(bytes,))), NodeSummary)


def _relative(value: Any) -> Any:
    """Every absolute path in every text, cut to what tells whose file it is."""
    if isinstance(value, str):
        return _PATH.sub(lambda match: relative(match[0]), value) if "/" in value else value
    if isinstance(value, dict):
        # A mount's source is the site's, no path of the job's, and the same on all nodes.
        return {key: one if key == "waits_on" else _relative(one) for key, one in value.items()}
    return [_relative(one) for one in value] if isinstance(value, list | tuple) else value


def relative(path: str) -> str:
    """Return "…/project/models/block.py", "…/site-packages/torch/…" for an absolute path."""
    if not path.startswith("/"):
        return path
    for layout in _TELLS_ORIGIN:
        if known := list(layout.finditer(path)):
            return "…" + path[known[-1].start() :]
    return "…/" + "/".join(path.split("/")[-_PARTS_KEPT:]).lstrip("/")


def _redacted_digest(digest: RankDigest, detail: Detail) -> RankDigest:
    activity, summary = _activity(digest.activity), digest.summary
    if detail == "none":
        activity = _nowhere(activity)
        summary = replace(summary, calls=tuple(replace(call, site="") for call in summary.calls))
    return replace(
        digest,
        summary=summary,
        activity=activity,
        log_events=tuple(_event(event, detail) for event in digest.log_events),
        last_words=tuple(replace(beat, exception=_kind(beat.exception)) for beat in digest.last_words),
    )


def _activity(activity: FlatActivity) -> FlatActivity:
    """Without source lines and without the job's own words."""
    words = [text for text in (activity.exception, activity.logged_beside) if text and text != _kind(text)]

    def wordless(text: str) -> str:
        for word in words:
            text = text.replace(word, _kind(word))
        return text.replace(activity.polls, "…") if activity.polls else text

    return replace(
        activity,
        frame=_without_source(activity.frame),
        exception=None if activity.exception is None else _kind(activity.exception),
        exception_frame=_without_source(activity.exception_frame),
        logged_beside=None if activity.logged_beside is None else _kind(activity.logged_beside),
        awaited_frame=_without_source(activity.awaited_frame),
        beside_frame=_without_source(activity.beside_frame),
        child_frame=_without_source(activity.child_frame),
        blocks=_headless(activity),
        polls="",
        detail=wordless(activity.detail),
        why=tuple(Fact(wordless(fact.fact), fact.source) for fact in activity.why),
    )


def _headless(activity: FlatActivity) -> tuple[tuple[str, str, SourceBlock], ...] | None:
    """Blocks without the text of their headers: which loops ranks are in, and whether over data or stages."""
    if activity.blocks is None:
        return None
    return tuple((file, name, replace(block, text=told_by(block.text))) for file, name, block in activity.blocks)


def _nowhere(activity: FlatActivity) -> FlatActivity:
    """Without any place in the code. Stacks become tokens: which ranks stand at one place can be told, not where."""
    return replace(
        activity,
        frame=None,
        exception_frame=None,
        awaited_frame=None,
        beside_frame=None,
        child_frame=None,
        blocks=None,
        handled=None if activity.handled is None else replace(activity.handled, frames=()),
        stack=tuple(_token(frame) for frame in activity.stack),
        awaited_stack=tuple(_token(frame) for frame in activity.awaited_stack),
        why=(),
    )


def _token(frame: CodeFrame) -> CodeFrame:
    if code_origin(frame.filename).origin not in (Origin.JOB, Origin.GENERATED):
        return frame  # a library's: it tells nothing of the job
    said = hashlib.sha256(f"{frame.filename}\0{frame.name}\0{frame.line}".encode("utf-8", "replace")).hexdigest()
    return CodeFrame(said[:12], "<not told>", 0)


def _event(event: LogEvent, detail: Detail) -> LogEvent:
    if event.kind in _OF_THE_JOB or event.exception is not None:
        event = replace(event, text=event.exception or "", message=None)
    return replace(event, frame=None) if detail == "none" else event


def _without_source(frame: Frame | None) -> Frame | None:
    return None if frame is None else replace(frame, source=None)


def _kind(text: str) -> str:
    """The type of an exception, without its message: "RuntimeError"."""
    return text.partition(":")[0].strip()
