"""Ranks that others wait for and that wait in nothing: they never entered; `where` says what they do instead. Or they
went past the call. Or all have entered and it does not end (comm_stuck)."""

from collections.abc import Iterable

from stallwatch.diagnosis.analysis import Analysis, gpus_of_their_own
from stallwatch.diagnosis.calls.align import describe
from stallwatch.diagnosis.claim import (
    Claim,
    Saying,
    activity_facts,
    common_where,
    frontier_fact,
    is_first_use,
    main_wait,
    named,
    perhaps_members,
    point_name,
    unrecorded_operation,
    waiting_facts,
)
from stallwatch.diagnosis.frames.code_origin import Origin, code_origin
from stallwatch.diagnosis.recorder import signature
from stallwatch.diagnosis.waits.graph import Point, Strength, Wait
from stallwatch.diagnosis.waits.roots import goes_on, resolves
from stallwatch.diagnosis.waits.shared_locks import holder_named, told_by_kernel
from stallwatch.model.snapshot import Heartbeat
from stallwatch.model.verdict import Confidence, Fact, Rejected, Where
from stallwatch.progress.job_progress import many_move

_READS = ("filesystem", "checkpoint", "dataloader")
# Cores, between two looks. Who waits for an event of its GPU with cudaDeviceScheduleBlockingSync uses none; who
# computes where others want its core has what they leave: a third of one beside four ranks that spin on two cores.
_RUNS = 0.05
_LOCKS = "/proc/locks"
_MAIN_THREAD = "MainThread"  # by Python's own name; what a thread beside it does may be none of the loop's business


def claim(analysis: Analysis) -> Saying:
    """Ranks that others wait for are elsewhere: never entered, with where they stand."""
    if not analysis.hangs:
        return None
    found = list(analysis.absent)
    if not found:
        return Rejected("not_entered", "no rank is known to be elsewhere")
    moving = [rank for rank in found if goes_on(analysis.case, rank)]
    if len(moving) == len(found):
        return Rejected("not_entered", f"{named(moving)} makes progress")
    # Whose stacks come without a time, from somebody who says that the job hangs, are another matter.
    if analysis.only_young_waits and analysis.dated:
        return Rejected("not_entered", f"{named(found)} may come: one look shows the waits, and none of them is old")
    left = {departure.rank for departure in analysis.departures} - set(found)
    if left and set(found) <= set(analysis.graph.perhaps):
        why = f"{named(found)} may wait for a message of {named(left)}, whose calls are others than they always were"
        return Rejected("not_entered", why)
    wait = main_wait(analysis, found)
    facts: list[Fact] = []
    if wait is not None:
        facts = [fact for rank in found if (fact := frontier_fact(analysis, rank, wait.point.group)) is not None]
    behind = analysis.behind_locks
    facts = [*_lock_facts(analysis), *facts]
    resolved = resolves(analysis.graph, [*found, *behind])
    if resolved:
        facts.append(
            Fact(f"if {named(found)} entered, every wait that was recorded would end", "replay of the schedules")
        )
    confidence = _confidence(analysis, found, resolved)
    supposed = confidence == "certain" and not told_by_kernel(analysis.case, behind)
    return Claim(
        cause="not_entered",
        culprits=tuple(found),
        confidence="likely" if supposed else confidence,
        because=(*waiting_facts(analysis, found), *facts[:8], *activity_facts(analysis, found)),
        where=_where(analysis, found),
        operation=None if wait else unrecorded_operation(analysis, found),
    ).at(analysis, wait)


def _lock_facts(analysis: Analysis) -> list[Fact]:
    """Who waits for a lock, and who holds it by the kernel's word, or may."""
    facts, supposed = [], dict[tuple[str, tuple[int, ...]], list[int]]()
    for rank, held in analysis.behind_locks.items():
        place = analysis.case.activity(rank).place
        if place.lock_holder_pid is not None:
            facts.append(Fact(f"rank {rank} {place.detail}, which {named(held)} holds", _LOCKS))
        else:
            supposed.setdefault((place.detail, held), []).append(rank)
    for (detail, held), ranks in supposed.items():
        facts.append(Fact(f"{named(ranks)}: {detail}, which {named(held)} of the same node may hold", "/proc"))
    for rank in analysis.absent:
        if (holder := holder_named(analysis.case, rank)) is not None:
            facts.append(Fact(f"rank {rank} {analysis.case.activity(rank).place.detail}, which {holder} holds", _LOCKS))
    return facts


