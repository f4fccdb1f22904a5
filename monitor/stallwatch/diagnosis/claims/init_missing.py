"""Ranks wait for others that did not come where all must: to the job's rendezvous, to what comes right after it, or to
the making of a process group.

NCCL's init_process_group returns alone; the ranks that did call it then stand in the creation of the communicator.
"""

from collections.abc import Mapping

import msgspec

from stallwatch.diagnosis.activity.threads import has_no_group_thread
from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import (
    Claim,
    Saying,
    activity_facts,
    common_where,
    main_wait,
    named,
    operation_of,
    waiting_facts,
)
from stallwatch.diagnosis.frames.code_origin import code_origin, function
from stallwatch.diagnosis.job.case import Case
from stallwatch.formats.rank_ranges import verb
from stallwatch.model.verdict import Fact, Mismatch, Rejected

_Made = tuple[tuple[int, ...], str | None]  # members of a group, and its name where that is told
# What every rank of the job must call, members or not, and not the start of the job itself.
_MAKES = frozenset({"new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group", "init_device_mesh"})


def claim(analysis: Analysis) -> Saying:
    """Ranks that never came to the rendezvous, or have no process group while the others wait in one."""
    case = analysis.case
    if any(
        stream.completed or stream.backend in case.untold
        for rank in case.observed
        if case.recorded(rank)
        for stream in case.summaries[rank].streams
    ):
        return None  # the job has communicated: nobody is missing from its start
    without = _without_group(analysis)
    if without:
        return _claim(analysis, without, _proof(analysis, without))
    if analysis.graph.waits or any(case.recorded(rank) and case.summaries[rank].streams for rank in case.observed):
        return None
    waited, cleared = case.ended_at_the_start, case.cleared_away
    waiting = [
        rank
        for rank, activity in case.activities.items()
        if activity.place.in_store_or_init and (not activity.end.gone or rank in waited or rank in cleared)
    ]
    if not waiting:
        return None
    culprits = [
        rank
        for rank, activity in case.activities.items()
        if rank not in waiting and activity.known and not activity.call.in_collective
        # Who still loaded when the others' time-out ended the job had not come, either.
        if (rank in cleared or not activity.end.gone) and (waited or not activity.progress.moving)
    ]
    if not culprits:
        in_vain = _elsewhere(analysis, waiting) or _all_in_vain(analysis, waited)
        return in_vain or Rejected("init_missing", "every rank that was seen is in rendezvous")
    facts = [Fact(f"{named(waiting)} {'waited' if waited else 'wait'} in rendezvous or store", "py-spy")]
    if waited:
        facts.append(Fact(f"{named(waited)} ended there, as a time-out ends them", "/proc"))
    claim_ = _claim(analysis, culprits, tuple(facts))
    # An error of their own that nobody wrote down would look the same.
    unsure = any(case.activity(rank).exceptions.text is None for rank in waited)
    return msgspec.structs.replace(claim_, confidence="possible") if unsure else claim_


def _elsewhere(analysis: Analysis, waiting: list[int]) -> Claim | None:
    """All that were seen wait for ranks that meet elsewhere, or have no process where alone they can be."""
    meeting = analysis.case.meeting
    if meeting.apart:
        return _apart(analysis, waiting)
    missing = [rank for rank in meeting.never_seen if rank not in analysis.case.observed]
    if not missing:
        return None
    has = verb(missing, "has", "have")
    facts = (
        Fact(f"{named(missing)} {has} no process on this node, where alone the job can be", "processes of the node"),
        Fact(f"{named(waiting)} wait in rendezvous or store", "py-spy"),
    )
    return _claim(analysis, missing, facts)


def _all_in_vain(analysis: Analysis, waited: frozenset[int]) -> Claim | None:
    """All came, waited for each other, and ended when their time was over: whose address was missing the logs may tell,
    and its process was there, so that it came as another or met elsewhere."""
    case = analysis.case
    if not waited or waited != set(case.observed):
        return None
    awaited = sorted({rank for one in case.logs.of_kind("init_timeout") for rank in one.event.ranks} & waited)
    whom = f"for {named(awaited)}" if awaited else "for each other"
    came = "came under another RANK, or with another MASTER_ADDR, MASTER_PORT or WORLD_SIZE"
    told = (
        f"{named(waited)} waited at the rendezvous {whom} until their time-out ended them; "
        f"{named(awaited) if awaited else 'one of them'}, whose process was there, perhaps {came}"
    )
    facts = [Fact(f"{named(waited)} waited in rendezvous or store and ended there", "py-spy and /proc")]
    if awaited:
        facts.append(Fact(f"of {named(awaited)} the store held no address", "logs"))
    step = (
        "Compare RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of all ranks, as their launcher set them and as the "
        "program hands them to init_process_group."
    )
    return Claim("init_missing", (), "possible", tuple(facts), where="init", told=told, steps=(step,))


