"""For how many looks one draw stands."""

import random

import pytest

from stallwatch.config import Config
from stallwatch.detectors.spells import looks_of_a_draw
from stallwatch.replay.playing import detect
from tests.bench.bench_stragglers import calm_job
from tests.replay.stragglers import play


@pytest.mark.parametrize("less", [[], [0.4] * 20, [0.4, 0.3, 0.5, 0.45] * 5, [0.4, 0.0] * 10])
def test_what_shows_at_every_look_or_at_every_other_has_no_spells(less: list[float]) -> None:
    assert looks_of_a_draw(less) == 1.0
    assert looks_of_a_draw([0.0] * len(less)) == 1.0


def test_three_spells_of_five_looks_are_few_draws() -> None:
    spells = ([0.0] * 15 + [0.3, 0.9, 1.0, 0.9, 0.4]) * 3
    assert looks_of_a_draw(spells) > 3.0


def test_what_was_before_a_rank_became_slow_is_no_gap_between_spells() -> None:
    assert looks_of_a_draw([0.0, 0.02, 0.0] + [0.5, 0.4] * 6) == 1.0
    assert looks_of_a_draw([0.5, 0.4] * 6 + [0.0, 0.02, 0.0] * 3) > 2.0


def test_a_step_in_progress_in_which_nobody_waits_yet_is_no_gap() -> None:
    assert looks_of_a_draw([0.5, 0.4] * 6 + [0.0]) == 1.0
    assert looks_of_a_draw(([0.5] * 5 + [0.0] * 5) * 3 + [0.5] * 5 + [0.0]) > 2.0, "spells before are"


def test_independent_looks_are_a_draw_each_but_for_chance() -> None:
    draw = random.Random(5)
    factors = [looks_of_a_draw([float(draw.random() < 0.3) for _ in range(60)]) for _ in range(200)]
    assert sum(factors) / len(factors) < 1.3


@pytest.mark.parametrize("seed", [101462, 102230])
def test_a_host_that_runs_ahead_and_falls_behind_for_a_while_is_no_slow_rank(seed: int) -> None:
    """Three whiles of some steps each, by sequences that chance made long (seed 101462) and by an evaluation: each look
    of them counted as if it stood alone."""
    _, job = calm_job(seed)
    found = [f for _, detected in detect(Config(), play(job, 45, seed)) for f in detected.findings]
    assert not [finding for finding in found if (finding.detector, finding.stage) == ("slow", "confirmed")]


@pytest.mark.parametrize(
    ("less", "looks"),
    [
        # 6 of 11 looks in two spells: the twelfth is of a step in progress.
        ([1.0, 1.0, 1.0, 0.0, 0.0, 0.0] * 2, 2 * (6 * 6 / 11 + 1) / (2 + 1) - 1),
        ([0.0] * 9 + [1.0, 1.0, 1.0, 0.0, 0.0, 0.0] * 2, 2 * (6 * 6 / 11 + 1) / (2 + 1) - 1),  # it began there
        ([1.0, 0.3, 0.3, 0.0, 0.0] * 2, 2 * (6 * 4 / 9 + 1) / (2 + 1) - 1),  # 0.3 is more than half of the mean
        ([1.0, 0.1, 0.1, 0.0, 0.0] * 2, 1.0),  # 0.1 is not
        ([1.0] * 8 + [0.0] * 8, 2 * (8 * 8 / 15 + 1) / (1 + 1) - 1),
    ],
)
def test_the_number_of_runs_says_how_long_they_are(less: list[float], looks: float) -> None:
    assert looks_of_a_draw(less) == pytest.approx(looks)