def _where(analysis: Analysis, found: list[int]) -> Where | None:
    """Who spins below the job's own line waits for its GPU only if that is known to be busy: it computes otherwise. One
    that ranks share may be busy with the waits of the others: then the line itself must say that it waits."""
    where = common_where(analysis, found)
    if where != "gpu_sync":
        return where
    own = gpus_of_their_own(analysis.gpus)
    works = [
        gpu is not None and gpu.is_busy
        for rank in found
        for gpu in [(own if analysis.case.activity(rank).place.gpu_guessed else analysis.gpus).get(rank)]
    ]
    return "busy_loop" if not all(works) and all(_spins(analysis, rank) for rank in found) else where


def _spins(analysis: Analysis, rank: int) -> bool:
    activity = analysis.case.activity(rank)
    runs = activity.progress.cpu_share is None or activity.progress.cpu_share > _RUNS
    return runs and bool(activity.place.stack) and code_origin(activity.place.stack[0].filename).origin is Origin.JOB


def _confidence(analysis: Analysis, found: list[int], resolved: bool) -> Confidence:
    strengths = [analysis.roots.strength.get(rank, Strength.SUPPOSED) for rank in found]
    worst = max(strengths)
    # A rank that its own stack shows inside communication waits for somebody, too: only at its start is that its fault.
    contradicted = any(
        analysis.case.activity(rank).call.in_collective and not analysis.case.activity(rank).place.in_store_or_init
        for rank in found
    )
    if any(_may_read_on(analysis, rank) or rank in analysis.graph.perhaps for rank in found):
        return "possible"  # or it waits for a message that its back end does not record
    # Whoever is to set the key that they wait for, or to make their group with them, may be one that went on without.
    keyed = any(analysis.case.activity(rank).place.in_store_or_init for rank in found)
    if (
        worst == Strength.RECORDED
        and resolved
        and analysis.proven_stuck
        and analysis.whole_world_seen
        and not (contradicted or keyed)
    ):
        return "certain"
    if any(_may_be_in_transfer(analysis, rank) or _is_in_the_dark(analysis, rank) for rank in found):
        return "possible"
    plain = worst == Strength.RECORDED or all(_plainly_elsewhere(analysis, rank) for rank in found)
    if worst <= Strength.HOST and plain and not contradicted and (analysis.proven_stuck or not analysis.dated):
        return "likely"
    still = all(analysis.case.activity(rank).progress.moving is False for rank in analysis.case.observed)
    still = still and all(analysis.case.activity(rank).place.thread in ("", _MAIN_THREAD) for rank in found)
    if not analysis.graph.waits and not analysis.case.unobserved and still:
        return "likely"  # stacks alone, of every rank, and the same twice
    return "possible"


def _may_read_on(analysis: Analysis, rank: int) -> bool:
    """It reads or writes where it did before, and nothing tells whether bytes flow: a slow storage looks the same."""
    activity = analysis.case.activity(rank)
    return (
        activity.place.where in _READS
        and bool(activity.place.stack)
        and not (activity.progress.io_known or activity.process.stopped)
    )


def _may_be_in_transfer(analysis: Analysis, rank: int) -> bool:
    """No stack was read, and gloo records no transfers: others are seen to wait in some."""
    return bool(analysis.graph.unrecorded) and not analysis.case.activity(rank).known


def _is_in_the_dark(analysis: Analysis, rank: int) -> bool:
    """Neither a dump to its end nor a stack was read: that it sleeps says nothing of where."""
    case = analysis.case
    return not (case.recorded(rank) or case.activity(rank).place.stack or case.launches_behind(rank))


def _plainly_elsewhere(analysis: Analysis, rank: int) -> bool:
    """A line of the job's own code, with nothing known of the thread, may be a device synchronisation."""
    if analysis.case.recorded(rank) or analysis.case.launches_behind(rank):
        return True
    if analysis.case.activity(rank).place.where not in ("user_code", "busy_loop", "unknown"):
        return True
    evidence = analysis.case.evidence.get(rank)
    return evidence is not None and any(look.state in ("S", "D", "T", "t", "Z") for look in evidence.processes)


# A rank that others wait for goes on with its own steps: it went past the call, and will not come back to it.
#
# In synchronous training all ranks count the same steps. A rank that is late is behind those that wait for it; one that
# is ahead of them has passed the place without calling (a no_sync that lasts, a branch around the collective).


