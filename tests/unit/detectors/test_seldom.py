"""What a rank does now and then, as rank 0 evaluates or saves, makes no slow rank of it."""

import random

import pytest

from stallwatch.detectors.seldom import is_seldom
from tests.replay.stragglers import Backend, Design, Job
from tests.unit.detectors.test_wandering import confirmed

LOOKS = 200
CALM = [0.01] * LOOKS


def seen(every: int, steps_of_a_long_one: float = 1.0) -> tuple[list[float], list[float]]:
    """By how much less a rank waits at each look, and for how many steps each stands: one of `every` is a long step."""
    long = [place % every == 0 for place in range(LOOKS)]
    return [float(one) for one in long], [steps_of_a_long_one if one else 1.25 for one in long]


def test_one_long_step_of_thirty_is_seldom_and_one_of_seven_is_not() -> None:
    assert is_seldom(*seen(every=32), CALM)
    assert not is_seldom(*seen(every=6), CALM)
    assert not is_seldom(*seen(every=6), new=True), "of two ranks nothing but its own jitter says what chance makes"


def test_what_jitter_makes_of_the_rest_is_no_slow_rank_though_it_is_asked_for_days() -> None:
    draw = random.Random(16)
    for _ in range(500):
        long = [draw.random() < 0.08 for _ in range(LOOKS)]
        less = [1.0 if one else draw.choice((-0.3, 0.0, 0.0, 0.3)) for one in long]
        assert is_seldom(less, [1.0 if one else 4.0 for one in long], [0.045] * LOOKS)


def test_a_long_step_is_one_however_many_looks_see_it() -> None:
    less, _ = seen(every=4)
    assert is_seldom(less, [0.1 if one else 5.0 for one in less], CALM), "fifty looks at five steps of a thousand"
    assert not is_seldom(less, [1.0] * LOOKS), "fifty steps of two hundred"


def test_all_steps_that_are_a_little_longer_are_no_few_long_ones() -> None:
    assert not is_seldom([0.2] * 8, [1.0] * 8)
    assert not is_seldom([0.2] * LOOKS, [0.9 + 0.2 * (place % 2) for place in range(LOOKS)])


def test_a_host_that_makes_up_for_a_long_step_adds_nothing() -> None:
    less, steps = seen(every=32)
    less[1], steps[1] = 1.0, 9.0
    assert is_seldom(less, steps)


def test_where_no_record_says_how_long_steps_took_nothing_is_said() -> None:
    less, _ = seen(every=32)
    assert not is_seldom(less, [0.0] * LOOKS)
    assert not is_seldom([], [])


@pytest.mark.parametrize(
    ("design", "backend", "step_scale", "ranks", "seed"),
    [
        ("saves", "nccl ahead", 0.25, 4, 7027),
        ("evaluates", "nccl ahead", 0.25, 8, 7038),
        ("evaluates", "nccl ahead", 1.0, 4, 200119),
    ],
)
def test_a_rank_that_evaluates_or_saves_now_and_then_is_no_slow_rank(
    design: Design, backend: Backend, step_scale: float, ranks: int, seed: int
) -> None:
    job = Job("nothing", ranks, 0.0, 0, 0.0, backend, step_scale=step_scale, design=design, jitter=0.1)
    assert not confirmed(job, 120, seed)


def test_a_loader_whose_every_tenth_batch_is_late_makes_a_slow_rank() -> None:
    assert confirmed(Job("data loader", 4, 0.3, 1, 20.0, step_scale=0.25), 100, 1) == {(1,)}


def test_with_much_jitter_somebody_comes_last_in_every_step_and_that_is_no_state_of_rank_0() -> None:
    job = Job(
        "nothing", 8, 0.0, 0, 0.0, "nccl ahead", step_scale=0.25, design="evaluates", jitter=0.6, design_seed=400093
    )
    assert not confirmed(job, 160, 400093)
