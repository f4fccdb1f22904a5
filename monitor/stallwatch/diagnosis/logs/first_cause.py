"""Which failure came first, and which only follow: events of one attempt, pure. What the launcher or torch says first
is not always the cause."""

import re
from collections.abc import Sequence
from signal import SIGABRT, SIGKILL, SIGTERM
from typing import Final

from stallwatch.diagnosis.logs.consequence import (
    ENDED_NOTHING,
    NOT_WHICH,
    PEER_GONE,
    RANK_WENT_ON,
    TRIED_AGAIN,
    TRIED_BEFORE,
    is_of_several,
    is_of_training,
    meaning,
    means_nothing,
    was_tried_again,
)
from stallwatch.diagnosis.logs.ended_by_launcher import (
    announced,
    is_one_of_several,
    left_after,
    was_ended_after_a_root,
)
from stallwatch.diagnosis.logs.joined_events import merged
from stallwatch.diagnosis.logs.later_failures import is_before, later_failures
from stallwatch.diagnosis.logs.logged_failure import LoggedFailure
from stallwatch.diagnosis.logs.strength import CAUSES, OF_A_RANK, PLACE, TIMEOUTS
from stallwatch.formats.log_progress import OF_MEETING
from stallwatch.model.log_event import PROCESS_ENDS, LogEvent

_NOT_TOLD: Final = frozenset(
    ("group_status", "nccl_init_started", "nccl_init_complete", "init_waiting", "failed_stack", "terminated", "killing",
     "clean_end", "restarting", "trying_again", "steps_again", "error_like", "last_line")
)  # fmt: skip
# What only ranks tell that have met.
_MET: Final = frozenset(
    ("collective_timeout", "gloo_timeout", "collective_mismatch", "size_mismatch", "barrier_absent",
     "desync_absent", "group_status", "watchdog_end", "heartbeat_stuck")
)  # fmt: skip
_UNLIKE_FIRST: Final = re.compile(r"appears not to match (?:sizes|strides) of the same param in process \d+")
_WHILE_HANDLING: Final = "it was raised while another exception was handled"
# What a process says before it ends itself by SIGABRT, the launcher's first failure or not.
_BEFORE_ABORT: Final = frozenset(
    ("collective_timeout", "watchdog_end", "heartbeat_stuck", "cuda_error", "size_mismatch", "gil_clue", "gpu_xid",
     "native_exception")
)  # fmt: skip
_CRASHES: Final = (4, 7, 8, 11)  # SIGILL, SIGBUS, SIGFPE, SIGSEGV
_PEERS_MEMORY: Final = "Invalid access of peer GPU memory over nvlink or a hardware error"
_OF_ITS_OWN: Final = (4, 7, 8)  # of these; SIGSEGV may follow as a peer comes down


def tell(events: Sequence[LogEvent]) -> tuple[LoggedFailure, ...]:
    """Given events of one attempt, each with its rank, return those worth telling: the first cause first, consequences
    after it."""
    read = [
        LoggedFailure(event, event.rank, *meaning(event, kind))
        for event, kind in merged(events)
        if not means_nothing(event)
    ]
    named = _owned(_survived(announced(_retries(_chained(_compared(read)), events))))
    told = later_failures(_ends(_reached(named)), events)
    worth = [one for one in _folded(told) if one.kind not in _NOT_TOLD]
    causes = [one for one in worth if not one.consequence]
    first = min(causes, key=lambda one: _order(one, causes), default=None)
    if first is None:
        return tuple(worth)
    return (first, *(one for one in worth if one is not first))


def _folded(told: Sequence[LoggedFailure]) -> list[LoggedFailure]:
    """What several ranks told, of which the log keeps some, is nobody's: the others would stand there as innocent."""
    several = {_what(one) for one in told if is_of_several(one.event)}
    return [one._replace(rank=None) if _what(one) in several and one.kind not in TIMEOUTS else one for one in told]


def _what(one: LoggedFailure) -> tuple[str, str]:
    return one.kind, (one.event.exception or "").rpartition(".")[2]


def only_warned(told: Sequence[LoggedFailure]) -> bool:
    """Whether the first cause is a warning after which all may have gone well: no rank failed to meet for good."""
    return (
        bool(told)
        and was_tried_again(told[0].event, told[0].kind)
        and not any(
            one.kind in OF_MEETING and one.consequence not in ENDED_NOTHING and not was_tried_again(one.event, one.kind)
            for one in told
        )
    )


