"""Which ranks run the same program."""

import random

import pytest

from stallwatch.detectors import roles
from stallwatch.detectors.roles import alike, by_role


def drawn(rng: random.Random) -> tuple[tuple[int, ...], ...]:
    """Of one to five ranks: most count about the same, some far more, or in another number of groups."""
    counts = [rng.choice((100, 5000)) for _ in range(rng.randint(1, 2))]
    return tuple(
        tuple(sorted(count + rng.choice((0, 3, 60, 64, 65, 70, 400)) for count in counts[: rng.choice((1, 2, 2, 2))]))
        for _ in range(rng.randint(1, 5))
    )


def test_those_that_are_surely_one_program_are_what_comparing_each_with_each_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(7)
    jobs = [drawn(rng) for _ in range(400)]
    assert {roles._are_one(job) for job in jobs} == {True, False}
    found = [(by_role.__wrapped__(job), alike.__wrapped__(job)) for job in jobs]
    monkeypatch.setattr(roles, "_are_one", lambda job: False)
    assert found == [(by_role.__wrapped__(job), alike.__wrapped__(job)) for job in jobs]


def test_a_job_of_no_rank_has_no_roles() -> None:
    assert by_role(()) == ()
    assert alike(()) == ()
