"""Where the members of a group called different things under one number: the first such place, and who differs.

A minority is only a hint. Where there is none, what the group did in earlier steps tells, then its sister groups.
"""

from array import array
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.job.groups import GroupStream, Key, family, key
from stallwatch.diagnosis.recorder import signature
from stallwatch.model.summary import Call

# What usually follows what: training repeats itself, so the last calls foretell the next one.


_LONGEST_PART = 512  # bounds the time; steps of more calls than these are rare


class Followers:
    """Learns from sequences that end where a prediction is wanted; `expects`: has this call followed before?"""

    def __init__(self, histories: Sequence[Sequence[Hashable]]) -> None:
        self._known: set[Hashable] = set()
        for history in histories:
            self._known |= _after_longest(history)

    def expects(self, what: Hashable) -> bool:
        """Whether a call was ever made before, so that something is known of what follows it."""
        return what in self._known


def _after_longest(history: Sequence[Hashable]) -> set[Hashable]:
    """What has followed the longest part that the end of the sequence repeats: a step holds loops of its own, and only
    a part that reaches beyond the last of them tells its first round from its last."""
    end = len(history)
    longest, found = 0, set[Hashable]()
    for place in range(1, end):
        length = 0
        while length < min(place, _LONGEST_PART) and history[place - 1 - length] == history[end - 1 - length]:
            length += 1
        if length > longest:
            longest, found = length, {history[place]}
        elif length and length == longest:
            found.add(history[place])
    return found


Decider = Literal["majority", "history", "sisters", "line", "slip", "site", "start", "nothing", "threads"]
BY_NEW_LINES = ("site", "start")  # deciders: what the group had called before, be it once
Kind = Literal["op", "size", "dtype", "count"]


_LITTLE_PAST = 8  # calls of a group, where its rings have lost the first ones
_MOST_SLIPPED = 16  # members whose lines are compared number by number
_PASSED_OFTEN = 2  # times that a line must have made a call before its habit means anything


class Divergence(msgspec.Struct, frozen=True):
    """The first number under which members of a group called different things: who differs, in what, and what decides
    it."""

    group: int
    seq: int
    culprits: tuple[int, ...]
    kind: Kind
    expected: Call
    found: Call
    decided_by: Decider
    voters: int  # members whose call at this number is known
    open: bool  # at least one member still waits in it
    found_is_new: bool  # the culprits had never called this in the group before
    expected_recurs: bool
    parts: tuple[tuple[Call, tuple[int, ...]], ...]  # who called what, the most first


def find_divergences(case: Case) -> tuple[Divergence, ...]:
    """Given the case, return each group's first divergence, earliest in the wait first."""
    found = []
    firsts: dict[int, tuple[int, dict[int, Call]]] = {}
    for group in case.groups:
        seq = case.first_difference(group.index)
        if seq is not None:
            calls = {
                rank: call
                for rank, member in case.streams[group.index].items()
                if (call := member.call_at(seq)) is not None
            }
            firsts[group.index] = (seq, calls)
    for index, (seq, calls) in firsts.items():
        found.append(_judge(case, index, seq, calls))
    return tuple(sorted(found, key=lambda d: (not d.open, d.group)))


def _judge(case: Case, group: int, seq: int, calls: dict[int, Call]) -> Divergence:
    classes: dict[Key, list[int]] = {}
    for rank, call in sorted(calls.items()):
        classes.setdefault(key(call), []).append(rank)
    expected, by = _expected(case, group, seq, classes, calls)
    if _is_race(case, group, seq, calls):
        by = "threads"
    culprits = tuple(rank for what, ranks in classes.items() if what != expected for rank in ranks)
    if by in ("nothing", "threads"):
        culprits = ()
    representative = {what: calls[ranks[0]] for what, ranks in classes.items()}
    odd = next(what for what in sorted(classes, key=lambda w: (len(classes[w]), str(w))) if what != expected)
    members = case.streams[group]
    before = [set(member.keys_before(seq)) for member in members.values()]
    culprits_before = [set(members[rank].keys_before(seq)) for rank in culprits or classes[odd]]
    return Divergence(
        group=group,
        seq=seq,
        culprits=tuple(sorted(culprits)),
        kind=_kind(representative[expected], representative[odd]),
        parts=tuple(
            (representative[what], tuple(ranks))
            for what, ranks in sorted(classes.items(), key=lambda item: (-len(item[1]), item[1]))
        ),
        expected=representative[expected],
        found=representative[odd],
        decided_by=by,
        voters=len(calls),
        open=any(member.stream.completed < seq for member in members.values()),
        found_is_new=not any(odd in keys for keys in culprits_before),
        expected_recurs=any(expected in keys for keys in before),
    )


