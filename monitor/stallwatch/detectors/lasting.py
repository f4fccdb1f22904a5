"""Whether what windows of looks show of some ranks is a state of theirs: it lasts, it goes on, it is not what this job
does by design, or does now and then; and whether it has been so since the first steps."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat

from stallwatch.clock import SECOND_NS
from stallwatch.detectors.counter_samples import PeerRank
from stallwatch.detectors.looks import Looks, peers_of
from stallwatch.detectors.seldom import is_seldom
from stallwatch.detectors.slow_cost import since_when
from stallwatch.detectors.waiting import (
    LEAST_LOOKS,
    SPAN_NS,
    Column,
    Least,
    difference,
    differences,
    leads_of_look,
    was_so,
)
from stallwatch.detectors.wandering import is_new, is_usual

# That it lasts and that it is over takes so long at least: a large difference is seen in seconds, by chance too, and a
# neighbour's burst or an expert's turn passes.
LASTS_NS = 20 * SECOND_NS
# … or less, when it has cost as much as +30 % does in that time, and the job was seen without it for several times as
# long: what comes by design has come before.
_COSTS_NS = 5 * SECOND_NS
_SOON_NS = 8 * SECOND_NS
_WHILES = 3
_GOES_ON = 0.5  # of the difference, in the last seconds
# It is over when what is left is surely less than this part of what was found, for as long as it took to find it.
_LEFT = 0.34
_SURELY = 1.5  # standard errors: of short steps a look sees one of five, and twenty seconds of them say little
_LEFT_BY_CHANCE = 0.5  # or than this part, where nothing is surely left: where steps vary much a third is within chance
FIRST_STEPS = 32  # a daemon that came later does not know how the job began
_EARLIER_LOOKS = 16  # say whether it was so before
_FEWEST = 2  # to compare: of hosts that run ahead one may step alone for seconds, while the others stand
_MANY_STEPS = 1500  # of them one of twenty is told from one of ten, with some to spare


def peers_with(looks: Looks, ranks: Sequence[int]) -> Sequence[PeerRank]:
    """Those of one program of which these ranks are."""
    return next((peers for peers in peers_of(looks.members) if any(peer.rank in ranks for peer in peers)), [])


def columns_with(looks: Looks, ranks: Sequence[int], window: int) -> list[tuple[int, Column]]:
    """(rank, column) of these ranks and their peers, of the last looks."""
    return looks.columns_of(peers_with(looks, ranks), window)


def has_lasted(looks: Looks, least: Least, lasts_ns: int) -> bool:
    """Whether it is a state of these ranks: by its time, or, of one that began, by what it has cost."""
    if lasts_ns >= LASTS_NS:
        return True
    less = least.peers_share - least.share
    if lasts_ns < _SOON_NS or less * lasts_ns < _COSTS_NS:
        return False
    columns = looks.columns_of(peers_with(looks, least.ranks), len(looks.looks), surely=looks.nccl)
    if len(columns) < _FEWEST:
        return False
    since = since_when(differences(columns, least.ranks))
    before_ns = looks.since_ns(since) - looks.looks[0].at_ns
    return before_ns >= _WHILES * lasts_ns and is_new([column[:-since] for _, column in columns], since, less)


def goes_on(looks: Looks, least: Least) -> bool:
    """Whether the last seconds show it too: a long window says what it said until a part of it is new."""
    lately = max(LEAST_LOOKS, looks.within(SPAN_NS))
    left, _ = difference(columns_with(looks, least.ranks, lately), least.ranks)
    return left >= _GOES_ON * (least.peers_share - least.share)


def is_over(left: float, error: float, found: float, least: float) -> bool:
    """Given by which share of the time ranks wait less than the others now, by as many looks as it took to find them
    slow, with its standard error, return whether they are so no more. `found`: what it was then; `least`: less is no
    slowness."""
    most, unsure = left + _SURELY * error, _SURELY * error
    return most < max(_LEFT * found, least) or (left <= unsure and most < _LEFT_BY_CHANCE * found)


def is_by_design(looks: Looks, least: Least) -> bool:
    """Whether such differences come and go in this job, or a few long steps make this one; or these ranks have not
    stepped lately while others did (torch's Join shadows them), and nobody is left to compare them with."""
    # Under NCCL the counts' distances are learned first: what they made of early looks is no habit of the job.
    columns = looks.columns_of(peers_with(looks, least.ranks), len(looks.looks), surely=looks.nccl)
    if len(columns) < _FEWEST:
        return True
    lately = [(rank, column[-least.looks :]) for rank, column in columns]
    mine = [member for member in looks.members if member.rank in least.ranks]
    earlier, less = [column[: -least.looks] for _, column in columns], least.peers_share - least.share
    new = len(earlier[0]) >= _WHILES * least.looks and is_new(earlier, least.looks, less)
    # The cheaper question first: it is asked at each tick of a job whose rank 0 evaluates.
    beyond, chance = _beyond_chance(lately, least.ranks)
    return (
        is_seldom(beyond, _steps_of(looks, mine, least.looks), chance, new=new)
        or _is_seldom_of_many(looks, mine, beyond, chance, new=new)
        or is_usual(columns, least.ranks, least.looks, less)
    )


def _is_seldom_of_many(
    looks: Looks, mine: Sequence[PeerRank], beyond: Sequence[float], chance: Sequence[float], *, new: bool
) -> bool:
    """The same where hosts are in step with what they enqueue and enough steps were seen to tell how many were long: a
    long step is no reason then to leave out those after it, which where steps vary much takes the place of others."""
    if looks.nccl:
        return False
    steps = _steps_of(looks, mine, len(beyond), itself=True)
    return sum(steps) >= _MANY_STEPS and is_seldom(beyond, steps, chance, new=new)


def _steps_of(looks: Looks, mine: Sequence[PeerRank], window: int, *, itself: bool = False) -> list[float]:
    return list(map(min, zip(*(looks.steps_seen(member, window, itself=itself) for member in mine), strict=True)))


def is_from_start(looks: Looks, first_mark: int, least: Least) -> bool:
    """Whether these ranks have been slow in all looks, and these since the job's first steps (`first_mark`: the step,
    or count, of its first look)."""
    if first_mark > FIRST_STEPS:
        return False
    earlier = len(looks.looks) - least.looks
    columns = [(rank, column[:earlier]) for rank, column in columns_with(looks, least.ranks, len(looks.looks))]
    so = was_so(columns, least)
    return looks.count - least.looks < _EARLIER_LOOKS if so is None else so


def _beyond_chance(columns: Sequence[tuple[int, Column]], ranks: Sequence[int]) -> tuple[list[float], list[float]]:
    """Look by look, by how much less these wait than others do in their turn: somebody comes last in every step; and
    the variance of what others do, empty where it is only one."""
    places = tuple([place for place, (rank, _) in enumerate(columns) if rank not in ranks])
    looks = zip(*(column for _, column in columns), strict=True)
    chance = list(map(_by_chance, looks, repeat(places)))
    beyond = [less - middle for less, (middle, _) in zip(differences(columns, ranks), chance, strict=True)]
    return beyond, [variance for _, variance in chance] if len(places) > 1 else []


@lru_cache(maxsize=4096)  # as of the leads
def _by_chance(look: tuple[tuple[int, int], ...], places: tuple[int, ...]) -> tuple[float, float]:
    """Mean and variance of the leads of those in these places."""
    leads = leads_of_look(look)
    values = [leads[place] for place in places]
    middle = sum(values) / len(values)
    return middle, sum([(value - middle) ** 2 for value in values]) / max(1, len(values) - 1)
