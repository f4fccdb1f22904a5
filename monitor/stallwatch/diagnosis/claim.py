"""What an explanation says when it fits, and how facts are worded."""

from collections.abc import Collection, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.calls import align
from stallwatch.diagnosis.calls.programs import calls_of
from stallwatch.diagnosis.calls.sequences import SequenceBreak
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.job.groups import Group, are_twins, family, place_among_twins
from stallwatch.diagnosis.logs.remedies_by_origin import words_in
from stallwatch.diagnosis.logs.remedies_by_text import Words
from stallwatch.diagnosis.recorder import signature
from stallwatch.diagnosis.step import NextStep
from stallwatch.diagnosis.waits.graph import Point, Wait
from stallwatch.formats.rank_ranges import named_ranks, rank_ranges, verb
from stallwatch.model.causes import CAUSES
from stallwatch.model.log_event import PROCESS_ENDS
from stallwatch.model.summary import Call
from stallwatch.model.verdict import Cause, Confidence, EndsByItself, Fact, Frame, Mismatch, Rejected, Slowness, Where

_FACTS_KEPT = 12


class Claim(msgspec.Struct, frozen=True):
    """What an explanation says of the job: cause, culprits, how sure, with facts, and what the sentence and the steps
    need. Ranks are global, `group` is an index into the groups of the case."""

    cause: Cause
    culprits: tuple[int, ...]
    confidence: Confidence
    because: tuple[Fact, ...]
    where: Where | None = None
    mismatch: Mismatch | None = None
    group: int | None = None  # index in the case
    operation: str | None = None
    seq: int | None = None
    site: str = ""  # where the culprits made the call that is wrong: "file:line function"
    missing: tuple[str, ...] = ()
    ends_by_itself: EndsByItself | None = None  # by the claim itself; else by what its culprits do
    apart: str = ""  # where the culprits meet, and where the others
    # Who called what, where nothing tells who is right: ranks, what they called, "file:line function" or "".
    parts: tuple[tuple[tuple[int, ...], str, str], ...] = ()
    race: bool = False  # two threads of each rank call in a group, in an order that is chance
    steps_past: int | None = None  # steps that the culprits counted beyond those that wait for them
    slowness: Slowness | None = None
    by_design: str = ""
    # Profiled: where the culprits spend the time, None where it is no one line; else a single look's lines are shown.
    profiled: bool = False
    frame: Frame | None = None
    told: str = ""  # what a log says of the culprits: "ValueError: bad shard at train.py:7 in load"
    paired: str = ""  # what did not fit has completed, and the waits are in later calls: in words
    unnamed: str = ""  # of whom a log tells without a rank: "a rank known only as local rank 3 of node1.log"
    told_waiting: tuple[int, ...] = ()  # who waits by logs or stacks, where no recorder shows it
    steps: tuple[NextStep, ...] = ()  # what to do first, by what was seen of the culprits
    steps_are_all: bool = False  # those that hold for its cause add nothing to them
    by_line: Words | None = None  # what to do by the line of a log that tells the cause

    def at(self, analysis: Analysis, wait: Wait | None) -> "Claim":
        """Given the wait that it is about, return the claim with its group, operation and number; None leaves it so."""
        if wait is None:
            return self
        point = wait.point
        return replace(self, group=point.group, operation=operation_of(analysis, wait), seq=point.seq or None)


Saying = Claim | Rejected | None


named = named_ranks  # as the facts of claims write it


def is_first_use(analysis: Analysis, waits: Iterable[Wait]) -> bool:
    """Whether all these waits are the first of their communicators: NCCL connects the ranks then, which makes every one
    of them wait and is nobody's fault. gloo has connected them when the group was made."""
    waits = tuple(waits)
    return bool(waits) and all(_is_first(analysis, wait) for wait in waits)


def _is_first(analysis: Analysis, wait: Wait) -> bool:
    case, group = analysis.case, analysis.case.groups[wait.point.group]
    if group.backend == "gloo":
        return False
    if not wait.pending.transfers:
        member = case.streams[group.index].get(wait.rank)
        return member is not None and member.stream.completed == 0
    ends = [case.ends(wait.rank, wait.pending, transfer) for transfer in wait.pending.transfers]
    pairs = [case.transfers.pair(wait.rank, group.index, *pair) for pair in ends]
    return all(pair is not None and pair.whole and pair.done == 0 for pair in pairs)


