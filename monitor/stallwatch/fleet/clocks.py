"""Nodes whose wall clocks are apart: their times laid beside each other by the meeting place's own clock. Pure.

Whether a dump is older than the call that others wait in is told by times of two hosts. One whose clock is a minute
behind would seem to have been dumped before the hang, and nothing that it says would count.
"""

from collections.abc import Mapping
from statistics import median_low
from typing import Final

from msgspec.structs import replace

from stallwatch.diagnosis.node_summary import NodeSummary, RankDigest
from stallwatch.fleet.node_word import MOST_NAME, Believed
from stallwatch.model.log_event import LogEvent
from stallwatch.model.summary import Pending

# The place's clock has whole seconds, and a put may take three: what is less is no clock that is apart.
_APART_SECONDS: Final = 8.0
_MOST_NAMED: Final = 4


def aligned(believed: Believed, ages: Mapping[str, float]) -> Believed:
    """Given what nodes say, and for how many seconds each word has stood there, by the place's own clock, return the
    words with times of one clock, that of most nodes, and a caveat that names the others.

    Of a node that has put again meanwhile, or that does not say when it put, nothing is changed."""
    since_ns = {
        word.node: -int(ages[word.node] * 1e9) - word.put_wall_ns
        for word in believed.words
        if word.put_wall_ns and word.node in ages
    }
    if len(since_ns) < 2:
        return believed
    usual_ns = median_low(sorted(since_ns.values()))
    apart = {node: at - usual_ns for node, at in since_ns.items() if abs(at - usual_ns) > _APART_SECONDS * 1e9}
    if not apart:
        return believed
    words = tuple(
        replace(word, summary=_shifted(word.summary, apart[word.node])) if word.node in apart else word
        for word in believed.words
    )
    return believed._replace(words=words, caveats=(*believed.caveats, _said(apart)))


def _said(apart: Mapping[str, int]) -> str:
    each = [
        f"{node[:MOST_NAME]} is {abs(ns) / 1e9:.0f} s {'behind' if ns > 0 else 'ahead'}"
        for node, ns in sorted(apart.items())[:_MOST_NAMED]
    ]
    more = f" and {len(apart) - _MOST_NAMED} more are apart" * (len(apart) > _MOST_NAMED)
    return f"the clocks of nodes are not alike: {', '.join(each)}{more}; their times were laid beside the others'"


def _shifted(summary: NodeSummary, ns: int) -> NodeSummary:
    return replace(
        summary,
        ranks=tuple(_shifted_rank(digest, ns) for digest in summary.ranks),
        log_events=tuple(_shifted_event(event, ns) for event in summary.log_events),
    )


def _shifted_rank(digest: RankDigest, ns: int) -> RankDigest:
    said = digest.summary
    streams = tuple(
        replace(
            stream,
            arrivals=tuple(replace(one, created_ns=one.created_ns + ns) for one in stream.arrivals),
            last_created_ns=None if stream.last_created_ns is None else stream.last_created_ns + ns,
        )
        for stream in said.streams
    )
    said = replace(
        said,
        streams=streams,
        pending=tuple(_shifted_call(one, ns) for one in said.pending),
        issued=tuple(_shifted_call(one, ns) for one in said.issued),
        captured_at_ns=None if said.captured_at_ns is None else said.captured_at_ns + ns,
    )
    return replace(digest, summary=said, log_events=tuple(_shifted_event(event, ns) for event in digest.log_events))


def _shifted_call(pending: Pending, ns: int) -> Pending:
    return pending if pending.created_ns is None else replace(pending, created_ns=pending.created_ns + ns)


def _shifted_event(event: LogEvent, ns: int) -> LogEvent:
    return event if event.at_seconds is None else replace(event, at_seconds=event.at_seconds + ns / 1e9)