def alike(told: Sequence[LoggedFailure]) -> tuple[LoggedFailure, ...]:
    """The first cause, and the same failure of other ranks: neither is a consequence of the other."""
    if not told or told[0].consequence:
        return tuple(told[:1])
    first = told[0]
    same = (first, *(one for one in told[1:] if not one.consequence and _same_failure(one, first)))
    return tuple(one for one in same if one.rank is not None) or same


def _same_failure(one: LoggedFailure, other: LoggedFailure) -> bool:
    if one.kind != other.kind or one.rank is None or one.rank == other.rank:
        return False
    if one.kind in PROCESS_ENDS:
        ends = [(end.event.exit_code, end.event.exit_signal) for end in (one, other)]
        alone = one.event.exit_signal in _OF_ITS_OWN
        return ends[0] == ends[1] and (one.event.first or not other.event.first or alone)
    return _what(one) == _what(other)


def _compared(told: list[LoggedFailure]) -> list[LoggedFailure]:
    """DDP compares each rank's parameters with rank 0's: where half of them differ from it, it may be the odd one."""
    differ = [one for one in told if one.rank is not None and _UNLIKE_FIRST.search(one.event.message or "")]
    if 2 * len({one.rank for one in differ}) <= max((one.rank or 0 for one in told), default=0):
        return told
    return [one._replace(consequence=NOT_WHICH) if one in differ else one for one in told]


def _chained(told: list[LoggedFailure]) -> list[LoggedFailure]:
    """What was raised while an exception was handled, or because of it, is a consequence where that one is."""
    last: dict[tuple[str, int | None], LoggedFailure] = {}
    out: list[LoggedFailure] = []
    for one in told:
        key = one.event.source, one.rank
        before = last.get(key)
        if one.event.chained and before is not None and before.consequence and not one.consequence:
            one = one._replace(consequence=before.consequence)
        elif one.event.chained and before is not None and not before.consequence and one.consequence:
            if _is_wait_alone(before):
                out.remove(before)  # what was made of it tells whom it waited for
            else:
                one = one._replace(consequence=_WHILE_HANDLING)
        elif one.event.chained and before is None and not one.consequence:
            one = one._replace(consequence=_WHILE_HANDLING)  # of which the log has lost the text
        if one.event.exception:
            last[key] = before if one.event.chained and before and not before.consequence and one.consequence else one
        out.append(one)
    return out


def _is_wait_alone(one: LoggedFailure) -> bool:
    return (one.event.exception or "").rpartition(".")[2] in ("TimeoutError", "Empty") and not one.event.message


def _retries(told: list[LoggedFailure], events: Sequence[LogEvent]) -> list[LoggedFailure]:
    """Ranks that did not meet, and met at a later try: no cause. Of several warnings of one kind and one that was
    fatal, that one is the cause."""
    fatal = {one.kind for one in told if not one.consequence and not was_tried_again(one.event, one.kind)}
    others = any(kind in OF_A_RANK - OF_MEETING for kind in fatal)
    out: list[LoggedFailure] = []
    for one in told:
        again = not one.consequence and was_tried_again(one.event, one.kind)
        if one.kind in OF_MEETING and not one.consequence and _met_later(one, told, events):
            one = one._replace(consequence=TRIED_AGAIN)
        elif again and one.kind in fatal:
            one = one._replace(consequence=TRIED_BEFORE)
        elif again and one.kind == "address_in_use" and others and "address_in_use" not in fatal:
            one = one._replace(consequence=TRIED_AGAIN)
        out.append(one)
    return out


def _met_later(one: LoggedFailure, told: Sequence[LoggedFailure], events: Sequence[LogEvent]) -> bool:
    """Whether what came after a failed meeting shows that the ranks met: what they say in collectives, an exception
    with the mark that torch gives to ranks of a group; or somebody said that he tries again, and then another thing
    failed. Not where the launcher names this failure as the first."""
    if one.rank is not None and any(other.event.first and other.rank == one.rank for other in told):
        return False
    later = [other for other in told if is_before(one.event, other.event)]
    failures = [other for other in later if other.kind in OF_A_RANK - OF_MEETING and not other.consequence]
    if any(other.kind in _MET for other in later) or any(o.rank is not None and o.event.exception for o in failures):
        return True
    after = [event for event in events if is_before(one.event, event)]
    if any(event.kind == "nccl_init_complete" for event in after):
        return True
    tries = [event for event in after if event.kind == "trying_again"]
    return any(is_before(event, other.event) for event in tries for other in failures)


