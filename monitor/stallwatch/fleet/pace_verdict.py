"""Which ranks of a job hold the others back, by what all its nodes say of waiting: the measure of one node (detectors.
waiting), over the ranks of all. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from functools import partial
from itertools import pairwise
from statistics import median, median_low
from typing import Final

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.detectors.counter_samples import PeerRank
from stallwatch.detectors.lasting import FIRST_STEPS
from stallwatch.detectors.looks import LOOK_NS, MISSED_LOOKS, Looks, StepLook, peers_of
from stallwatch.detectors.node_pace import MOST_BLOCKS, MOST_EARLIER, NodePace
from stallwatch.detectors.slow_cost import costs_nothing, seconds_before, since_when, slow_cost
from stallwatch.detectors.slow_words import SlowReason, cost_lead, held_back
from stallwatch.detectors.waiting import (
    CONFIRM_NATS,
    LEAST_LOOKS,
    Column,
    Least,
    Peers,
    cost,
    difference,
    differences,
    was_so,
    who_waits_least,
)
from stallwatch.detectors.wandering import is_usual
from stallwatch.encoding import msgpack_of
from stallwatch.fleet.place import Key
from stallwatch.fleet.seal import SealBroken, unseal
from stallwatch.model.finding import Stage
from stallwatch.model.verdict import Slowness

_WINDOWS: Final = (MOST_BLOCKS, 48, 32, 24, 16, 12, LEAST_LOOKS)  # blocks of steps, each of some moments
_COVERED: Final = 0.75  # of the blocks of the others that a node must have, to be laid beside them
_LEAST_NODES: Final = 2
_LEAST_RANKS: Final = 3  # of two, one waits for the other by many designs
_QUIET: Final = 3  # judgements without it, until it is over
_FORGETS: Final = 6  # and until how long a step was before is asked anew
_COUNTS: Final = 1_000_000  # a role's counts by step, as counts
_MOST_SLOW: Final = 64  # ranks that are named together: some nodes; more than that are the job's own design
_MOST_RANKS: Final = 1024  # of one node
_LARGEST: Final = 1e9  # of seconds, and of calls, a step; of milliseconds
_ASKED: Final = 64  # nodes of which it is asked how long a step was
_APART_NS: Final = 10**12  # blocks are of no one moment


class PaceVerdict(msgspec.Struct, frozen=True):
    """Ranks that hold the job back. `ranks` empty: none does."""

    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()  # where these run
    stage: Stage = "suspect"
    reason: str = ""
    without_cost: str = ""  # the reason, as in model.finding.Finding
    slowness: Slowness | None = None
    from_start: bool = False
    seconds: float = 0.0  # that it was seen to be so
    of_nodes: int = 0  # that were heard
    of_ranks: int = 0
    quiet: int = 0
    waited_for: tuple[int, ...] = ()  # for whom the others wait, slow or not; and
    before_seconds: float = 0.0  # how long a step was before they did; 0: not known


_PACE = msgspec.msgpack.Decoder(NodePace)
encode_pace = msgpack_of


def believed_paces(sealed: Mapping[str, bytes], secret: bytes, key: Key) -> dict[str, NodePace]:
    """Return what may be compared: of each node what is signed, and no rank that several nodes claim."""
    found = {}
    for node in sorted(sealed):
        try:
            pace = _PACE.decode(unseal(sealed[node], secret, "pace", key, node))
        except (SealBroken, msgspec.MsgspecError):
            continue
        if _is_whole(pace, MOST_BLOCKS) and (pace.earlier is None or _is_whole(pace.earlier, MOST_EARLIER)):
            found[node] = pace
    claims = Counter(rank.rank for pace in found.values() for rank in pace.ranks)
    own = {node: {rank.rank for rank in pace.ranks if claims[rank.rank] == 1} for node, pace in found.items()}
    return {node: _of_ranks(pace, own[node]) for node, pace in found.items()}


def _of_ranks(pace: NodePace, ranks: Set[int]) -> NodePace:
    return msgspec.structs.replace(
        pace,
        ranks=tuple(rank for rank in pace.ranks if rank.rank in ranks),
        earlier=None if pace.earlier is None else _of_ranks(pace.earlier, ranks),
    )


def _is_whole(pace: NodePace, most_blocks: int) -> bool:
    """Whether what was written by another is of the form that is reckoned with here."""
    lengths = {len(pace.ticks), *(len(rank.waited) for rank in pace.ranks)}
    is_power = 0 < pace.steps <= 1 << 20 and pace.steps & (pace.steps - 1) == 0
    few = len(pace.ranks) <= _MOST_RANKS and len(pace.ticks) <= most_blocks
    if not (len(lengths) == 1 and is_power and pace.first >= 0 and few and min(pace.ticks, default=0) >= 0):
        return False
    counts = [abs(count) for rank in pace.ranks for count in rank.role]  # of a group that is new torch says -1
    within = all(0 <= waited <= most for one in pace.ranks for waited, most in zip(one.waited, pace.ticks, strict=True))
    if pace.lasted_ms and len(pace.lasted_ms) != len(pace.ticks):
        return False
    numbers = all(0 <= number < _LARGEST for number in (pace.step_seconds, *counts, *pace.lasted_ms))  # NaN is neither
    return within and numbers and all(rank.rank >= 0 for rank in pace.ranks)


def judge_pace(paces: Mapping[str, NodePace], minimum_share: float, before: PaceVerdict) -> PaceVerdict:
    """Given what each node says, and the verdict before, return who holds the job back now."""
    beside = _side_by_side(paces)
    least = max(
        (one for peers in _peers(beside) for one in [_least(peers, minimum_share)] if one is not None),
        key=lambda one: one.nats,
        default=None,
    )
    of_nodes, of_ranks = len(beside), sum(len(pace.ranks) for pace in beside.values())
    if least is None:
        return msgspec.structs.replace(_without(before), of_nodes=of_nodes, of_ranks=of_ranks)
    return _verdict(least, beside, before, of_nodes, of_ranks)


def _without(before: PaceVerdict) -> PaceVerdict:
    """What is left of the verdict before where nobody is found now."""
    quiet = before.quiet + 1
    if before.ranks and quiet < _QUIET:
        return msgspec.structs.replace(before, quiet=quiet)
    if before.waited_for and quiet < _FORGETS:
        return PaceVerdict(quiet=quiet, waited_for=before.waited_for, before_seconds=before.before_seconds)
    return PaceVerdict()


def _verdict(
    least: Least, beside: Mapping[str, NodePace], before: PaceVerdict, of_nodes: int, of_ranks: int
) -> PaceVerdict:
    peers = next(one for one in _peers(beside) if set(least.ranks) <= {rank for rank, _ in one})
    same = before.ranks == least.ranks
    told = same and before.stage == "confirmed"
    looks, known = _looks(beside), before.before_seconds if before.waited_for == least.ranks else 0.0
    before_seconds = known or seconds_before(looks, peers, least.ranks, least.looks) or _long_before(beside, least)
    if not told and _costs_nothing(looks, peers, least.ranks, before_seconds):
        return PaceVerdict(
            (), of_nodes=of_nodes, of_ranks=of_ranks, waited_for=least.ranks, before_seconds=before_seconds
        )
    nodes = tuple(node for node, pace in beside.items() if {rank.rank for rank in pace.ranks} & set(least.ranks))
    step_seconds = median(pace.step_seconds for pace in beside.values())
    steps = next(iter(beside.values())).steps
    share, error = difference(_last(peers, least.looks), least.ranks)
    seconds = least.looks * steps * step_seconds
    slowness = slow_cost(looks, peers, least.ranks, (), before_seconds)
    # Of nodes that do not say how long their blocks lasted, the records' last steps have to do.
    slowness = slowness or cost(share, error, step_seconds, least.looks * steps, seconds)
    began_seen = all(pace.since_step <= FIRST_STEPS for pace in beside.values())
    from_start = before.from_start if same else began_seen and _was_always(peers, least, next(iter(beside.values())))
    if slowness is not None and not before_seconds:
        slowness = msgspec.structs.replace(slowness, at_most=True)
    whole = all(len(beside[node].ranks) == sum(r.rank in least.ranks for r in beside[node].ranks) for node in nodes)
    where = f"{'all ranks of ' if whole and len(least.ranks) > 1 else ''}{', '.join(nodes[:4])}"
    whose = f"the others, {of_ranks - len(least.ranks)} ranks of {of_nodes} nodes,"
    since = f" ({where}){' since the first steps' if from_start else ''}"
    confirmed = told or (same and least.nats >= CONFIRM_NATS)
    lead = cost_lead(slowness)
    reason = SlowReason(held_back(least, since, whose), lead)
    return PaceVerdict(
        ranks=least.ranks,
        nodes=nodes,
        stage="confirmed" if confirmed else "suspect",
        reason=reason.told(slowness),
        without_cost=reason.told(None),
        slowness=slowness,
        from_start=from_start,
        seconds=max(seconds, before.seconds) if same else seconds,
        of_nodes=of_nodes,
        of_ranks=of_ranks,
        waited_for=least.ranks,
        before_seconds=before_seconds,
    )


def _costs_nothing(
    looks: Looks, peers: Sequence[tuple[int, Column]], ranks: Sequence[int], before_seconds: float
) -> bool:
    """Also where only the later half of the time says so: who stays late stood once, when it began."""
    since = since_when(differences(peers, ranks), LEAST_LOOKS)
    # A block begins up to a look later than it is seen to, and few tell how long a step was before.
    unsure_seconds = LOOK_NS / SECOND_NS / max(looks.steps_within(LEAST_LOOKS), 1)
    return any(
        costs_nothing(looks, _last(peers, window), ranks, (), before_seconds, unsure_seconds)
        for window in (since, max(LEAST_LOOKS, since // 2))
    )


def _long_before(beside: Mapping[str, NodePace], least: Least) -> float:
    """`seconds_before` by more blocks, of some nodes: that some ranks are waited for may show only when few blocks are
    left of the time before."""
    waited_for = [node for node, pace in beside.items() if {rank.rank for rank in pace.ranks} & set(least.ranks)]
    some = list(dict.fromkeys([*waited_for, *beside]))[: len(waited_for) + _ASKED]
    earlier = _side_by_side({node: pace.earlier for node in some if (pace := beside[node]).earlier is not None})
    peers = next((one for one in _peers(earlier) if set(least.ranks) <= {rank for rank, _ in one}), None)
    return 0.0 if peers is None else seconds_before(_looks(earlier), peers, least.ranks, least.looks)


def _looks(beside: Mapping[str, NodePace]) -> Looks:
    """How long steps took, block by block, as looks of one node say it: of one that saw most of them, and whose time
    for all is that of most. (A mean of several would not add up: each begins a block up to a look later.)"""
    first = next(iter(beside.values()))
    each = sorted(
        (pace.lasted_ms for pace in beside.values()), key=lambda lasted: (sum(map(bool, lasted)), sum(lasted))
    )
    most = [lasted for lasted in each if sum(map(bool, lasted)) == sum(map(bool, each[-1]))]
    at_ns, looks = 0, []
    for place, lasted_ms in enumerate(most[len(most) // 2] or (0,) * len(first.ticks)):
        ticks = lasted_ms * 1_000_000 // LOOK_NS + 1
        looks.append(StepLook(at_ns, ticks, (), (), steps=(place * first.steps,), apart_ns=_APART_NS))
        at_ns += lasted_ms * 1_000_000 or (ticks + MISSED_LOOKS + 1) * LOOK_NS
    return Looks(looks=tuple(looks), count=len(looks), nccl=first.nccl)


def _was_always(peers: Sequence[tuple[int, Column]], least: Least, pace: NodePace) -> bool:
    earlier = [(rank, column[: -least.looks]) for rank, column in peers]
    so = was_so(earlier, least)
    return so if so is not None else pace.first * pace.steps <= FIRST_STEPS + pace.steps


def _least(peers: Sequence[tuple[int, Column]], minimum_share: float) -> Least | None:
    """Who waits least in the window that tells it best, unless such differences come and go in this job."""
    blocks, columns = len(peers[0][1]) if peers else 0, Peers(peers)
    found = []
    for window in _WINDOWS:
        if window <= blocks:
            before = partial(_before, peers, window)
            least = who_waits_least(columns, window, minimum_share, before, at_most=_MOST_SLOW)
            if least is not None and not is_usual(peers, least.ranks, window, least.peers_share - least.share):
                found.append(least)
    return max(found, key=lambda one: one.nats, default=None)


def _last(peers: Sequence[tuple[int, Column]], window: int) -> list[tuple[int, Column]]:
    return [(rank, column[-window:]) for rank, column in peers]


def _before(peers: Sequence[tuple[int, Column]], window: int) -> list[tuple[int, Column]]:
    return [(rank, column[-2 * window : -window]) for rank, column in peers]


def _peers(beside: Mapping[str, NodePace]) -> list[list[tuple[int, Column]]]:
    """(rank, column) of those that run one program, where there are enough of them and on several nodes."""
    columns = {
        rank.rank: tuple(zip(pace.ticks, rank.waited, strict=True)) for pace in beside.values() for rank in pace.ranks
    }
    node_of = {rank.rank: node for node, pace in beside.items() for rank in pace.ranks}
    members = [
        PeerRank(rank.rank, 0, tuple(int(one * _COUNTS) for one in rank.role))
        for pace in beside.values()
        for rank in pace.ranks
    ]
    groups = [[member.rank for member in peers] for peers in peers_of(members)]
    return [
        [(rank, columns[rank]) for rank in sorted(ranks)]
        for ranks in groups
        if len(ranks) >= _LEAST_RANKS and len({node_of[rank] for rank in ranks}) >= _LEAST_NODES
    ]


def _side_by_side(paces: Mapping[str, NodePace]) -> dict[str, NodePace]:
    """Lay the nodes' blocks beside each other: blocks of as many steps, the same numbers, each seen by all; who is not
    where most are is left out."""
    known = {node: pace for node, pace in paces.items() if pace.ranks and pace.ticks}
    if len(known) < _LEAST_NODES:
        return {}
    usual = median_low(pace.steps for pace in known.values())
    nccl = 2 * sum(pace.nccl for pace in known.values()) > len(known)
    known = {node: pace for node, pace in known.items() if pace.steps <= 4 * usual and pace.nccl == nccl}
    steps = max(pace.steps for pace in known.values())
    known = {node: _in_blocks(pace, steps) for node, pace in known.items()}
    seen = Counter(pace.first + place for pace in known.values() for place, ticks in enumerate(pace.ticks) if ticks)
    common = {block for block, times in seen.items() if times >= _COVERED * len(known)}
    covered = {}
    for node, pace in known.items():
        own = {pace.first + place for place, ticks in enumerate(pace.ticks) if ticks}
        if common and len(own & common) >= _COVERED * len(common):
            covered[node] = pace, own
    blocks = sorted(common.intersection(*(own for _, own in covered.values()))) if covered else []
    if len(blocks) < LEAST_LOOKS or len(covered) < _LEAST_NODES:
        return {}
    return {node: _only(pace, blocks) for node, (pace, _) in covered.items()}


def _in_blocks(pace: NodePace, steps: int) -> NodePace:
    """The same in blocks of more steps; what does not fill one is left out."""
    if steps == pace.steps:
        return pace
    each = steps // pace.steps
    first = -(-pace.first // each)
    begin = first * each - pace.first
    starts = range(begin, len(pace.ticks) - each + 1, each)
    return msgspec.structs.replace(
        pace,
        steps=steps,
        first=first,
        ticks=tuple(sum(pace.ticks[at : at + each]) for at in starts),
        lasted_ms=tuple(sum(parts) if all(parts) else 0 for at in starts if (parts := pace.lasted_ms[at : at + each])),
        ranks=tuple(
            msgspec.structs.replace(rank, waited=tuple(sum(rank.waited[at : at + each]) for at in starts))
            for rank in pace.ranks
        ),
    )


def _only(pace: NodePace, blocks: Sequence[int]) -> NodePace:
    places = [block - pace.first for block in blocks]
    return msgspec.structs.replace(
        pace,
        first=blocks[0],
        ticks=tuple(pace.ticks[place] for place in places),
        # Until the next block's first look: that one must be there, too.
        lasted_ms=tuple(
            lasted if after == place + 1 else 0
            for place, after in pairwise([*places, places[-1] + 1])
            if pace.lasted_ms
            for lasted in [pace.lasted_ms[place]]
        ),
        ranks=tuple(
            msgspec.structs.replace(rank, waited=tuple(rank.waited[place] for place in places)) for rank in pace.ranks
        ),
    )
