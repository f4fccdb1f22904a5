"""When a suspicion is old enough for the second look."""

import pytest

from stallwatch.detectors.suspicion import Suspicion, due_of, stage_of
from stallwatch.model.snapshot import JobKey
from tests.builders.clock import SECOND_NS

SINCE = Suspicion(JobKey("train", "0"), 100 * SECOND_NS)


@pytest.mark.parametrize(
    ("seconds", "stage"),
    [(0.0, "suspect"), (2.8, "suspect"), (2.95, "confirmed"), (3.0, "confirmed"), (60, "confirmed")],
)
def test_it_is_confirmed_after_the_seconds_of_the_second_look_give_or_take_what_ticks_jitter(
    seconds: float, stage: str
) -> None:
    assert stage_of(SINCE, 3.0, 100 * SECOND_NS + int(seconds * SECOND_NS)) == stage
    assert due_of(SINCE, 3.0) == 103 * SECOND_NS
