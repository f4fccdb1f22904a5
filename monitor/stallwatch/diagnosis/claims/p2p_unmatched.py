"""Both ends of a send or receive are there, and their sizes differ: it does not end, and looks entered by all."""

import re
from collections import Counter
from math import prod
from typing import NamedTuple

from stallwatch.diagnosis.analysis import Story
from stallwatch.diagnosis.calls.sequences import program
from stallwatch.diagnosis.claim import Claim, Saying, group_name, named, waiting_facts
from stallwatch.diagnosis.waits.graph import Wait
from stallwatch.model.summary import ANY, Call, Pending
from stallwatch.model.verdict import Fact, Mismatch


class _Pair(NamedTuple):
    wait: Wait  # the sender's
    source: int
    destination: int
    sent: int
    received: int


def claim(story: Story) -> Saying:
    pairs = _pairs(story) if story.hangs else []
    if not pairs:
        return None
    ends = Counter(rank for pair in pairs for rank in (pair.source, pair.destination))
    most = [rank for rank, count in ends.items() if count == max(ends.values())]
    if len(most) > 1:
        brought = {(p.source, p.sent) for p in pairs} | {(p.destination, p.received) for p in pairs}
        most = [rank for rank in most if any(r == rank and _is_odd(story, r, size) for r, size in brought)] or most
    culprits = tuple(sorted(most)) if len(most) <= 2 else ()
    first = next((pair for pair in pairs if {pair.source, pair.destination} & set(culprits)), pairs[0])
    group = story.case.groups[first.wait.point.group]
    found_is_sent = first.source in culprits or first.destination not in culprits
    expected, found = (first.received, first.sent) if found_is_sent else (first.sent, first.received)
    call = story.case.call(first.wait.rank, first.wait.pending)
    return Claim(
        cause="p2p_unmatched",
        culprits=culprits,
        confidence="likely" if len(culprits) == 1 else "possible",
        because=(
            *(
                Fact(
                    f"rank {pair.source} sends {pair.sent} elements to rank {pair.destination} in "
                    f"{group_name(story.case, group)}, which receives {pair.received}",
                    f"flight recorders of {named((pair.source, pair.destination))}",
                )
                for pair in pairs[:8]
            ),
            *waiting_facts(story),
        ),
        where="collective",
        mismatch=Mismatch("size", f"{expected} elements", f"{found} elements"),
        group=group.index,
        operation=call.operation if call and len(first.wait.pending.transfers) == 1 else None,
        site=call.site if call and first.source in culprits else "",
    )


def _pairs(story: Story) -> list[_Pair]:
    """Transfers that wait at both ends with different sizes."""
    case = story.case
    waiting: dict[tuple[int, int, int], list[tuple[Wait, bool, int]]] = {}
    for wait in story.graph.waits:
        for (source, destination), outgoing, elements in _transfers(story, wait.rank, wait.pending):
            waiting.setdefault((wait.point.group, source, destination), []).append((wait, outgoing, elements))
    found = []
    for (_, source, destination), ends in sorted(waiting.items()):
        sends = [(wait, elements) for wait, outgoing, elements in ends if outgoing and wait.rank == source]
        receives = [elements for wait, outgoing, elements in ends if not outgoing and wait.rank == destination]
        # The k-th pending send of a pair meets the k-th pending receive.
        for (wait, sent), received in zip(sends, receives, strict=False):
            if sent != received:
                found.append(_Pair(wait, source, destination, sent, received))
                break
    return found if case.summaries else []


def _transfers(story: Story, rank: int, pending: Pending) -> list[tuple[tuple[int, int], bool, int]]:
    return [
        (ends, transfer.outgoing, transfer.elements)
        for transfer in pending.transfers
        if transfer.elements is not None and transfer.outgoing is not None
        if ANY not in (ends := story.case.ends(rank, pending, transfer))
    ]


def _is_odd(story: Story, rank: int, elements: int) -> bool:
    """True when the rank's transfers at the line of that size had another one before, and no less often; hosts run
    ahead, so that it need not be the newest."""
    calls = [call for call in program(story.case, rank) if call.operation.startswith(("send ", "recv "))]
    sites = {call.site for call in calls if _elements(call) == elements}
    sizes = [_elements(call) for call in calls if call.site in sites and call.shape]
    counts = Counter(sizes)
    before = sizes[: sizes.index(elements)] if elements in counts else []
    return any(counts[size] >= counts[elements] for size in before)


def _elements(call: Call) -> int:
    return prod(int(size) for size in re.findall(r"\d+", call.shape))
