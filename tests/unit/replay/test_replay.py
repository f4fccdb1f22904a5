"""A part of tests/bench/bench_replay.py that is small enough for every run."""

import random
from collections.abc import Iterator

import pytest

from tests.replay import long_events
from tests.replay.habits import Habits
from tests.replay.healthy import ELSEWHERE, FAULTS, Stretch, moments, moments_of
from tests.replay.replaying import play

HEALTHY_SEEDS = (1, 3, 4, 9)
FAULTY_SEEDS = (0, 2, 4, 5)


@pytest.mark.parametrize("seed", HEALTHY_SEEDS)
def test_nobody_is_told_about_a_healthy_job(seed: int) -> None:
    played = play(moments(seed, 1.0))
    assert not played.told
    assert not played.slow
    assert played.hours >= 1


def test_nobody_is_told_of_what_takes_long() -> None:
    played = play(long_events.moments(2, 1.5))
    assert not played.told
    assert not played.slow
    assert len(played.events) >= 4
    assert any(moment.stretch.culprit == ELSEWHERE for moment in long_events.moments(2, 1.5)), "on another node"


def test_nobody_is_told_of_a_rank_that_exports_when_the_others_have_left() -> None:
    def job(rng: random.Random) -> Habits:
        return long_events.draw(rng)._replace(ranks=2, world=2, step_seconds=0.5, exports_seconds=700.0)

    def steps(rng: random.Random, job: Habits) -> Iterator[Stretch]:
        while True:
            yield Stretch("step", job.step_seconds)

    played = play(moments_of(1, 0.03, job, steps))
    assert [what for what, _ in played.events] == ["export"]
    assert played.suspicions, "it is looked at"
    assert not played.told


def test_nobody_is_told_of_storage_that_came_back_before_all_but_the_exporting_rank_left() -> None:
    def job(rng: random.Random) -> Habits:
        return long_events.draw(rng)._replace(ranks=2, world=2, step_seconds=0.5, exports_seconds=700.0)

    def stands_at_the_end(rng: random.Random, job: Habits) -> Iterator[Stretch]:
        for _ in range(120):
            yield Stretch("step", job.step_seconds)
        yield Stretch("storage", 35.0, "", 0)
        while True:
            yield Stretch("step", job.step_seconds)

    played = play(moments_of(1, 0.026, job, stands_at_the_end))
    assert [what for what, _ in played.events] == ["storage by one", "export"]
    assert not played.told


@pytest.mark.parametrize("seed", FAULTY_SEEDS)
def test_a_fault_in_the_same_behaviour_is_told(seed: int) -> None:
    played = play(moments(seed, 0.7, with_fault=True))
    assert not played.told, "before the fault"
    assert played.fault is not None
    assert played.found_after_seconds is not None
    assert played.told_after_seconds is not None
    assert played.found_after_seconds <= (60 if played.fault.doing == "hang" else 3)


def test_the_generator_shows_what_it_is_for() -> None:
    doings, phases, ended = set(), set(), False
    for seed in (0, 1, 2, 5):
        for moment in moments(seed, 1.5):
            doings.add(moment.stretch.doing)
            phases.add(moment.stretch.phase)
            ended |= any(rank.end is not None for rank in moment.snapshot.ranks)
    assert doings >= {"start", "alone", "step", "evaluate", "storage"}
    assert phases >= {"", "checkpoint", "eval"}
    assert ended
    assert not doings & set(FAULTS)


def test_the_same_seed_is_the_same_job() -> None:
    def first(seed: int) -> list[object]:
        return [moment.snapshot for moment, _ in zip(moments(seed, 0.1), range(200), strict=False)]

    assert first(7) == first(7)
    assert first(7) != first(8)