def _expected(
    case: Case, group: int, seq: int, classes: dict[Key, list[int]], calls: dict[int, Call]
) -> tuple[Key, Decider]:
    total = sum(len(ranks) for ranks in classes.values())
    largest = max(classes, key=lambda what: (len(classes[what]), str(what)))
    if 2 * len(classes[largest]) > total:
        return largest, "majority"
    members = case.streams[group]
    beside = _sisters(case, group, seq, calls)
    sisters = [what for what in classes if what in beside]
    if len(sisters) == 1:
        return sisters[0], "sisters"
    slipped = _slipped(members, seq)
    if slipped is None:
        return largest, "nothing"  # one of them is one call off since then, and all that follows looks odd of either
    if slipped and len(kept := [what for what, ranks in classes.items() if not slipped.issuperset(ranks)]) == 1:
        return kept[0], "slip"
    faithful = [
        what for what, ranks in classes.items() if all(_keeps_to_line(members[r], seq, calls[r]) for r in ranks)
    ]
    if len(faithful) == 1:
        return faithful[0], "line"
    pasts = [list(member.calls_before(seq)) for member in members.values()]
    is_whole = all(member.stream.first_seq <= 1 for member in members.values())
    # What rings have lost may hold a line: little that is left does not make another one new.
    is_enough = is_whole or max(map(len, pasts)) >= _LITTLE_PAST
    sites = {call.site for past in pasts for call in past if call.site}
    is_lined = bool(sites) and all(call.site for call in calls.values())
    new = {what for what, ranks in classes.items() if is_lined and any(calls[r].site not in sites for r in ranks)}
    again = [what for what in classes if is_lined and is_enough and what not in new]
    ends = all(signature.is_barrier(what[0]) for what in new)
    if len(again) == 1 and any(_goes_round(members[r], seq, calls[r], or_begins=ends) for r in classes[again[0]]):
        return again[0], "site"
    usual = _usual(members, seq, classes, calls)
    if len(usual) == 1:
        return usual[0], "history"
    past = {what for member in members.values() for what in member.keys_before(seq)}
    known = [what for what in classes if what in past]
    one_operation = len({what[0] for what in classes}) == 1
    others_are_barriers = all(signature.is_barrier(what[0]) for what in classes if what not in past)
    goes_on = any(_goes_round(members[r], seq, calls[r], or_begins=True) for what in known for r in classes[what])
    if len(known) == 1 and ((one_operation and not new) or (others_are_barriers and goes_on)):
        return known[0], "history"  # against a size, a dtype or a barrier that the group had never seen
    starts = {
        keys[0] for member in members.values() if member.stream.first_seq <= 1 and (keys := member.keys_before(seq))
    }
    again = [what for what in classes if what in starts]
    if len(again) == 1 and len(starts) == 1 and not new:
        return again[0], "start"
    return largest, "nothing"


def _usual(
    members: Mapping[int, GroupStream], seq: int, classes: Mapping[Key, list[int]], calls: Mapping[int, Call]
) -> list[Key]:
    """What of these has followed before. Several lines make equal calls: where all lines are known they count, too, and
    where each did what its own line does next, one of them had come there by a call of its own that paired."""
    ordered = [member for _, member in sorted(members.items())]
    if all(call.site for call in calls.values()):
        of_lines = Followers([[(*key(c), c.site) for c in member.calls_before(seq)] for member in ordered])
        usual = [
            what for what, ranks in classes.items() if any(of_lines.expects((*what, calls[r].site)) for r in ranks)
        ]
        if len(usual) < len(classes):
            return usual
    followers = Followers([member.keys_before(seq) for member in ordered])
    return [what for what in classes if followers.expects(what)]


def _slipped(members: Mapping[int, GroupStream], seq: int) -> frozenset[int] | None:
    """Who first called, from a line that the group had never used, what others called from one that it had: the calls
    paired, and that member may be one off since. Nobody where lines are not known, or all parted from them; None where
    they came, once, from lines of which the group had used none."""
    if len(members) > _MOST_SLIPPED:
        return frozenset()
    of_members = {rank: {n: call.site for n, call in _by_number(member, seq)} for rank, member in members.items()}
    at = {n: tuple(of.get(n) for of in of_members.values()) for n in sorted(set().union(*of_members.values()))}
    times = Counter(at.values())
    seen: set[str] = set()
    for number, places in at.items():
        sites = {rank: of[number] for rank, of in of_members.items() if number in of}
        if not all(sites.values()):
            return frozenset()
        new = frozenset(rank for rank, site in sites.items() if site not in seen)
        if new and len(set(sites.values())) > 1:
            if seen and len(new) < len(sites):
                return new
            if times[places] == 1:  # else two branches of one program, which meet there again
                return None if len(new) == len(members) else frozenset()
        seen.update(sites.values())
    return frozenset()


def _by_number(member: GroupStream, seq: int) -> Iterator[tuple[int, Call]]:
    for number in range(member.stream.first_seq, seq):
        if (call := member.call_at(number)) is not None:
            yield number, call