def _apart(analysis: Analysis, waiting: list[int]) -> Claim:
    """Two parts of one job that were told different places: the smaller one, or the one without rank 0, is wrong."""
    meeting = analysis.case.meeting
    others = [rank.rank for rank in meeting.apart]
    places = " and ".join(sorted({rank.place for rank in meeting.apart}))
    mine_right = (len(waiting), 0 in waiting) > (len(others), 0 in others)
    right, wrong = (waiting, others) if mine_right else (others, waiting)
    here, there = (places, meeting.place) if mine_right else (meeting.place, places)
    fact = Fact(f"{named(right)} meet at {there}, {named(wrong)} at {here}", "MASTER_ADDR and MASTER_PORT of the ranks")
    claim = _claim(analysis, wrong, (fact,))
    meets = verb(wrong, "meets", "meet")
    return msgspec.structs.replace(claim, apart=f"{meets} at {here}, while {named(right)} wait at {there}")


def _without_group(analysis: Analysis) -> list[int]:
    """Ranks that have no process group, while others have one, wait, and have not communicated."""
    case = analysis.case
    joined = [rank for rank in analysis.waiting if case.recorded(rank) and case.activity(rank).process.joined]
    if not (joined and analysis.hangs):
        return []
    threads_are_named = any(not has_no_group_thread(case.evidence[rank]) for rank in joined if rank in case.evidence)
    found = []
    for rank, activity in case.activities.items():
        if rank in analysis.waiting or activity.end.gone or activity.progress.moving or not activity.known:
            continue
        if activity.process.joined is None and threads_are_named and rank in case.evidence:
            lacks = has_no_group_thread(case.evidence[rank])
        else:
            lacks = activity.process.joined is False
        if lacks:
            found.append(rank)
    return found


def _proof(analysis: Analysis, culprits: list[int]) -> tuple[Fact, ...]:
    waiting = [rank for rank in analysis.waiting if rank not in culprits]
    has = verb(culprits, "has", "have")
    return (
        Fact(f"{named(culprits)} {has} no process group", "its hook and its threads"),
        Fact(f"{named(waiting)} have one, wait, and nothing was communicated before", "flight recorders and py-spy"),
    )


def _claim(analysis: Analysis, culprits: list[int], proof: tuple[Fact, ...]) -> Claim:
    return Claim(
        cause="init_missing",
        culprits=tuple(culprits),
        confidence="likely",
        because=(*proof, *activity_facts(analysis, culprits)),
        where=common_where(analysis, culprits),
        operation="init_process_group",
        told_waiting=tuple(sorted(analysis.case.ended_at_the_start)),
    )


# Most ranks stand where a process group is made, and wait there for the few that went on to the next collective.
# NCCL makes a group's communicator at its first collective, which its recorder holds once that is made: torch
# `ProcessGroupNCCL::collective` calls `initNCCLComm` before `FlightRecorder::recordWithResetEnabled`.


