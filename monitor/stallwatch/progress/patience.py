"""How long a standstill may last before anybody is told: stages, each with its moment, and why not sooner."""

from collections.abc import Sequence
from typing import NamedTuple

from stallwatch.clock import SECOND_NS
from stallwatch.config import Config
from stallwatch.formats.rank_ranges import ranks_in
from stallwatch.model.incident import Severity
from stallwatch.model.verdict import EndsByItself, Verdict
from stallwatch.progress.kinds import patience_with

# What a rank does that waits for requests, for messages of an actor or for a person; nobody else waits then.
_IDLE: frozenset[EndsByItself] = frozenset({"network", "sleep", "timeout", "lock"})
_MOST_NAMED = 4
# What a job that trains does again and again, and one that starts hardly ever: that broadcasts, gathers and meets.
_REDUCTIONS = frozenset({
    "all_reduce", "allreduce_coalesced", "all_reduce_coalesced", "reduce_scatter", "_reduce_scatter_base",
    "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced",
})  # fmt: skip
_MANY_CALLS = 20
# What a loop does, at one look, that goes round a queue without a pause.
_POLLS: frozenset[EndsByItself | None] = frozenset({None, "compute", "lock", "timeout", "sleep"})
# In these everybody waits for what one rank has to say: workers of an engine for its next request.
_FROM_ONE = frozenset({"broadcast", "broadcast_object_list", "scatter", "scatter_object_list", "recv_object_list"})
# One rank alone prepares data for up to three hours; where it is on another node, nobody here sees it at work.
_UNSEEN_TIMES = 2
_AS_LONG_AGAIN = 1.5  # times the longest of a phase's past: a checkpoint that always takes 20 min surprises nobody


class Standstill(NamedTuple):
    """What is known of a job that stands. Times are CLOCK_MONOTONIC nanoseconds."""

    verdict: Verdict
    since_ns: int  # it stands
    known_ns: int  # cause and culprits are the same
    deadline_ns: int | None  # torch's own time-out ends the job
    begun: bool  # it is past its start
    hooked: bool
    suspended: bool  # every rank of the job is stopped
    in_phase: bool  # one of the culprits
    works: bool  # one of the culprits stands still and computes now and then
    phase_past_seconds: float  # the longest that the phases of its ranks have lasted before, 0 where they are new
    silent: tuple[str, ...]  # nodes of the job from which nothing comes any more
    elsewhere: bool  # ranks of the job are on nodes that nobody asks: what they do is not known here
    debugged: tuple[int, ...]  # ranks under a tracer
    moved_ns: int = 0  # the last look at which those for whom others wait made progress; 0: they never did
    worked_ns: int = 0  # where it has not begun: when one of its ranks was last seen at work, in whichever thread
    works_unseen: bool = (
        False  # of some ranks it is not known when they worked: nodes tell each other how they stand only
    )
    passing_ns: int | None = None  # until then a stop of one of its ranks may be one that passes


class Plan(NamedTuple):
    """When somebody is told, and how urgently; no stage: time alone tells nobody."""

    stages: tuple[tuple[int, Severity], ...] = ()  # in the order of time
    why: str = ""  # why not sooner; "" where there is nothing to wait for

    def at(self, now_ns: int) -> Severity:
        """The severity that is reached at a moment (CLOCK_MONOTONIC, ns)."""
        reached = [severity for at_ns, severity in self.stages if at_ns <= now_ns]
        return reached[-1] if reached else "none"

    def next_ns(self, now_ns: int) -> int | None:
        """When it grows next; None: never."""
        return next((at_ns for at_ns, _ in self.stages if at_ns > now_ns), None)


class _Wait(NamedTuple):
    until_ns: int
    why: str


def plan(standstill: Standstill, config: Config) -> Plan:
    """Given a job that stands and the verdict of it, return when to tell whom."""
    planned = _of_verdict(standstill, config)
    if not (planned.stages and standstill.debugged) or config.tell.terminals:
        return planned
    # Whoever debugs knows that it stands; torch ends the job all the same, and a debugger may have been forgotten.
    wait = _until_own_time(standstill, config, being_debugged(standstill.debugged))
    stages = tuple((max(at_ns, wait.until_ns), severity) for at_ns, severity in planned.stages)
    return planned if stages == planned.stages else Plan(stages, wait.why)