def _goes_round(member: GroupStream, seq: int, call: Call, *, or_begins: bool) -> bool:
    """Whether this call, by its line where lines are known, has followed the one before: another round of what the
    group had done. A call that was there before, in a place where it never was, may be one too many as well.

    `or_begins`: or whether it is what the group began with, and what came before was new. At the end of a first round
    one goes on to a line that is new, and who left that out is back at the first line; nobody leaves out a barrier.
    """
    earlier: list[Hashable] = [one.site if call.site else key(one) for one in member.calls_before(seq)]
    what = call.site or key(call)
    if member.call_at(seq - 1) is None:
        return False
    begins = or_begins and what == earlier[0] and earlier[-1] not in earlier[:-1]
    return begins or (earlier[-1], what) in pairwise(earlier)


def _keeps_to_line(member: GroupStream, seq: int, call: Call) -> bool:
    """False when the line of the job's code that made this call had always called something else."""
    if not call.site:
        return True
    past = [key(other) for other in member.calls_before(seq) if other.site == call.site]
    # Passed once, it tells nothing: a line may make several calls (an object's size, then its bytes).
    return len(past) < _PASSED_OFTEN or key(call) in past


def _sisters(case: Case, group: int, seq: int, calls: Mapping[int, Call]) -> set[Key]:
    """What groups of the same kind called under the same number, which had called the same until then: from the same
    lines where these are known, for another line may call the same by chance.

    Stages of a pipeline run programs of their own: one beside it is a witness where both had been through that call,
    and all that they called is compared: on the way from the first microbatch to the last two go alike for long."""
    mine = case.groups[group]
    own: dict[int, set[tuple[Key, str]]] = {}
    for member in case.streams[group].values():
        for n, made in _by_number(member, seq + 1):
            own.setdefault(n, set()).add((key(made), made.site))
    is_lined = all(call.site for call in calls.values())
    of_keys = {n: {(what, "") for what, _ in ways} for n, ways in own.items()}
    has_stages = any(summary.pairs for summary in case.summaries.values())
    stages = {_stage(case, rank) for rank in calls}
    is_whole = all(member.stream.first_seq <= 1 for member in case.streams[group].values())
    found = set()
    for other in case.sisters(group):
        if len(other.ranks) != len(mine.ranks):
            continue
        for rank, member in case.streams[other.index].items():
            call = member.call_at(seq)
            if call is None:
                continue
            is_compared = is_whole and member.stream.first_seq <= 1
            if has_stages and not is_compared and _stage(case, rank) not in stages:
                continue
            by_line = is_lined and bool(call.site)
            ours = own if by_line else of_keys
            theirs = {n: (key(one), one.site if by_line else "") for n, one in _by_number(member, seq + 1) if n in ours}
            before = {what for n, (what, _) in theirs.items() if n < seq}
            alike = all(way in ours[n] for n, way in theirs.items())
            if alike and (not has_stages or key(call) in before):
                found.add(key(call))
    return found


def _stage(case: Case, rank: int) -> frozenset[tuple[str, int]]:
    """Which place a rank has in the groups in which it exchanges."""
    groups = {case.group_of[rank, pair.stream] for pair in case.summaries[rank].pairs}
    exchange = [case.groups[index] for index in groups if rank in case.groups[index].ranks]
    return frozenset((family(group.description), group.ranks.index(rank)) for group in exchange)


def _is_race(case: Case, group: int, seq: int, calls: dict[int, Call]) -> bool:
    """True when all called the same two things under this number and the next, from two threads each: which thread
    comes first is chance, and nobody took another branch."""
    pairs = []
    for rank, call in calls.items():
        member = case.streams[group][rank]
        after = member.call_at(seq + 1)
        if after is None or not _from_two_threads(member, call, after):
            return False
        pairs.append(frozenset({(*key(call), call.site), (*key(after), after.site)}))
    return len(set(pairs)) == 1 and len(pairs[0]) == 2


def _from_two_threads(member: GroupStream, one: Call, other: Call) -> bool:
    calls = member.summary.calls
    lanes = [{calls[value] for value in array("H", lane) if value < len(calls)} for lane in member.summary.program]
    of_one, of_other = ({number for number, lane in enumerate(lanes) if call in lane} for call in (one, other))
    return bool(of_one and of_other) and not of_one & of_other


def _kind(expected: Call, found: Call) -> Kind:
    if expected.operation != found.operation:
        return "op"
    return "size" if (expected.elements, expected.members) != (found.elements, found.members) else "dtype"


def odd_member(expected: Call, found: Call) -> tuple[int, str, str] | None:
    """Given two batches of as many members, return the place of the first that differs, from 1, and what it is in each;
    None for calls that are no batch."""
    pairs = zip(expected.members, found.members, strict=False)
    return next(((place, one, other) for place, (one, other) in enumerate(pairs, 1) if one != other), None)


def describe(call: Call) -> str:
    """A call for people: "all_reduce of 1000 elements Float at train.py:94 train_step"."""
    return describe_call(call) + (f" at {_short(call.site)}" if call.site else "")


def describe_call(call: Call) -> str:
    """Without its place: "all_reduce of 1000 elements Float"."""
    size = "" if call.elements is None or signature.is_barrier(call.operation) else f" of {call.elements} elements"
    return f"{call.operation}{size}" + (f" {call.dtype}" if call.dtype else "")


def _short(site: str) -> str:
    return site.rsplit("/", 1)[-1]