def group_not_made(analysis: Analysis) -> Saying:
    """Most ranks stand where a group is made, and all others wait in a collective that comes later."""
    case = analysis.case
    waits = tuple(sorted({wait.rank for wait in analysis.graph.waits}))
    if not analysis.hangs or not waits or case.unobserved or not analysis.whole_world_seen:
        return None
    inside = list(analysis.absent)
    calls = {_makes(case, rank) for rank in inside}
    is_made = calls != {""}
    calls = calls if is_made else {_connects(case, rank) for rank in inside}
    if len(calls) != 1 or "" in calls or {*waits, *inside} != set(case.world):
        return None
    lacking = _lacking(case, inside) if is_made else waits
    if len(lacking) >= len(inside):
        return None
    members = [case.activity(rank).call.members for rank in inside]
    if not is_made and any(known is not None and not set(waits) & set(known) for known in members):
        return None  # those who went on are no members: those who stand wait for each other
    still = all(case.activity(rank).progress.moving is False for rank in inside)
    if any(case.activity(rank).progress.moving for rank in inside) or not (is_made or still):
        return None
    call, wait = calls.pop(), main_wait(analysis, inside)
    if wait is None:
        return None
    return Claim(
        cause="collective_mismatch",
        culprits=lacking,
        # One look tells of no standstill; and a group of theirs may fail to connect as well.
        confidence="likely" if is_made and still else "possible",
        because=(
            Fact(
                f"{named(inside)} stand in {call}, and wait there for the ranks that the group is made of"
                if is_made
                else f"{named(inside)} stand in {call}, and no recorder of theirs holds it: so does a group's first "
                "call, until all its members are connected",
                "py-spy",
            ),
            *waiting_facts(analysis),
            *activity_facts(analysis, inside),
        ),
        where="collective",
        mismatch=Mismatch("op", call, operation_of(analysis, wait)),
        group=wait.point.group,
        operation=call,
        ends_by_itself="first_use",  # members connect while the others go on, as a rule for a moment
        steps=(
            f"Let every rank of the job call {call if is_made else 'new_group'}, in the same order and with the "
            f"same ranks, members or not: {named(inside)} stand in "
            f"{'it' if is_made else f'the first {call} of a group'}{_at(case, inside)}.",
        ),
    )


def _lacking(case: Case, makers: list[int]) -> tuple[int, ...]:
    """Who else must come to the making of their group: all others of the job, or its members alone, where these make it
    by themselves (use_local_synchronization): torch names such a group by a hash, and others by a number."""
    given = {(call.members, call.group_name) for call in (case.activity(rank).call for rank in makers)}
    members, name = next(iter(given))
    alone = len(given) == 1 and members is not None and name is not None and not name.isdecimal()
    return tuple(sorted(set(members if alone and members else case.world) - set(makers)))


# Members wait for each other in the making of different groups: they make them in different orders, or of different
# ranks. No recorder holds a group before it is made; the members that the call was given are told by the hooks.


def groups_differ(analysis: Analysis) -> Saying:
    """Ranks wait for each other in two groups: in the making of them, or in the first call of one that they know by
    two names."""
    if not analysis.hangs:
        return None
    return _made_apart(analysis) or _known_by_other_names(analysis)


def _made_apart(analysis: Analysis) -> Claim | None:
    """Two ranks make two groups, each with the other among its members: neither comes to the other's. gloo may connect
    members of two groups that ranks know by one name, and groups of the same members by another name are two."""
    case = analysis.case
    given = _given(case, [rank for rank in case.observed if _makes(case, rank)])
    apart = {
        mine
        for rank, mine in given.items()
        if any(_differ(mine, its) and other in mine[0] and rank in its[0] for other, its in given.items())
    }
    if not apart:
        return None
    groups = {made: f"a group of {named(made[0])}{_name(made)}" for made in apart}
    return _group_order(analysis, given, groups, first_used=False)


def _known_by_other_names(analysis: Analysis) -> Claim | None:
    """Ranks stand in the first call of a group of the same members, which some of them know by another name: NCCL
    connects by that name, so that neither finds the others. torch gives most groups the number of those made before."""
    case = analysis.case
    stands = [rank for rank in analysis.graph.unrecorded if _connects(case, rank) and not _is_transfer(case, rank)]
    given = {rank: made for rank, made in _given(case, stands).items() if made[1] is not None and rank in made[0]}
    by_members = (
        {made for made in given.values() if made[0] == of} for of in sorted({made[0] for made in given.values()})
    )
    apart = next((groups for groups in by_members if len(groups) > 1), None)
    if apart is None:
        return None
    groups = {made: f"a group of {named(made[0])} that torch calls {made[1]} there" for made in apart}
    return _group_order(analysis, given, groups, first_used=True)


