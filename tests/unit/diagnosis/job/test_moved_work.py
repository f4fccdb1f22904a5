import random

import pytest

from stallwatch.diagnosis.job.pace import Met, Of, at_best, eased_ns, in_the_middle

_MS = 1_000_000
_STEP = 200 * _MS


def eased(
    change: dict[int, int],
    steps: int = 60,
    since: int = 30,
    jitter: int = 5 * _MS,
    crowd: tuple[int, int] = (0, 0),
    of: Of = in_the_middle,
) -> float:
    """Of four ranks, whose work in the first of two calls of a step changes by so much for the last `since` steps: as
    the analysis sees rank 2 come late since then. `crowd`: for how long each waits for a CPU in four steps of five,
    before and since."""
    draw, began, found, since_ns = random.Random(3), _STEP, [], 0
    for step in range(steps):
        more = change if step >= steps - since else {}
        since_ns = began if step == steps - since else since_ns
        seldom = (("clock", _STEP // 50),) if step % 10 == 0 else ()
        for kind, long in (("gradients", _STEP), ("loss", _STEP // 10), *seldom):
            changed = more if kind == "gradients" else {}
            waits = [crowd[bool(more)] * (kind == "gradients" and draw.random() < 0.8) for _ in range(4)]
            at = {r: began + long + changed.get(r, 0) + waits[r] + int(draw.gauss(0, jitter)) for r in range(4)}
            found.append(Met(kind, at))
            began = max(at.values())
    return eased_ns(found, (2,), since_ns, since, of)


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


@pytest.mark.parametrize("of", [in_the_middle, at_best])
@pytest.mark.parametrize(("steps", "since"), [(22, 11), (60, 11), (60, 49)])
def test_what_may_be_chance_has_not_moved(of: Of, steps: int, since: int) -> None:
    lost = -12 * _MS
    assert eased({2: 60 * _MS, 0: lost, 1: lost, 3: lost}, steps, since, jitter=60 * _MS, of=of) == 0.0


@pytest.mark.parametrize("draw", range(20))
def test_few_and_many_are_compared_by_the_same_part_of_them(draw: int) -> None:
    """The least of a hundred is less than the least of ten, whatever has moved."""
    many, few = (_jittered(random.Random(f"{draw} {count}"), count) for count in (200, 10))
    (now, error), (then, of_then) = at_best(many, len(few)), at_best(few, len(few))
    assert abs(now - then) < 3 * (error + of_then)
    assert of_then > _MS


def _jittered(draw: random.Random, count: int) -> list[int]:
    return [_STEP + int(draw.gauss(0, 10 * _MS)) for _ in range(count)]


def test_without_calls_of_before_nothing_is_known_to_have_moved() -> None:
    moved = {2: 60 * _MS, 0: -20 * _MS, 1: -20 * _MS, 3: -20 * _MS}
    assert eased(moved, steps=30, since=30) == 0.0
    assert eased(moved, steps=36, since=30) == 0.0


@pytest.mark.parametrize(
    ("others", "crowd", "by_the_middle", "by_the_quickest"),
    [
        (0, (40, 0), True, False),
        (-20, (40, 40), True, True),
        (-20, (0, 40), False, True),
        (0, (40, 40), False, False),
    ],
    ids=["a crowd that has ended", "work moves in a crowd", "and when it comes", "slow in a crowd"],
)
def test_the_steps_in_which_least_was_in_the_way_know_nothing_of_a_crowd(
    others: int, crowd: tuple[int, int], by_the_middle: bool, by_the_quickest: bool
) -> None:
    change = {2: 60 * _MS, **dict.fromkeys((0, 1, 3), others * _MS)}
    waits = (crowd[0] * _MS, crowd[1] * _MS)
    assert (eased(change, steps=120, since=60, crowd=waits) > 0) == by_the_middle
    assert (eased(change, steps=120, since=60, crowd=waits, of=at_best) > 0) == by_the_quickest


@pytest.mark.parametrize("draw", range(4))
def test_who_is_late_in_most_steps_has_more_to_do_though_not_in_its_quickest(draw: int) -> None:
    """60 ms more in 85 steps of 100, in a crowd; the seven others have 2 ms of 200 less, as crowds ebb."""
    by_chance, began, calls, since_ns = random.Random(draw), _STEP, [], 0
    for step in range(160):
        is_since = step >= 80
        since_ns = began if step == 80 else since_ns
        own = [_STEP + int(abs(by_chance.gauss(0, 5 * _MS))) for _ in range(8)]
        own = [one + 30 * _MS * (by_chance.random() < 0.6) for one in own]
        more = [60 * _MS * (by_chance.random() < 0.85) if rank == 2 else -2 * _MS for rank in range(8)]
        at = {rank: began + one + is_since * more[rank] for rank, one in enumerate(own)}
        calls.append(Met("gradients", at))
        began = max(at.values())
    assert eased_ns(calls, (2,), since_ns, 80, at_best) == 0.0
