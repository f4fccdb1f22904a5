import random

import pytest

from stallwatch.config import Config
from stallwatch.detectors.wandering import is_new, is_usual
from stallwatch.replay.playing import detect
from tests.replay.stragglers import Design, Job, play, slow_whiles

Columns = list[tuple[int, tuple[tuple[int, int], ...]]]
_LOOKS = 120


def confirmed_at(job: Job, seconds: float, seed: int) -> list[tuple[int, tuple[int, ...]]]:
    """At which seconds slow ranks are known, and which."""
    return [
        (snapshot.tick, finding.ranks)
        for snapshot, found in detect(Config(), play(job, seconds, seed))
        for finding in found.findings
        if finding.detector == "slow" and finding.stage == "confirmed"
    ]


def confirmed(job: Job, seconds: float, seed: int) -> set[tuple[int, ...]]:
    return {ranks for _, ranks in confirmed_at(job, seconds, seed)}


@pytest.mark.parametrize(
    ("design", "rhythm_seconds", "seed"), [("experts", 15.0, 2), ("routed", 10.0, 1), ("wanders", 5.0, 0)]
)
def test_whose_load_is_drawn_anew_again_and_again_is_no_slow_rank(
    design: Design, rhythm_seconds: float, seed: int
) -> None:
    job = Job("nothing", 4, 0.0, 0, 0.0, design=design, design_seed=seed, rhythm_seconds=rhythm_seconds)
    assert not confirmed(job, 150, seed)


def test_one_ranks_turn_after_another_is_a_row_of_draws_however_large() -> None:
    """Rank 2 of eight has two turns of five seconds together, half a minute after the job's begin."""
    job = Job(
        "nothing", 8, 0.0, 0, 0.0,
        step_scale=0.25, design="wanders", spread=1.0, rhythm_seconds=5.0, design_seed=7089, jitter=0.1,
    )  # fmt: skip
    assert not confirmed(job, 120, 7089)


def test_what_lasts_for_a_quarter_of_a_minute_is_no_slow_rank() -> None:
    """One of two ranks gets more of the work than the other from second 15 to second 30."""
    job = Job(
        "nothing", 2, 0.0, 0, 0.0, design="routed", spread=1.0, rhythm_seconds=15.0, design_seed=200082, jitter=0.1
    )
    assert not confirmed(job, 70, 200082)


def test_of_a_rank_that_becomes_slow_in_a_job_that_was_even_it_is_known_at_once_and_of_one_from_the_start_later() -> (
    None
):
    job = Job("sleep", 4, 1.0, 2, 60.0)
    assert min(confirmed_at(job, 90, 1)) < (75, (2,))
    assert confirmed_at(job._replace(onset_seconds=0.0), 70, 1)[0][0] >= 60


def test_a_rank_that_warms_up_for_longer_is_no_slow_rank() -> None:
    """It compiles: its first steps, half a minute of them, take twice as long."""
    assert not confirmed(Job("sleep", 4, 1.0, 1, 0.0, lasts_seconds=30.0), 75, 1)


def test_new_is_what_nobody_had_for_as_long() -> None:
    even = [((4, 2),) * 60 for _ in range(4)]
    had = [(((4, 2),) * 20 + ((4, of_ten),) * 10 + ((4, 2),) * 30) for of_ten in (2, 0, 2, 2)]
    assert is_new(even, 10, 0.5)
    assert not is_new(had, 10, 0.5)
    assert is_new(had, 10, 2.0), "much larger than that"
    assert not is_new([column[:9] for column in even], 10, 0.5), "nothing is known of so long"


def test_a_slow_rank_by_chance_is_told_apart_from_one_that_has_its_turn() -> None:
    job = Job("nothing", 2, 0.0, 0, 0.0, design="wanders", spread=1.0, rhythm_seconds=15.0, design_seed=200006)
    assert all(ends - begins >= 20.0 for _, begins, ends in slow_whiles(job, 180.0))
    assert slow_whiles(job, 180.0)
    assert not slow_whiles(job._replace(rhythm_seconds=2.0, ranks=8), 180.0)
    assert not slow_whiles(job._replace(design="evaluates"), 180.0)


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


@pytest.mark.parametrize("seed", range(4))
def test_what_single_looks_make_by_chance_is_no_while(seed: int) -> None:
    """Of steps of 50 ms a look is one moment of one of them: four ranks that are alike, each the last one's turn."""
    assert not is_usual(_by_chance(seed), (3,), window=40, difference=0.35)


