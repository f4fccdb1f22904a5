"""Recorders that do not tell what has ended: which ones these are in a job, and what still follows from their entries.

An operation that every member must enter has not ended while one of them has not even issued it; a message that was not
sent has not arrived. That much is a wait whatever the entries say. Nothing else is: where all have issued the same it
is not known whether anything ends.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from msgspec.structs import replace

from stallwatch.diagnosis.job.groups import GroupStream
from stallwatch.diagnosis.recorder import signature
from stallwatch.diagnosis.recorder.operations import OPEN
from stallwatch.model.summary import ANY, Call, Pending, RankSummary, Transfer

if TYPE_CHECKING:
    from stallwatch.diagnosis.job.case import Case
    from stallwatch.diagnosis.job.groups import Group


# Hosts that are inside a coalesced call: they have recorded the first members of a batch and not its end.
#
# What such a host has entered is nothing yet, and it has called nothing else than its peers: its batch is as theirs, as
# far as it goes.


def take_back(case: Case) -> None:
    """Take the newest call of every such host out of the case, and mark it as not issued."""
    tables = {id(summary.calls): summary.calls for summary in case.summaries.values()}
    if not any(call.members for calls in tables.values() for call in calls):
        return
    for index, members in enumerate(case.streams):
        if not any(call.members for member in members.values() for call in member.summary.calls):
            continue
        batches: dict[int, tuple[str, ...]] = {}  # by number, of those under which some member's recorder ends
        for rank, member in list(members.items()):
            seq = member.stream.last_seq
            call = member.call_at(seq)
            if call is None or member.stream.completed >= seq:
                continue
            if seq not in batches:
                batches[seq] = _whole_batch(members, seq)
            if not _is_begun(call, batches[seq]) or not _is_newest(member, call):
                continue
            members[rank] = replace(member, stream=replace(member.stream, calls=member.stream.calls[:-2]))
            stream = next(i for (r, i), group in case.group_of.items() if (r, group) == (rank, index))
            case.summaries[rank] = _without(case.summaries[rank], stream, seq, call)


def _whole_batch(members: Mapping[int, GroupStream], seq: int) -> tuple[str, ...]:
    """What the members of a group launched as one under a number, the longest of it; () where none did. Hosts run
    ahead: it need not be the newest call of any of them."""
    calls = (member.call_at(seq) for member in members.values())
    return max((call.members for call in calls if call and OPEN not in call.operation), key=len, default=())


def _is_begun(call: Call, batch: tuple[str, ...]) -> bool:
    if call.members:
        return OPEN in call.operation and call.members == batch[: len(call.members)]
    return len(batch) > 1 and batch[0] == signature.as_member(call.operation, call.elements, call.dtype)


def _is_newest(member: GroupStream, call: Call) -> bool:
    """Whether a rank has called nothing since in the thread of a group: a host that is inside a call does not."""
    program, lane = member.summary.program, member.stream.lane
    made = array("H", program[lane]) if lane < len(program) else array("H")
    return not made or made[-1] == member.summary.calls.index(call)


def _without(summary: RankSummary, stream: int, seq: int, call: Call) -> RankSummary:
    pending = tuple(
        replace(item, launched=False) if (item.stream, item.seq) == (stream, seq) and not item.transfers else item
        for item in summary.pending
    )
    number = summary.calls.index(call)
    program = []
    for lane in summary.program:
        values = array("H", lane)
        if values and values[-1] == number:
            values.pop()
        program.append(values.tobytes())
    return replace(summary, pending=pending, program=tuple(program))


_APART_NS = 2_000_000_000  # times of capture are accurate to a second


def untold_backends(
    summaries: Mapping[int, RankSummary],
    groups: Iterable[Mapping[int, GroupStream]],
    in_transfers: Collection[int] = (),
) -> frozenset[str]:
    """Given all ranks' summaries, each group's members and who stands in a send or receive by its stack, return the
    back ends whose recorders tell of no end.

    One rank may have nothing unfinished while another's entries show that the recorder does tell; and one that called
    little does not contradict those by which nothing is ever told. Where nothing has ended a job may stand in its first
    call; not so one of which a host has gone on to a message.
    """
    seen: dict[str, set[str]] = {}
    for summary in summaries.values():
        for backend, completion in zip(summary.backends, summary.completion, strict=False):
            if any(stream.backend == backend for stream in summary.streams):
                seen.setdefault(backend, set()).add(completion)
    no_end_told = [{"all_retired"}, {"none_retired"}, {"none_retired", "none_yet"}]
    no_end_told += [{"none_yet"}] if in_transfers else []
    silent = {backend for backend, found in seen.items() if found in no_end_told}
    unsure = {backend for backend, found in seen.items() if "states" not in found} - silent
    for members in groups:
        streams = [member.stream for member in members.values()]
        if streams and streams[0].backend in unsure and _contradicts(summaries, members):
            silent.add(streams[0].backend)
    return frozenset(silent)


def _contradicts(summaries: Mapping[int, RankSummary], members: Mapping[int, GroupStream]) -> bool:
    """True when what all must enter is over on one member, and another has not issued it, not even later."""
    lowest = min(member.stream.last_seq for member in members.values())
    ahead = {
        rank: seq
        for rank, member in members.items()
        if member.stream.completed > lowest and (seq := _last_of_all(member, lowest)) is not None
    }
    behind = {rank: m.stream.last_seq for rank, m in members.items() if not m.stream.cut_short}
    return any(
        behind[other] < seq and _is_later(summaries, rank, other, members)
        for (rank, seq), other in product(ahead.items(), _least(behind))
    )


def _least(behind: Mapping[int, int]) -> Sequence[int]:
    return [rank for rank, seq in behind.items() if seq == min(behind.values())]


def _last_of_all(member: GroupStream, after: int) -> int | None:
    """The last number up to which it is over, and that all members must enter."""
    for seq in range(member.stream.completed, after, -1):
        call = member.call_at(seq)
        if call is not None and signature.is_synchronising(call.operation):
            return seq
    return None


def _is_later(summaries: Mapping[int, RankSummary], rank: int, peer: int, members: Mapping[int, GroupStream]) -> bool:
    """True when the peer's dump is surely not older: this group stands on both, or it was taken well after. Where
    training stands a side thread's group goes on, and ranks dump one after the other."""
    one, other = summaries[rank], summaries[peer]
    if all(_stands(summaries[number], members[number]) for number in (rank, peer)):
        return True
    if one.captured_at_ns is None or other.captured_at_ns is None:
        return False
    return other.captured_at_ns - one.captured_at_ns > _APART_NS