def being_debugged(ranks: Sequence[int]) -> str:
    """Why nobody is told of it yet, in words."""
    return f"rank {ranks[0]} is being debugged"


def _of_verdict(standstill: Standstill, config: Config) -> Plan:
    verdict, tell, state = standstill.verdict, config.tell, standstill.verdict.traits.state
    later_ns = standstill.known_ns + int(config.stall.critical_after_seconds * SECOND_NS)
    if verdict.cause == "process_stopped" and standstill.suspended:
        wait = _after(standstill, tell.waiting_seconds, f"the whole job is suspended ({tell.waiting_seconds:g} s)")
        return Plan(((wait.until_ns, "critical"),), wait.why)
    if state == "at_once":
        wait = _longest(standstill.known_ns, [_kind(standstill, config), *_passing(standstill, config)])
        if verdict.confidence == "possible":  # not enough to wake somebody at once
            return Plan(((wait.until_ns, "warning"), (max(later_ns, wait.until_ns), "critical")), wait.why)
        return Plan(((wait.until_ns, "critical"),), wait.why)
    if not standstill.hooked and not standstill.begun:
        return Plan((), "a job without a hook that was never seen to work")
    kind = verdict.ends_by_itself
    if not standstill.hooked and (kind == "request" or (kind in _IDLE and not verdict.waiting)):
        return Plan((), "without a hook an idle server looks the same")
    polls = kind == "compute" or (state == "waits" and kind in _POLLS)
    if not standstill.hooked and polls and _may_be_an_engine(verdict):
        return Plan((), "without a hook an engine that polls for requests at full speed looks the same")
    if kind == "request" and not standstill.begun:
        return _of_start(standstill, config)  # as an idle server does, whose workers wait for it
    if state == "stuck":  # a warning, and critical when it still stands later
        wait = _longest(
            standstill.known_ns, [_start(standstill, config), _kind(standstill, config), _settling(standstill, config)]
        )
        return Plan(((wait.until_ns, "warning"), (max(later_ns, wait.until_ns), "critical")), wait.why)
    if state not in ("undecided", "waits"):
        return Plan()
    if not standstill.begun:
        return _of_start(standstill, config)
    open_ = _undecided_wait(standstill, config) if state == "undecided" else _moving(standstill, config)
    return Plan(((open_.until_ns, "warning"),), open_.why) if open_ else Plan((), "nothing shows that its ranks wait")


def _may_be_an_engine(verdict: Verdict) -> bool:
    """Whether others wait for what the first of all these ranks has to say: that is an engine's driver, one of several
    engines perhaps. Where the first waits as well, who is awaited has not come to hear it, and trains."""
    first = min((*verdict.culprits, *ranks_in(verdict.waiting)), default=None)
    return verdict.operation in _FROM_ONE and first in verdict.culprits


def _of_start(standstill: Standstill, config: Config) -> Plan:
    """Of a job that has not begun to step, and of which nothing shows that it is stuck: it may load, compile, queue for
    its peers, or serve. Told is what torch is about to end, and what has done nothing at all for longer than starts
    last while its ranks wait."""
    tell = config.tell
    if not standstill.verdict.waiting:
        return Plan((), "the job has not begun to step, and no rank is seen to wait for another")  # it may serve
    own = _share_of_own_time(standstill, tell.waiting_share)
    if own is not None:
        why = f"the job has not begun to step ({tell.waiting_share:.0%} of its own time-out, tell.waiting_share)"
        return Plan(((own, "warning"),), why)
    if standstill.verdict.traits.state == "waits":
        return Plan((), "the job has not begun to step, and the culprit makes progress")
    if _joins(standstill.verdict):
        wait = _longest(standstill.known_ns, [_until_default(standstill, config), _kind(standstill, config)])
        return Plan(((wait.until_ns, "warning"),), wait.why)
    seconds = tell.unbegun_seconds * (_UNSEEN_TIMES if standstill.works_unseen else 1)
    since_ns = max(standstill.since_ns, standstill.moved_ns, standstill.worked_ns)
    kind = _kind(standstill, config)
    until_ns = max(since_ns + int(seconds * SECOND_NS), kind.until_ns if kind else 0)
    why = f"the job has not begun to step, as in a start that takes long ({seconds:g} s, tell.unbegun_seconds)"
    return Plan(((until_ns, "warning"),), why)