@pytest.mark.parametrize("seed", range(4))
def test_whiles_show_through_what_single_looks_make_by_chance(seed: int) -> None:
    """The same, and each of them has a while of 16 looks in its turn in which the others wait for it."""
    assert is_usual(_by_chance(seed, turn=16), (3,), window=40, difference=0.35)


def _by_chance(seed: int, turn: int = 0) -> Columns:
    """Looks of one moment at four ranks: in a fifth of them one waits less, which is drawn; or whose turn it is."""
    draw = random.Random(seed)
    columns: dict[int, list[tuple[int, int]]] = {rank: [] for rank in range(4)}
    for look in range(480):
        whose = look // turn % 4 if turn and draw.random() < 0.7 else draw.randrange(4)
        waits = draw.random() < 0.4
        for rank, column in columns.items():
            column.append((1, int(waits and rank != whose)))
    return [(rank, tuple(column)) for rank, column in columns.items()]


def test_where_all_ranks_wait_alike_any_lead_is_news() -> None:
    calm: Columns = [(rank, tuple((1, look % 2) for look in range(_LOOKS))) for rank in range(4)]
    assert not is_usual(calm, (3,), window=32, difference=0.1)


def test_a_while_that_another_rank_had_once_makes_a_few_of_them_no_news() -> None:
    once: Columns = [
        (rank, tuple((1, int(not (rank == 1 and 16 <= look < 32))) for look in range(_LOOKS))) for rank in range(4)
    ]
    assert is_usual(once, (3,), window=20, difference=1.0)
    assert not is_usual(once, (3,), window=100, difference=1.0)


@pytest.mark.parametrize("begins", range(8, 16))
def test_a_while_is_one_wherever_it_lies(begins: int) -> None:
    """Of 60 looks the last 20 show rank 3; another had a while of five before."""
    once: Columns = [
        (rank, tuple((1, int(not (rank == 1 and 0 <= look - begins < 5))) for look in range(60))) for rank in range(4)
    ]
    assert is_usual(once, (3,), window=20, difference=1.0)
    assert not is_usual(once, (3,), window=60, difference=1.0)


def test_too_few_looks_say_nothing_of_what_is_usual() -> None:
    few = [(rank, column[:8]) for rank, column in drawn(anew_after=4)]
    assert not is_usual(few, (3,), window=8, difference=0.2)


class ComesBack(Job):
    """Slow in every second minute."""

    def is_slow(self, rank: int, now: float) -> bool:
        return rank == self.slow_rank and now % 120 >= 60


def test_a_rank_that_is_slow_again_after_it_was_over_is_found_again() -> None:
    found = confirmed_at(ComesBack("sleep", 4, 0.5, 1, 0.0), 240, 1)
    assert {ranks for _, ranks in found} == {(1,)}
    assert any(70 < second < 120 for second, _ in found)
    assert any(190 < second < 240 for second, _ in found)
    assert not any(150 < second < 180 for second, _ in found)


def test_slowness_that_goes_from_rank_to_rank_every_half_minute_is_no_news_once_it_has_been_seen_to() -> None:
    job = Job("nothing", 4, 0.0, 0, 0.0, design="wanders", design_seed=2, spread=0.3, rhythm_seconds=30.0)
    assert max((second for second, _ in confirmed_at(job, 360, 2)), default=0) < 180


def test_of_two_ranks_one_that_becomes_slow_is_found_and_one_that_always_was_by_less_than_a_design_makes_is_not() -> (
    None
):
    assert confirmed(Job("sleep", 2, 0.3, 1, 20.0), 100, 1) == {(1,)}
    assert not confirmed(Job("sleep", 2, 0.3, 1, 0.0), 100, 1)


def test_a_suspicion_that_nothing_shows_any_more_does_not_stand_in_the_way_of_another() -> None:
    """Under NCCL the counts' distances are learned first, which may point at another rank for some seconds."""
    job = Job("sleep", 4, 0.3, 2, 15.0, "nccl", step_scale=0.25)
    suspected = [
        (snapshot.tick, finding.ranks)
        for snapshot, found in detect(Config(), play(job, 50, 6))
        for finding in found.findings
        if finding.detector == "slow"
    ]
    assert suspected[-1] == (50, (2,))