def _survived(told: list[LoggedFailure]) -> list[LoggedFailure]:
    """An exception did not end a rank that later waited in a collective, or lost its peer, by its own word."""
    went_on: dict[tuple[str, int], int] = {}
    for one in told:
        lost_peer = one.event.kind == "exception" and one.consequence and not one.event.secondary
        waits = one.kind in TIMEOUTS or (lost_peer and is_of_training(one.event))
        if waits and one.rank is not None and not one.event.chained:
            key = one.event.source, one.rank
            went_on[key] = max(one.event.line, went_on.get(key, 0))
    return [
        one._replace(consequence=RANK_WENT_ON)
        if one.event.kind == "exception"
        and not one.consequence
        and one.rank is not None
        and went_on.get((one.event.source, one.rank), 0) > one.event.line
        else one
        for one in told
    ]


def _owned(told: Sequence[LoggedFailure]) -> list[LoggedFailure]:
    """Whose the failures are that name nobody, by how many ranks their launcher saw end so: as many exceptions,
    all alike, as ranks that left with an exit code are of one of these each. So with crashes of native code, in whose
    lines torch marks no rank, and signals of crashes."""
    left: dict[str, set[int]] = {}
    crashed: dict[str, dict[int, int | None]] = {}  # with their local ranks
    nobodys: dict[str, list[LoggedFailure]] = {}
    crashes: dict[str, list[LoggedFailure]] = {}
    marked: set[str] = set()
    killed: set[int] = set()
    aborted: dict[str, set[int]] = {}
    natives: dict[str, list[LoggedFailure]] = {}  # of C++ and glibc, each before one abort
    for one in told:
        event = one.event
        if one.kind in PROCESS_ENDS and event.exit_signal == SIGABRT and event.rank is not None:
            aborted.setdefault(event.source, set()).add(event.rank)
        if event.kind in ("native_exception", "native_crash"):
            natives.setdefault(event.source, []).append(one)
        if one.kind in PROCESS_ENDS and not one.consequence and event.exit_code and event.rank is not None:
            left.setdefault(event.source, set()).add(event.rank)
        elif one.kind in PROCESS_ENDS and event.exit_signal == SIGKILL and not one.consequence:
            killed.update((event.rank,) if event.rank is not None else event.ranks)
        elif one.kind in PROCESS_ENDS and event.exit_signal in _CRASHES and event.rank is not None:
            crashed.setdefault(event.source, {})[event.rank] = event.local_rank
        elif one.kind == "native_crash" and not one.consequence and one.rank is None:
            crashes.setdefault(event.source, []).append(one)
        elif (event.exception or one.kind == "not_started") and not one.consequence:
            if one.rank is not None or event.local_rank is not None:
                marked.add(event.source)
            else:
                nobodys.setdefault(event.source, []).append(one)
    owners: dict[int, int] = {}
    if len(killed) == 1:  # the kernel says who was killed by a number that its launcher has not told
        owners = {id(one): min(killed) for one in told if one.kind == "memory_killed" and one.rank is None}
    for source, ones in natives.items():
        if len(ones) == 1 == len(aborted.get(source, ())) and ones[0].rank is None:
            owners |= {id(one): min(aborted[source]) for one in ones}
    for source, ones in nobodys.items():
        alike = {(one.kind, one.event.exception, one.event.message, one.event.frame) for one in ones}
        if source not in marked and len(alike) == 1 and len(ones) == len(left.get(source, ())):
            owners |= {id(one): rank for one, rank in zip(ones, sorted(left[source]), strict=True)}
    for source, ones in crashes.items():
        told_of = crashed.get(source, {})
        ranks, anywhere = sorted(told_of), [one for one in ones if one.event.local_rank is None]
        if ranks and len(ranks) in (1, len(anywhere)):
            every = ranks * (len(anywhere) // len(ranks))
            owners |= {id(one): rank for one, rank in zip(anywhere, every, strict=True)}
        for one in ones:
            there = [rank for rank in ranks if told_of[rank] == one.event.local_rank is not None]
            owners |= {id(one): there[0]} if len(there) == 1 else {}
    return [one._replace(rank=owners[id(one)]) if id(one) in owners else one for one in told]


def _reached(told: list[LoggedFailure]) -> list[LoggedFailure]:
    """CUDA's error of a peer's memory is, by its own words, of hardware or of an invalid access: so are all to the
    memory of a rank that is gone. Where another rank had failed by itself before, it follows."""
    others = [one for one in told if one.rank is not None and not one.consequence and not _of_peers_memory(one)]
    others = [one for one in others if one.kind in OF_A_RANK or one.kind in PROCESS_ENDS]

    def follows(one: LoggedFailure) -> bool:
        return any(
            is_before(other.event, one.event) or (other.event.first and other.event.exit_signal is not None)
            for other in others
            if one.rank not in (None, other.rank)
        )

    return [
        one._replace(consequence=PEER_GONE) if not one.consequence and _of_peers_memory(one) and follows(one) else one
        for one in told
    ]


def _of_peers_memory(one: LoggedFailure) -> bool:
    return _PEERS_MEMORY in f"{one.event.message} {one.event.text}"


def _ends(told: list[LoggedFailure]) -> list[LoggedFailure]:
    """A rank that its own watchdog aborted is the first that a launcher sees to end, and only a waiting one; ranks that
    ended after it by themselves are no cause either."""
    aborts = [one for one in told if one.kind in _BEFORE_ABORT or "watchdog" in one.consequence]
    raised = [one for one in told if one.event.exception and "ChildFailedError" not in one.event.exception]
    waited = [one for one in told if one.kind in (*TIMEOUTS, "init_timeout")]
    ends = [one for one in told if one.kind in (*PROCESS_ENDS, "actor_died")]
    only_ends = not raised and all(one in ends or one.kind in _NOT_TOLD or one.consequence for one in told)

    def is_of(other: LoggedFailure, end: LoggedFailure) -> bool:
        if other.rank is not None and end.rank is not None:
            return other.rank == end.rank
        return other.event.local_rank in (None, end.event.local_rank) or other.rank is None

    def reason(end: LoggedFailure) -> str:
        if end.consequence:
            return end.consequence
        event = end.event
        aborted = event.exit_signal == SIGABRT
        # Ray tells a worker's death before or after what that worker wrote, and not how it ended.
        waited_itself = end.kind == "actor_died" and end.rank is not None
        if (aborted or waited_itself) and any(is_of(other, end) or end.rank is None for other in aborts):
            return "it ended itself after it had waited in vain"
        # An engine raises by itself, without a rank's mark, once a worker has died that said nothing.
        of_engine = end.kind == "worker_died"
        own = (other for other in raised if is_of(other, end) and not (of_engine and other.rank is None))
        if event.exit_signal is None and next(own, None) is not None:
            return "its own exception says why it left"
        if event.exit_signal == SIGKILL and not event.first and was_ended_after_a_root(end, ends, raised):
            return "the launcher's first had raised an exception of its own, and the others were ended then"
        if any(is_before(other.event, event) for other in waited):
            return "ranks had waited in vain before it ended"
        if event.first and event.exit_signal in (SIGABRT, SIGTERM) and is_one_of_several(end, ends):
            return "others ended by the same signal, and nothing tells whose end was the first by itself"
        if event.first and aborted and only_ends:
            return "it ended itself, as one does whose watchdog waited for another, and nothing tells why"
        return ""

    reasons = {id(end): reason(end) for end in ends}
    first_aborted = any(end.event.first and "waited in vain" in reasons[id(end)] for end in ends)
    own = [one for one in raised if not one.consequence]
    first_raised = [end.event for end in ends if end.event.first and any(is_of(other, end) for other in own)]
    out: list[LoggedFailure] = []
    for one in told:
        why = reasons.get(id(one), "")
        if one in ends and first_aborted and not why and one.event.exit_signal is None:
            why = "the first that the launcher saw had waited in vain"
        elif one in ends and not why and any(left_after(one.event, first) for first in first_raised):
            why = "the launcher had seen another leave with the same exit code, by an exception of its own"
        out.append(one._replace(consequence=why) if why and not one.consequence else one)
    return out


def _order(one: LoggedFailure, causes: Sequence[LoggedFailure]) -> tuple[int, int, int, float, str, int]:
    """Order of causes: how much the kind says; what the launcher saw first; whether it is known whose it is, or of
    which node; then the time, and the place."""
    strength = PLACE.get(one.kind, len(CAUSES))
    event = one.event
    # A rank that was killed by a signal nobody sent on purpose (SIGKILL, SIGSEGV, SIGBUS) beats peers' exceptions.
    if one.kind in PROCESS_ENDS and event.exit_signal not in (None, SIGABRT, SIGTERM):
        strength = PLACE["collective_mismatch"]
    # torchrun names the first failure that it saw: an exception of that rank is the cause.
    first = [other for other in causes if other.event.first]
    is_first = any(
        one.rank == other.rank if one.rank is not None else event.local_rank == other.event.local_rank is not None
        for other in first
    )
    again = was_tried_again(event, one.kind)
    when = event.at_seconds if event.at_seconds is not None else float("inf")
    comparable = len({other.event.utc for other in causes if other.event.at_seconds is not None}) <= 1
    priority = 2 if again else 0 if is_first else 1
    unknown = 0 if one.rank is not None else 1 if one.kind == "node_failed" and event.host else 2
    return strength, priority, unknown, when if comparable else 0.0, event.source, event.line
