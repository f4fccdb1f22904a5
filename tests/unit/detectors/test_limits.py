import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwatch.clock import SECOND_NS
from stallwatch.detectors.limits import Times, learn, limit_of


def of(*seconds: float) -> Times:
    return learn(Times(), tuple(int(s * SECOND_NS) for s in seconds))


def limit(times: Times) -> float:
    found = limit_of(times, "the step", 5.0)
    assert found is not None
    return found.seconds


def test_nothing_is_learned_from_few_steps() -> None:
    assert limit_of(of(0.1, 0.1, 0.1), "the step", 5.0) is None


def test_short_steps_get_the_floor_and_say_so() -> None:
    found = limit_of(of(*[0.05] * 20), "the step", 5.0)
    assert found is not None
    assert found.seconds == 5.0
    assert "floor" in found.reason
    assert "0.05" in found.reason


def test_steps_of_five_seconds_are_looked_at_after_two_and_a_half_of_them() -> None:
    assert limit(of(*[5.0] * 20)) == 12.5


def test_steps_of_a_minute_need_no_two_minutes() -> None:
    assert limit(of(*[60.0] * 20)) == 95.0


def test_one_outlier_does_not_move_the_limit_whatever_its_size_and_place() -> None:
    for place in range(7):
        values = [0.5] * 7
        values[place] = 3600.0
        assert limit(of(*values)) == 5.0


def test_a_long_step_that_recurs_is_a_habit_but_blinds_for_a_minute_at_most() -> None:
    times = of(*[0.05] * 60)
    once = learn(times, (20 * SECOND_NS,))
    assert limit(once) == 5.0
    twice = learn(learn(once, (SECOND_NS // 20,) * 40), (20 * SECOND_NS,))
    assert limit(twice) == 40.0
    long = learn(learn(times, (300 * SECOND_NS,)), (300 * SECOND_NS,))
    assert limit(long) == 60.0


def more(times: Times, *seconds: float) -> Times:
    return learn(times, tuple(int(s * SECOND_NS) for s in seconds))


@pytest.mark.parametrize(("step", "seconds"), [(1.0, 5.0), (1.5, 6.0), (2.0, 8.0), (3.0, 9.5), (4.0, 11.0)])
def test_steps_of_seconds_get_four_of_them_until_half_as_much_again_and_some_seconds_are_less(
    step: float, seconds: float
) -> None:
    assert limit(of(*[step] * 6)) == seconds
    assert limit_of(of(*[step] * 5), "the step", 5.0) is None


def test_what_was_long_ago_is_forgotten() -> None:
    assert limit(of(*[1.5] * 8, *[0.1] * 120)) == 6.0, "a sixteenth of the last 128"
    assert limit(of(*[1.5] * 8, *[0.1] * 128)) == 5.0
    habits = more(of(*[0.1] * 110), 25, 25, *[10] * 7)
    assert limit(habits) == 20.0, "eight long ones are kept: of these 25 s are one"
    assert learn(habits, ()) == habits


def test_a_long_one_is_four_times_the_median_and_more() -> None:
    usual = of(1, 1, 1, 1, 3, 3, 3)
    assert more(usual, 4, 4).long == ()
    assert more(usual, 4.5, 4.5).long == (4_500_000_000,) * 2


def test_a_habit_that_is_shorter_than_most_steps_have_become_says_nothing() -> None:
    assert limit(Times((30 * SECOND_NS,) * 30, (5 * SECOND_NS,) * 2)) == 50.0


def test_a_quantile_is_one_of_the_values_by_its_rank() -> None:
    assert Times(tuple(range(1, 41))).quantile(0.95) == 38
    assert Times(tuple(range(1, 41))).quantile(0.5) == 20
    assert [Times(values).quantile(0.95) for values in ((7,), (1, 9), (1, 2, 9))] == [7, 1, 2]


@given(st.lists(st.integers(1, 10**12), min_size=2, max_size=60))
def test_a_high_quantile_of_few_is_never_the_largest_alone(values: list[int]) -> None:
    ordered = sorted(values)
    assert Times(tuple(values)).quantile(0.95) <= ordered[-2]


@given(st.lists(st.integers(1, 10**12), min_size=6, max_size=60), st.randoms())
def test_the_order_of_steps_does_not_matter_to_the_quantile(values: list[int], random: object) -> None:
    assert Times(tuple(values)).quantile(0.95) == Times(tuple(reversed(values))).quantile(0.95)