def _group_order(
    analysis: Analysis, given: Mapping[int, _Made], groups: Mapping[_Made, str], *, first_used: bool
) -> Claim:
    """Given each rank's group and, in words, the groups that are apart, return who differs from most. `first_used`: the
    ranks stand in the first call of a group, not in its making."""
    parts = {made: [rank for rank in given if given[rank] == made] for made in sorted(groups, key=_in_order)}
    makers, culprits = _few(parts)
    counted = len({members for members, _ in parts}) == 1 and all(_made_by_members(name) for _, name in parts)
    if counted:  # torch's names differ, not what the program asks for: who is in more groups has made more
        culprits = tuple(makers)
    does = ("stands in the first call of", "stand in the first call of") if first_used else ("makes", "make")
    facts = tuple(Fact(f"{named(ranks)} {verb(ranks, *does)} {groups[made]}", "hooks") for made, ranks in parts.items())
    operation = (_connects if first_used else _makes)(analysis.case, makers[0])
    call, use = ("new_group", ", and use them in one order") if first_used else (operation, "")
    apart = "; ".join(fact.fact for fact in facts)
    return Claim(
        cause="group_order",
        culprits=culprits,
        confidence="likely",
        because=(*facts, *waiting_facts(analysis), *activity_facts(analysis, culprits)),
        where="collective" if first_used else "init",
        operation=operation,
        steps=(
            "Let every rank of the job make this group, without use_local_synchronization, or let its members have "
            "made equally many groups before it: torch names such a group by its ranks and by that number, "
            f"and {apart}."
            if counted
            else f"Let every rank of the job call {call} for the same groups in the same order, members or not{use}: "
            f"{apart}.",
        ),
    )


def _given(case: Case, ranks: list[int]) -> dict[int, _Made]:
    """Of those of these ranks that stand still: the group that their call was given or makes, by their hooks."""
    return {
        rank: (members, case.activity(rank).call.group_name)
        for rank in ranks
        if case.activity(rank).progress.moving is False
        if (members := case.activity(rank).call.members) is not None
    }


def _few(parts: Mapping[_Made, list[int]]) -> tuple[list[int], tuple[int, ...]]:
    """All who stand, and of them those who differ from most; everybody where there is no majority."""
    most = max(parts.values(), key=len)
    makers = sorted(rank for ranks in parts.values() for rank in ranks)
    few = 2 * len(most) > len(makers)
    return makers, tuple(rank for rank in makers if not few or rank not in most)


def _is_transfer(case: Case, rank: int) -> bool:
    call = case.activity(rank).call.named_call
    return call is not None and call.is_transfer


def _differ(one: _Made, other: _Made) -> bool:
    """Whether they are two groups: of other members, or of the same by another name, where both are told."""
    return one[0] != other[0] or (None not in (one[1], other[1]) and one[1] != other[1])


def _in_order(made: _Made) -> tuple[tuple[int, ...], str]:
    return made[0], made[1] or ""


def _made_by_members(name: str | None) -> bool:
    """Whether its members make a group by themselves (use_local_synchronization): torch names it by a hash of them and
    of how many groups (2.13: how many that it is in) the rank made before, so that by one group of a part of them they
    wait for each other for ever (live, torch 2.14.1, gloo). Others have a number, or their parent's name and more."""
    return name is not None and not name.isdecimal() and set(name) <= set("0123456789abcdef")


def _name(made: _Made) -> str:
    if made[1] is None:
        return ""
    return f" by the name {made[1][:8]}" if _made_by_members(made[1]) else f", group number {made[1]} that it makes"


def _at(case: Case, inside: list[int]) -> str:
    frame = case.activity(inside[0]).place.frame
    return f" at {frame.file}:{frame.line} in {frame.function}" if frame else ""


def _makes(case: Case, rank: int) -> str:
    """The call that makes a group, in which the rank stands; "" where it stands in none."""
    activity = case.activity(rank)
    if activity.place.where != "init":
        return ""
    torch = [
        frame for frame in activity.place.stack if code_origin(frame.filename).module.startswith("torch.distributed")
    ]
    return next((name for frame in reversed(torch) if (name := function(frame.name)) in _MAKES), "")


def _connects(case: Case, rank: int) -> str:
    """The collective in which the rank stands, by its stack, that NCCL's recorder does not hold; "" where none is."""
    activity = case.activity(rank)
    by_nccl = any(recorder.backend == "nccl" and recorder.operations for recorder in case.evidence[rank].recorders)
    return (
        (activity.call.collective or "")
        if activity.place.where == "collective" and activity.call.in_collective and by_nccl
        else ""
    )