def _joins(verdict: Verdict) -> bool:
    """Whether its ranks wait at the rendezvous, for a store or in the creation of a group: torch ends that by a
    time-out which no record tells."""
    return verdict.cause == "init_missing" or verdict.waiting_where in ("init", "store")


def _until_default(standstill: Standstill, config: Config) -> _Wait:
    """A time-out that is not known is none that is endless: told is shortly before the shortest of torch's defaults
    (ten minutes, NCCL's) ends the job, as where it is known. Where somebody set a longer one, a start that takes long
    may be told of; where nobody did, it is dead a little later."""
    tell = config.tell
    share = max(1.0, tell.waiting_share / tell.start_share)  # start_seconds are start_share of that default
    seconds = tell.start_seconds * share
    until_ns = max(standstill.known_ns, standstill.moved_ns) + int(seconds * SECOND_NS)
    why = "the job has not begun to step, and its own time-out is not known"
    return _Wait(until_ns, f"{why} ({seconds:g} s, by tell.start_seconds)")


def _passing(standstill: Standstill, config: Config) -> list[_Wait | None]:
    """A migration, a dump of its memory, a move between control groups stops a process for seconds."""
    if standstill.verdict.cause != "process_stopped":
        return []
    seconds, passing_ns = config.tell.stopped_seconds, standstill.passing_ns
    alone = _after(standstill, seconds, f"a stop may pass ({seconds:g} s, tell.stopped_seconds)")
    return [alone, _Wait(passing_ns, "who was stopped before has gone on") if passing_ns is not None else None]


def _after(standstill: Standstill, seconds: float, why: str) -> _Wait:
    return _Wait(standstill.since_ns + int(seconds * SECOND_NS), why)


def _longest(known_ns: int, waits: list[_Wait | None]) -> _Wait:
    return max((wait for wait in waits if wait and wait.until_ns > known_ns), default=_Wait(known_ns, ""))


def _kind(standstill: Standstill, config: Config) -> _Wait | None:
    kind = standstill.verdict.ends_by_itself
    if kind is None:
        return None
    patience = patience_with(kind, config.tell)
    # A loop that computes was elsewhere at earlier looks, and by chance at the same lines at the last two: a validation
    # of 150 s was to be told 40 s later, as one that had stood all the time.
    since_ns = max(standstill.since_ns, standstill.moved_ns)
    return _Wait(since_ns + int(patience.seconds * SECOND_NS), f"it may end by itself: {patience.why}")


def _start(standstill: Standstill, config: Config) -> _Wait | None:
    if standstill.begun and standstill.verdict.cause != "init_missing":
        return None
    if _has_trained(standstill.verdict):
        seconds = config.stall.unlearned_seconds
        return _after(standstill, seconds, f"its rhythm is not known yet ({seconds:g} s, stall.unlearned_seconds)")
    # Rank 0 tokenises, or builds an index in one long call, while the others are in a barrier: at every look it is on
    # the CPU at the same lines, as one that spins, and it is far more often the work of a start.
    computes, tell = standstill.verdict.ends_by_itself == "compute", config.tell
    share, key = (tell.waiting_share, "waiting_share") if computes else (tell.start_share, "start_share")
    own = _share_of_own_time(standstill, share)
    if own is not None:
        return _Wait(own, f"the job has not begun to step ({share:.0%} of its own time-out, tell.{key})")
    if computes:
        return _until_default(standstill, config)
    # Since it is known: before, they may have loaded weights for an hour in calls that no record shows to move.
    until_ns = standstill.known_ns + int(tell.start_seconds * SECOND_NS)
    return _Wait(until_ns, f"the job has not begun to step ({tell.start_seconds:g} s, tell.start_seconds)")