# Loops that launch ahead of their GPU, or count a step before its last call, are one or two ahead in health.
_STEPS_AHEAD = 5
# What the steps after the others' stop may differ from the lead, if both counted alike until then.
_SLACK_STEPS = 2.0
_SLACK_SHARE = 0.25
# What others called with it in as many steps as it leads by: who predicts a shard of its own, or trains a model of its
# own, meets the others when it is done with it, and its steps need none of them.
_CALLS_LEFT_OUT = 3.0


def skipped(analysis: Analysis) -> Saying:
    """Ranks that others wait for count steps on: they went past the call."""
    if not analysis.hangs:
        return None
    absent = analysis.absent
    waiting = [rank for rank in analysis.waiting if rank not in absent]
    ahead = {rank: steps for rank in absent if (steps := _steps_ahead(analysis, rank, waiting)) is not None}
    if not ahead or len(ahead) < len(absent) or 2 * len(ahead) >= len(analysis.case.observed):
        return None
    ranks = tuple(sorted(ahead))
    wait = main_wait(analysis, ranks)
    if wait is None:
        return None
    frontiers = [fact for rank in ranks if (fact := frontier_fact(analysis, rank, wait.point.group)) is not None]
    return Claim(
        cause="not_entered",
        culprits=ranks,
        confidence="likely",
        because=(
            *(
                Fact(
                    f"rank {rank} has counted {ahead[rank]} steps more than {named(waiting)}, with which it was in "
                    "step before: it went past the call in which they wait",
                    "heartbeats",
                )
                for rank in ranks
            ),
            *waiting_facts(analysis),
            *frontiers,
            *activity_facts(analysis, ranks),
        ),
        where="user_code",
        steps_past=min(ahead.values()),
    ).at(analysis, wait)


def _steps_ahead(analysis: Analysis, rank: int, waiting: Iterable[int]) -> int | None:
    """By how many steps a rank leads all that wait, where all were in step until these stopped; None otherwise."""
    mine = _beat(analysis, rank)
    if mine is None or mine.step is None or mine.last_step_ns is None or not mine.step_durations_ns:
        return None
    host = analysis.case.activity(rank).host
    others = [(waiter, _beat(analysis, waiter)) for waiter in waiting]
    counted = [
        (beat.step, beat.last_step_ns)
        for waiter, beat in others
        # The clock of steps is the node's own.
        if beat is not None and analysis.case.activity(waiter).host == host
        if beat.step is not None and beat.last_step_ns is not None
    ]
    if not counted or len(counted) < len(others):
        return None
    step, stopped_ns = max(counted)
    ahead = mine.step - step
    usual_ns = sum(mine.step_durations_ns) / len(mine.step_durations_ns)
    since_then = (mine.last_step_ns - stopped_ns) / usual_ns if usual_ns > 0 else 0.0
    # Roles that count other things (a sampler beside trainers) never were in step.
    alike = abs(ahead - since_then) <= _SLACK_STEPS + _SLACK_SHARE * since_then
    alone = step >= _STEPS_AHEAD and all(
        (calls := _calls_before(analysis, waiter, rank)) is not None and calls * ahead < _CALLS_LEFT_OUT * step
        for waiter in waiting
    )
    return ahead if ahead >= _STEPS_AHEAD and alike and not alone else None


def _calls_before(analysis: Analysis, waiter: int, rank: int) -> int | None:
    """How many collectives of groups with this rank a waiter had called before it came to wait; None: unknown, or its
    steps need messages as well."""
    summary = analysis.case.summaries.get(waiter)
    if summary is None or not summary.streams or summary.pairs or waiter in analysis.graph.unrecorded:
        return None
    numbers = [stream.last_seq for stream in summary.streams if not stream.ranks or rank in stream.ranks]
    return max(0, sum(numbers) - 1)


def _beat(analysis: Analysis, rank: int) -> Heartbeat | None:
    evidence = analysis.case.evidence.get(rank)
    beats = [beat for beat in evidence.heartbeat if not beat.is_child] if evidence else []
    return beats[-1] if beats else None


# Everybody has entered the same operation and it does not end. Nobody is named.


