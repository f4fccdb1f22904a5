import random

import pytest

from stallwatch.config import Config
from stallwatch.detectors.wandering import is_usual
from stallwatch.replay.playing import detect
from tests.replay.stragglers import Design, Job, play

Columns = list[tuple[int, tuple[tuple[int, int], ...]]]
_LOOKS = 120


def confirmed(job: Job, seconds: float, seed: int) -> set[tuple[int, ...]]:
    findings = [finding for _, found in detect(Config(), play(job, seconds, seed)) for finding in found.findings]
    return {finding.ranks for finding in findings if finding.detector == "slow" and finding.stage == "confirmed"}


@pytest.mark.parametrize(
    ("design", "rhythm_seconds", "seed"), [("experts", 15.0, 2), ("routed", 10.0, 1), ("wanders", 5.0, 0)]
)
def test_whose_load_is_drawn_anew_again_and_again_is_no_slow_rank(
    design: Design, rhythm_seconds: float, seed: int
) -> None:
    job = Job("nothing", 4, 0.0, 0, 0.0, design=design, design_seed=seed, rhythm_seconds=rhythm_seconds)
    assert not confirmed(job, 150, seed)


def test_a_rank_that_becomes_slow_in_such_a_job_is_found() -> None:
    job = Job("sleep", 4, 0.6, 1, 60.0, design="experts", design_seed=1, spread=0.3, rhythm_seconds=5.0)
    assert confirmed(job, 110, 1) == {(1,)}


def drawn(anew_after: int) -> Columns:
    """Waits of four ranks, each of which has much to do for `anew_after` looks together, and waits for none then."""
    draw, busiest = random.Random(1), 0
    columns: dict[int, list[tuple[int, int]]] = {rank: [] for rank in range(4)}
    for look in range(_LOOKS):
        busiest = draw.randrange(4) if look % anew_after == 0 else busiest
        for rank, column in columns.items():
            column.append((1, int(rank != busiest)))
    return [(rank, tuple(column)) for rank, column in columns.items()]


def test_a_lead_over_as_many_looks_as_a_load_stays_is_usual_and_one_over_many_times_that_is_not() -> None:
    assert is_usual(drawn(anew_after=16), (3,), window=32, difference=0.9)
    assert not is_usual(drawn(anew_after=1), (3,), window=32, difference=0.9)


def test_where_all_ranks_wait_alike_any_lead_is_news() -> None:
    calm: Columns = [(rank, tuple((1, look % 2) for look in range(_LOOKS))) for rank in range(4)]
    assert not is_usual(calm, (3,), window=32, difference=0.1)


def test_too_few_looks_say_nothing_of_what_is_usual() -> None:
    few = [(rank, column[:8]) for rank, column in drawn(anew_after=4)]
    assert not is_usual(few, (3,), window=8, difference=0.2)