def operation_of(analysis: Analysis, wait: Wait) -> str:
    """What a rank waits in, by its recorder: "all_reduce", or a word for what has no record."""
    call = analysis.case.call(wait.rank, wait.pending)
    if call is None:
        return "point-to-point" if wait.pending.transfers else "a collective"
    if len(wait.pending.transfers) > 1:
        return "a batch of point-to-point operations"
    return call.operation


def unrecorded_operation(analysis: Analysis, culprits: Iterable[int]) -> str | None:
    """What the stacks of the waiting ranks call it, where no recorder shows what they wait in."""
    names = {
        analysis.case.activity(rank).call.collective for rank in analysis.graph.unrecorded if rank not in set(culprits)
    }
    if len(names) == 1:
        return names.pop()
    transfers = all(signature.names_transfer(name or "") for name in names)
    return "point-to-point operations" if names and transfers else None


def point_name(analysis: Analysis, point: Point, call: Call | None) -> str:
    """A place where ranks wait as facts name it: "all_reduce #7 of default_pg"."""
    group = analysis.case.groups[point.group]
    what = call.operation if call is not None else ("point-to-point" if not point.seq else "collective")
    number = f" #{point.seq}" if point.seq else ""
    return f"{what}{number} of {group_name(analysis.case, group)}"


def group_name(case: Case, group: Group) -> str:
    """As people know it: torch calls the first one default_pg, and every one that nobody named "undefined"."""
    place = place_among_twins(case.groups, group) + 1
    later = case.groups[group.index + 1 : group.index + 2]
    number = f" no. {place}" if place > 1 or (later and are_twins(later[0], group)) else ""
    if group.description == "undefined":
        return f"the unnamed group{number} of ranks {rank_ranges(group.ranks)}"
    return f"{group.description}{number}" if group.description else "the default group"


def waiting_facts(analysis: Analysis, culprits: Iterable[int] = ()) -> tuple[Fact, ...]:
    """One fact per place where ranks wait, and per operation there: under one number they may differ. Places that a
    culprit holds up itself come first."""
    wanted = set(culprits)
    by_call: dict[tuple[Point, str | None], list[Wait]] = {}
    for wait in analysis.graph.waits:
        call = analysis.case.call(wait.rank, wait.pending)
        by_call.setdefault((wait.point, None if call is None else call.operation), []).append(wait)
    by_place: dict[tuple[Point, str], list[Wait]] = {}
    for (point, _), waits in by_call.items():
        name = point_name(analysis, point, analysis.case.call(waits[0].rank, waits[0].pending))
        by_place.setdefault((point, name), []).extend(waits)
    facts = []
    held = {point for point, blockers in analysis.graph.blockers.items() if wanted & {b.rank for b in blockers}}
    for (_, name), waits in sorted(by_place.items(), key=lambda place: (place[0][0] not in held, place[0])):
        ranks = sorted(wait.rank for wait in waits)
        same = sum(wait.pending.seen_before is True for wait in waits)
        since = " at both looks" if same == len(waits) else ""
        does = verb(ranks, "waits", "wait")
        facts.append(
            Fact(
                f"{named(ranks)} {does} in {name}{since}",
                f"flight recorder of {named(ranks)}",
            )
        )
    if analysis.graph.unrecorded:
        ranks = list(analysis.graph.unrecorded)
        does = verb(ranks, "stands", "stand")
        facts.append(Fact(f"{named(ranks)} {does} in communication that no recorder shows", "py-spy"))
    if analysis.graph.perhaps:
        ranks = list(analysis.graph.perhaps)
        does = verb(ranks, "stands", "stand")
        facts.append(Fact(f"{named(ranks)} {does} still in native code, as in a wait for communication", "py-spy"))
    return tuple(facts[:_FACTS_KEPT])