def _stands(summary: RankSummary, member: GroupStream) -> bool:
    return summary.advanced is False and member.stream.lane not in summary.advanced_lanes


def doubt(case: Case) -> None:
    """Take nothing for over in recorders that do not tell."""
    for index, group in enumerate(case.groups):
        if group.backend in case.untold:
            case.streams[index] = {
                rank: replace(member, stream=replace(member.stream, completed=0))
                for rank, member in case.streams[index].items()
            }


def prove(case: Case) -> None:
    """In recorders that do not tell: what lacks somebody is pending, and nothing else is known to be."""
    if not case.untold:
        return
    proven = {rank: _proven(case, rank, summary) for rank, summary in case.summaries.items()}
    case.summaries.update(proven)


def _proven(case: Case, rank: int, summary: RankSummary) -> RankSummary:
    silent = {index for index, stream in enumerate(summary.streams) if stream.backend in case.untold}
    told = [pending for pending in summary.pending if pending.stream not in silent]
    shown = [issued for issued in summary.issued if issued.stream in silent and _lacks_somebody(case, rank, issued)]
    pending = sorted([*told, *shown], key=lambda p: (p.lane, p.created_ns or 0, p.record))
    return replace(summary, pending=tuple(pending))


def _lacks_somebody(case: Case, rank: int, issued: Pending) -> bool:
    """True when it cannot end: somebody whom it needs has not issued it. Others may end without, by their kind; of
    these only a rank that stands in communication shows that it waits."""
    activity = case.activity(rank)
    waits = bool(activity.call.in_collective or activity.place.gpu_sync)
    if issued.transfers:
        needed = [transfer for transfer in issued.transfers if waits or not transfer.outgoing]
        return any(_lacks_peer(case, rank, issued, transfer) for transfer in needed)
    call = case.call(rank, issued)
    group = case.group(rank, issued)
    if waits and len(case.streams[group.index]) == 1 and not (group.members_known and len(group.ranks) == 1):
        return issued == case.summaries[rank].issued[-1]  # nobody else is seen in it, and it stands in its newest call
    needs_all = waits or (call is not None and signature.is_synchronising(call.operation))
    return needs_all and any(_has_not_issued(case, member, group, issued) for member in group.ranks)


def _has_not_issued(case: Case, rank: int, group: Group, issued: Pending) -> bool:
    if not _is_dated_after(case, rank, issued):
        return False
    member = case.streams[group.index].get(rank)
    if member is None:
        return group.backend in case.summaries[rank].backends
    return not member.stream.cut_short and member.stream.last_seq < issued.seq


def _is_dated_after(case: Case, rank: int, issued: Pending) -> bool:
    """True when the rank was dumped well after the operation was issued elsewhere: an older dump lacks it in health."""
    if not case.recorded(rank):
        return False
    summary = case.summaries[rank]
    if issued.seen_before and summary.look >= case.looks:
        return True
    if summary.captured_at_ns is None or issued.created_ns is None:
        return False
    return summary.captured_at_ns - issued.created_ns > _APART_NS


def _lacks_peer(case: Case, rank: int, issued: Pending, transfer: Transfer) -> bool:
    ends = case.ends(rank, issued, transfer)
    peer = next((end for end in ends if end != rank), None)
    if (
        peer in (None, ANY)
        or not case.recorded(peer)
        or not (case.summaries[rank].whole and case.summaries[peer].whole)
    ):
        return False
    theirs = case.transfers.pair(peer, case.group(rank, issued).index, *ends)
    return (theirs.done + theirs.pending if theirs else 0) < transfer.ordinal


def may_hide_transfers(summary: RankSummary) -> bool:
    """True for a back end whose calls block their host, as gloo's do, and that has recorded no transfer. A build has
    every back end's recorder, also in a process without a group of it: gloo's knows each from its creation."""
    recording = {summary.streams[pair.stream].backend for pair in summary.pairs}
    return any(
        completion != "states"
        and backend not in recording
        and (backend not in summary.groupless or not summary.streams)
        for backend, completion in zip(summary.backends, summary.completion, strict=False)
    )