def comm_stuck(analysis: Analysis) -> Saying:
    """All members have entered one operation and none finishes. Names nobody."""
    if not analysis.hangs:
        return None
    if not analysis.roots.closed:
        return Rejected("comm_stuck", "somebody has not entered") if analysis.graph.waits else None
    hidden = set(analysis.graph.unrecorded) | set(analysis.graph.perhaps)  # their own waits may end here, too
    if any(rank not in hidden for rank, _ in analysis.roots.absent) or analysis.roots.cycles:
        return Rejected("comm_stuck", "other waits end at ranks that have not entered")
    moving = [rank for rank, activity in analysis.case.activities.items() if activity.progress.moving]
    if many_move(moving, analysis.case.observed):
        return Rejected("comm_stuck", f"{named(moving)} make progress: what is entered will end")
    if analysis.only_young_waits:
        return Rejected("comm_stuck", "one look shows the waits, and none of them is old")
    stuck = {wait.point for wait in analysis.graph.waits if wait.stuck}
    # Of a group whose members nobody wrote down, those that have not come yet may stand in another that is whole.
    whole = [point for point in analysis.roots.closed if not perhaps_members(analysis.case, point.group)]
    closed = whole or analysis.roots.closed
    point = next((point for point in closed if point in stuck), closed[0])
    if analysis.case.groups[point.group].backend in analysis.case.untold:
        return Rejected("comm_stuck", "the recorder does not tell whether what was entered ends")
    if analysis.graph.unknown[point]:
        return Rejected("comm_stuck", f"nothing tells whether {named(analysis.graph.unknown[point])} entered")
    if not analysis.whole_world_seen:
        return Rejected("comm_stuck", "not every rank of the job was seen")
    outside = perhaps_members(analysis.case, point.group)
    if outside:
        return Rejected("comm_stuck", f"no recorder names the members of this group: {named(outside)} may be one")
    one_off = next(filter(None, (_one_end_off(analysis, one) for one in analysis.roots.closed)), None)
    if one_off is not None:
        return one_off
    waits = [wait for wait in analysis.graph.waits if wait.point == point]
    call = analysis.case.call(waits[0].rank, waits[0].pending)
    uneven = call is not None and not signature.is_synchronising(call.operation) and not _one_root(analysis, waits)
    sure = analysis.proven_stuck and analysis.case.groups[point.group].members_known and not uneven
    return Claim(
        cause="comm_stuck",
        culprits=(),
        confidence="likely" if sure else "possible",
        missing=(f"which root each rank named in {call.operation}: another one on some of them looks the same",)
        if uneven and call is not None
        else (),
        because=(
            Fact(f"all members have entered {point_name(analysis, point, call)}, none finishes", "flight recorders"),
            *waiting_facts(analysis),
        ),
        where="collective",
        ends_by_itself="first_use" if is_first_use(analysis, waits) else None,
        group=point.group,
        operation=call.operation if call else None,
        seq=point.seq or None,
    )


def _one_end_off(analysis: Analysis, point: Point) -> Claim | None:
    """Both ends stand in a transfer by counts from the end, for a ring has lost the first of them, and one of the two
    alone has called another than its peers: theirs are not the same one."""
    case = analysis.case
    waits = [wait for wait in analysis.graph.waits if wait.point == point]
    of_ends = {end for w in waits for transfer in w.pending.transfers for end in case.ends(w.rank, w.pending, transfer)}
    if len(analysis.departures) != 1 or all(case.summaries[end].whole for end in of_ends if end in case.summaries):
        return None
    left = analysis.departures[0]
    called = [call for call in (left.found, *left.expected) if signature.is_transfer(call.operation)]
    if left.rank not in of_ends or point.group not in {case.group_of[left.rank, call.stream] for call in called}:
        return None
    found, usual = describe(left.found), describe(left.expected[0])
    return Claim(
        cause="p2p_unmatched",
        culprits=(left.rank,),
        confidence="likely",
        because=(
            Fact(
                f"rank {left.rank} called {found} where its peers, or it in earlier steps, called {usual}",
                f"flight recorder of rank {left.rank}",
            ),
            *waiting_facts(analysis),
        ),
        where="collective",
        group=point.group,
        operation=called[0].operation,
        site=left.found.site,
    )


def _one_root(analysis: Analysis, waits: list[Wait]) -> bool:
    """True when all that wait are known to name one root; calls without a root have no such trouble."""
    calls = [analysis.case.activity(wait.rank).call.named_call for wait in waits]
    return all(call is not None and call.rank is not None for call in calls) and len({c.rank for c in calls if c}) == 1
