"""What a node summary may tell of code to other nodes. Pure.

`lines`: all that the verdict of its own node shows. `functions`: functions, lines' numbers and the last parts of paths;
no source line, none of the job's own words (exceptions' messages, lines of logs that no framework wrote). `none`: not
where in the job's code either. What decides who hung the job is the same in all of them.
"""

import hashlib
import re
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from stallwatch.diagnosis.activity import Activity
from stallwatch.diagnosis.frames.code_origin import Origin, place
from stallwatch.diagnosis.job.leaving import told_by
from stallwatch.diagnosis.node_summary import NodeSummary, RankDigest
from stallwatch.model.evidence import CodeFrame, LogEvent, SourceBlock
from stallwatch.model.verdict import Fact, Frame

Detail = Literal["none", "functions", "lines"]


def as_detail(text: str) -> Detail:
    """Raise ValueError (msgspec's)."""
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
        ranks=tuple(_digest(digest, detail) for digest in summary.ranks),
        log_events=tuple(_event(event, detail) for event in summary.log_events),
    )
    return msgspec.convert(_relative(msgspec.to_builtins(kept, builtin_types=(bytes,))), NodeSummary)


def _relative(value: Any) -> Any:
    """Every absolute path in every text, cut to what tells whose file it is."""
    if isinstance(value, str):
        return _PATH.sub(lambda match: relative(match[0]), value) if "/" in value else value
    if isinstance(value, dict):
        return {key: _relative(one) for key, one in value.items()}
    return [_relative(one) for one in value] if isinstance(value, list | tuple) else value


def relative(path: str) -> str:
    """Return "…/project/models/block.py", "…/site-packages/torch/…" for an absolute path."""
    if not path.startswith("/"):
        return path
    for layout in _TELLS_ORIGIN:
        if known := list(layout.finditer(path)):
            return "…" + path[known[-1].start() :]
    return "…/" + "/".join(path.split("/")[-_PARTS_KEPT:]).lstrip("/")


def _digest(digest: RankDigest, detail: Detail) -> RankDigest:
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


def _activity(activity: Activity) -> Activity:
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
        child_frame=_without_source(activity.child_frame),
        blocks=_headless(activity),
        polls="",
        detail=wordless(activity.detail),
        why=tuple(Fact(wordless(fact.fact), fact.source) for fact in activity.why),
    )


def _headless(activity: Activity) -> tuple[tuple[str, str, SourceBlock], ...] | None:
    """Blocks without the text of their headers: which loops ranks are in, and whether over data or stages."""
    if activity.blocks is None:
        return None
    return tuple((file, name, replace(block, text=told_by(block.text))) for file, name, block in activity.blocks)


def _nowhere(activity: Activity) -> Activity:
    """Without any place in the code. Stacks become tokens: which ranks stand at one place can be told, not where."""
    return replace(
        activity,
        frame=None,
        exception_frame=None,
        awaited_frame=None,
        child_frame=None,
        blocks=None,
        handled=None if activity.handled is None else replace(activity.handled, frames=()),
        stack=tuple(_token(frame) for frame in activity.stack),
        awaited_stack=tuple(_token(frame) for frame in activity.awaited_stack),
        why=(),
    )


def _token(frame: CodeFrame) -> CodeFrame:
    if place(frame.filename).origin not in (Origin.JOB, Origin.GENERATED):
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