def frontier_fact(analysis: Analysis, rank: int, group: int) -> Fact | None:
    """Where a rank's recorder ends in a group."""
    member = analysis.case.streams[group].get(rank)
    name = group_name(analysis.case, analysis.case.groups[group])
    source = f"flight recorder of rank {rank}"
    if member is None:
        return Fact(f"rank {rank} has recorded nothing in {name}", source) if analysis.case.recorded(rank) else None
    if member.stream.cut_short:
        return Fact(f"rank {rank}'s dump broke off at #{member.stream.last_seq} of {name}", source)
    call = member.call_at(member.stream.last_seq)
    what = f" ({align.describe(call)})" if call is not None else ""
    done = "completed" if member.stream.completed >= member.stream.last_seq else "not completed"
    return Fact(f"rank {rank}'s last call in {name} is #{member.stream.last_seq}{what}, {done}", source)


def activity_facts(analysis: Analysis, ranks: Iterable[int]) -> tuple[Fact, ...]:
    """Given ranks, return the facts that tell what each of them does, at most twelve."""
    return tuple(_about(rank, fact) for rank in ranks for fact in analysis.case.activity(rank).why)[:_FACTS_KEPT]


def _about(rank: int, fact: Fact) -> Fact:
    """What is said of one rank as "its main thread", in a list that tells of many."""
    for own, named_ in (("its ", f"rank {rank}'s "), ("it ", f"rank {rank} ")):
        if fact.fact.startswith(own):
            return Fact(named_ + fact.fact.removeprefix(own), fact.source)
    return fact


def common_where(analysis: Analysis, ranks: Iterable[int]) -> Where | None:
    """Where most of the ranks stand; "unknown" where nothing tells of any; None of no ranks."""
    places = [analysis.case.activity(rank).place.where for rank in ranks]
    counts: dict[Where, int] = {}
    for place in sorted(places):
        if place != "unknown":
            counts[place] = counts.get(place, 0) + 1
    if not counts:
        return "unknown" if places else None
    return max(counts, key=lambda place: counts[place])


def main_wait(analysis: Analysis, ranks: Iterable[int]) -> Wait | None:
    """The wait that most ranks are in and that one of these ranks holds up; else any that most are in."""
    wanted = set(ranks)
    blocked = [
        wait
        for wait in analysis.graph.waits
        if wait.rank not in wanted and any(b.rank in wanted for b in analysis.graph.blockers[wait.point])
    ] or [wait for wait in analysis.graph.waits if wait.rank not in wanted]
    counts: dict[Point, int] = {}
    for wait in blocked:
        counts[wait.point] = counts.get(wait.point, 0) + 1
    return max(blocked, key=lambda w: (counts[w.point], -w.point.group, -w.rank), default=None)


def departed_cause(analysis: Analysis, departure: SequenceBreak) -> Cause:
    """What leaving the program at this call is called."""
    group = analysis.case.groups[analysis.case.group_of[departure.rank, departure.found.stream]]
    at_barrier = signature.is_barrier(departure.found.operation) and group.is_default
    if at_barrier or _is_at_the_end(analysis, departure.rank):
        return "data_exhausted"  # it waits at the end, while others are in the loop
    due = [signature.is_transfer(call.operation) for call in departure.expected]
    held_up = main_wait(analysis, (departure.rank,)) if any(due) and not all(due) else None
    if (due and all(due)) or (held_up is not None and held_up.pending.transfers):
        return "p2p_unmatched"  # a transfer was due
    return "group_order"


def _is_at_the_end(analysis: Analysis, rank: int) -> bool:
    """Whether a rank waits in a barrier of the whole job that it has called once: what a ring has kept of its calls may
    show another call as the first that is not its peers'."""
    waits = (wait for wait in analysis.graph.waits if wait.rank == rank and wait.lane == 0 and wait.point.seq)
    wait = next(waits, None)
    call = None if wait is None else analysis.case.call(rank, wait.pending)
    if wait is None or call is None or not signature.is_barrier(call.operation):
        return False
    if not analysis.case.groups[wait.point.group].is_default or calls_of(analysis.case, rank).count(call) != 1:
        return False
    return not _has_gone_round_as_often(
        analysis, rank, {other.rank for other in analysis.graph.waits if other.point == wait.point}
    )