def _has_trained(verdict: Verdict) -> bool:
    """The recorders prove who is awaited, in a reduction that comes after many calls of its group: a job of which
    nobody counts steps, and which was too young for its rhythm to be learned."""
    proven = verdict.cause == "not_entered" and verdict.confidence == "certain"
    return proven and verdict.operation in _REDUCTIONS and (verdict.seq or 0) > _MANY_CALLS


def _settling(standstill: Standstill, config: Config) -> _Wait | None:
    """A guess, or a culprit where healthy ranks are silent for a while."""
    verdict, seconds = standstill.verdict, config.tell.settle_seconds
    # It waits for a program at both looks, and yet works in between: an evaluation, a converter.
    busy = verdict.where == "user_code" and standstill.works
    seen_once = verdict.confidence == "possible" or not standstill.hooked
    if seen_once or busy or standstill.in_phase or verdict.where == "init":
        until_ns = standstill.known_ns + int(seconds * SECOND_NS)
        return _Wait(until_ns, f"it must be seen so for {seconds:g} s (tell.settle_seconds)")
    return None


def _undecided_wait(standstill: Standstill, config: Config) -> _Wait | None:
    verdict, tell = standstill.verdict, config.tell
    if verdict.ends_by_itself is not None:
        return _kind(standstill, config)
    if standstill.silent and verdict.waiting:
        # Whoever stands is there, or their link is: nobody else of the job is left whom these could wait for.
        until_ns = standstill.known_ns + int(tell.settle_seconds * SECOND_NS)
        named = ", ".join(standstill.silent[:_MOST_NAMED])
        return _Wait(until_ns, f"nothing comes any more from {named} ({tell.settle_seconds:g} s, tell.settle_seconds)")
    if standstill.elsewhere and (verdict.waiting or verdict.missing):
        # All that is here may wait for a checkpoint that a rank on another node writes: its own node sees who stands.
        return _until_own_time(standstill, config, "ranks on other nodes are not seen from here")
    if verdict.waiting or (standstill.hooked and verdict.missing):
        seconds = tell.undecided_seconds
        if not standstill.hooked:  # each look must say the same: its stacks are all there is
            until_ns = standstill.known_ns + int(seconds * SECOND_NS)
            return _Wait(until_ns, f"nothing but its stacks is known ({seconds:g} s, tell.undecided_seconds)")
        return _after(
            standstill, seconds, f"it is not known what holds the job up ({seconds:g} s, tell.undecided_seconds)"
        )
    if not standstill.hooked:
        return None  # an idle server, an actor, a notebook
    return _after(
        standstill,
        tell.idle_seconds,
        f"no rank is seen to wait for another ({tell.idle_seconds:g} s, tell.idle_seconds)",
    )


def _moving(standstill: Standstill, config: Config) -> _Wait:
    wait = _until_own_time(standstill, config, "the culprit makes progress")
    past = _AS_LONG_AGAIN * standstill.phase_past_seconds
    habit = _after(standstill, past, f"the culprit makes progress ({past:g} s, by what this phase took before)")
    return max(wait, habit)


def _until_own_time(standstill: Standstill, config: Config, why: str) -> _Wait:
    """What ends well is told shortly before torch ends the job, whatever the reason."""
    tell = config.tell
    own = _share_of_own_time(standstill, tell.waiting_share)
    if own is not None:
        return _Wait(own, f"{why} ({tell.waiting_share:.0%} of the job's own time-out)")
    return _after(standstill, tell.waiting_seconds, f"{why} ({tell.waiting_seconds:g} s, tell.waiting_seconds)")


def _share_of_own_time(standstill: Standstill, share: float) -> int | None:
    """The moment at which this share of the time from its standstill to torch's own time-out has passed."""
    if standstill.deadline_ns is None or standstill.deadline_ns <= standstill.since_ns:
        return None
    return standstill.since_ns + int(share * (standstill.deadline_ns - standstill.since_ns))
