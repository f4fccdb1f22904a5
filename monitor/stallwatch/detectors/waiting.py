"""Who waits least: in synchronous training the rank that others wait for, and that itself hardly ever waits.

Each look says whether a rank stands in a collective (enqueued and not completed). One look counts per movement of the
job, the last before it: looks within one long wait are one observation, however long it lasts.
"""

import math
from collections.abc import Sequence

import msgspec

# Looks; a large effect shows in few, a small one needs many: +10 % of a step some eight minutes of 1 Hz pulses.
WINDOWS = (12, 24, 48, 96, 192, 384, 768)
# Evidence in nats: the log likelihood ratio of "it waits less" to "all wait alike". A thousand job-hours make some 10^7
# tests (ranks × windows × looks, most of them of the same looks), so chance must be rarer than e^-16.
SUSPECT_NATS = 10.0
CONFIRM_NATS = 16.0
_LIKE_OTHERS = 0.6  # the second least must wait nearly as the others do, or it is a spread by design (experts)
_BLOCKS = 4  # the effect must be there in each part of the window: what came and went is no state


class Least(msgspec.Struct, frozen=True):
    """The one rank for which the others wait."""

    rank: int
    nats: float
    looks: int
    share: float  # of its looks in which it stood in a collective
    peers_share: float


def who_waits_least(looks: Sequence[tuple[int, tuple[bool, ...]]], minimum_share: float) -> Least | None:
    """Given (rank, looks oldest first) of peers, return the one that waits least, by the most telling window."""
    best: Least | None = None
    shortest = min((len(mine) for _, mine in looks), default=0)
    for window in WINDOWS:
        if window > shortest or len(looks) < 2:
            break
        found = _least(looks, window, minimum_share)
        if found is not None and (best is None or found.nats > best.nats):
            best = found
    return best


def _least(looks: Sequence[tuple[int, tuple[bool, ...]]], window: int, minimum_share: float) -> Least | None:
    shares = sorted((sum(mine[-window:]) / window, rank) for rank, mine in looks)
    (least, rank), peers = shares[0], [share for share, _ in shares[1:]]
    typical = peers[len(peers) // 2]
    # Of two, either may be the one by design: the effect must be beyond what a design makes.
    needed = minimum_share if len(peers) > 1 else max(minimum_share, 0.3)
    if typical - least < needed or peers[0] - least < _LIKE_OTHERS * (typical - least):
        return None
    nats = _evidence(least, sum(peers) / len(peers), window, window * len(peers))
    if nats < SUSPECT_NATS or not _lasts(dict(looks)[rank], [m for r, m in looks if r != rank], window):
        return None
    return Least(rank, nats, window, least, typical)


def _lasts(mine: tuple[bool, ...], others: Sequence[tuple[bool, ...]], window: int) -> bool:
    size = window // _BLOCKS
    for block in range(_BLOCKS):
        begin, end = -window + block * size, -window + (block + 1) * size or None
        waited = sorted(sum(other[begin:end]) for other in others)
        if sum(mine[begin:end]) >= waited[len(waited) // 2]:
            return False
    return True


def _evidence(share: float, peers_share: float, looks: int, peers_looks: int) -> float:
    together = (share * looks + peers_share * peers_looks) / (looks + peers_looks)
    return looks * divergence(share, together) + peers_looks * divergence(peers_share, together)


def divergence(share: float, typical: float) -> float:
    """Return the Kullback-Leibler divergence of two Bernoulli shares, in nats."""
    p, q = min(max(share, 1e-9), 1 - 1e-9), min(max(typical, 0.01), 0.99)
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