def _has_gone_round_as_often(analysis: Analysis, rank: int, there: Collection[int]) -> bool:
    """Whether, in groups of some kind, a rank has made as many calls as one that waits there with it and has not left
    its program: then it has been through the loop to its end."""
    made = _calls_by_kind(analysis.case, rank)
    others = set(there) - {rank} - {departure.rank for departure in analysis.departures}
    return any(made.items() & _calls_by_kind(analysis.case, other).items() for other in others)


def _calls_by_kind(case: Case, rank: int) -> dict[str, int]:
    """How many collectives a rank has called in its group of each kind, but for the default one."""
    groups = [(case.groups[case.group_of[rank, i]], s) for i, s in enumerate(case.summaries[rank].streams)]
    return {family(group.description): stream.last_seq for group, stream in groups if not group.is_default}


def perhaps_members(case: Case, group: int) -> list[int]:
    """Ranks that may be members of a group whose members nobody wrote down: in none of its kind so far; ascending."""
    if case.groups[group].members_known:
        return []
    kind = family(case.groups[group].description)
    users = {rank for other in case.groups if family(other.description) == kind for rank in other.ranks}
    return sorted(set(case.world) - users)


def left_alike(departures: Sequence[SequenceBreak]) -> bool:
    """Whether all of them called one thing where another was due."""
    return len({tuple(_way(call) for call in (d.found, *d.expected)) for d in departures}) == 1


def _way(call: Call) -> tuple[str, int | None, str, str]:
    """A call as others would make it with peers of their own."""
    return call.operation.partition(" ")[0], call.elements, call.dtype, call.site


def some_stayed(analysis: Analysis, departures: Sequence[SequenceBreak]) -> bool:
    """Whether each that left had somebody in the groups of these calls who did not: what all members of them do alike
    is the program, which has come to something new."""
    left = {departure.rank for departure in departures}
    of_calls = {d.rank: (d.found, *d.expected) for d in departures}
    groups = {rank: {analysis.case.group_of[rank, call.stream] for call in calls} for rank, calls in of_calls.items()}
    return all(any(not left.issuperset(analysis.case.groups[i].ranks) for i in own) for own in groups.values())


# What keeps any claim from being certain: recorders that do not tell what ends, and versions that nobody has tried.


def doubtful(case: Case, claim: Claim) -> Claim:
    """Given a claim, return it as sure as this job's recorders allow, with the reason among its facts."""
    facts = (*_silent_recorders(case, claim), *_untested_versions(case))
    if not facts or CAUSES[claim.cause].told_by == "system":
        return claim
    confidence = "likely" if claim.confidence == "certain" else claim.confidence
    return replace(claim, confidence=confidence, because=(*claim.because, *facts))


def _silent_recorders(case: Case, claim: Claim) -> tuple[Fact, ...]:
    """Of the back end in whose group the claim lies; of all of them where it lies in none."""
    silent = case.untold if claim.group is None else case.untold & {case.groups[claim.group].backend}
    return tuple(
        Fact(
            f"no dump tells whether operations of {backend or 'this back end'} have ended: at no look was one entry "
            "retired and another not, as where entries are retired when they are issued, or never",
            "flight recorders",
        )
        for backend in sorted(silent)
    )


def _untested_versions(case: Case) -> tuple[Fact, ...]:
    ranks: dict[str, list[int]] = {}
    for rank, summary in case.summaries.items():
        for version in summary.untested:
            ranks.setdefault(version, []).append(rank)
    return tuple(
        Fact(
            f"{version} is newer than any whose recorder was tried: it may record in another way",
            f"flight recorder of {named(using)}",
        )
        for version, using in sorted(ranks.items())
    )


def remedy_of(analysis: Analysis, ranks: Collection[int]) -> tuple[NextStep, ...]:
    """What mends the failure of one of these ranks that its log tells; nothing where it tells none of its own."""
    logs = analysis.case.logs
    told = (one for one in logs.causes if one.rank in ranks and one.kind not in PROCESS_ENDS)
    return tuple(words_in(one, logs.events).remedy for one in told)[:1]
