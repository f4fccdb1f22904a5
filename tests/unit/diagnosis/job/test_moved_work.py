import random

import pytest

from stallwatch.diagnosis.job.pace import Met, eased_ns

_MS = 1_000_000
_STEP = 200 * _MS


def eased(change: dict[int, int], steps: int = 60, since: int = 30, jitter: int = 5 * _MS) -> float:
    """Of four ranks, whose work in the first of two calls of a step changes by so much for the last `since` steps: as
    the analysis sees rank 2 come late since then."""
    draw, began, found, since_ns = random.Random(3), _STEP, [], 0
    for step in range(steps):
        more = change if step >= steps - since else {}
        since_ns = began if step == steps - since else since_ns
        seldom = (("clock", _STEP // 50),) if step % 10 == 0 else ()
        for kind, long in (("gradients", _STEP), ("loss", _STEP // 10), *seldom):
            changed = more if kind == "gradients" else {}
            at = {r: began + long + changed.get(r, 0) + int(draw.gauss(0, jitter)) for r in range(4)}
            found.append(Met(kind, at))
            began = max(at.values())
    return eased_ns(found, (2,), since_ns, since)


def test_what_one_rank_gets_and_the_others_lose_has_moved() -> None:
    assert eased({2: 60 * _MS, 0: -20 * _MS, 1: -20 * _MS, 3: -20 * _MS}) == pytest.approx(60 * _MS, rel=0.2)


@pytest.mark.parametrize(
    "change",
    [
        {2: 60 * _MS},
        {2: 60 * _MS, 0: -3 * _MS, 1: -3 * _MS, 3: -3 * _MS},
        {2: 60 * _MS, 0: 5 * _MS, 1: 5 * _MS, 3: 5 * _MS},
    ],
    ids=["it alone", "who waits leaves them a CPU", "all have more"],
)
def test_what_only_adds_has_not_moved(change: dict[int, int]) -> None:
    assert eased(change) == 0.0


def test_what_may_be_chance_has_not_moved() -> None:
    lost = -12 * _MS
    assert eased({2: 60 * _MS, 0: lost, 1: lost, 3: lost}, steps=22, since=11, jitter=60 * _MS) == 0.0


def test_without_calls_of_before_nothing_is_known_to_have_moved() -> None:
    moved = {2: 60 * _MS, 0: -20 * _MS, 1: -20 * _MS, 3: -20 * _MS}
    assert eased(moved, steps=30, since=30) == 0.0
    assert eased(moved, steps=36, since=30) == 0.0
