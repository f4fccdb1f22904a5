import email.utils
import time

import pytest

from stallwatch.outputs.delivery import Delivered, Later, Refused, judge
from stallwatch.outputs.poster import Answer


@pytest.mark.parametrize("status", [200, 201, 204])
def test_an_accepted_message_is_delivered(status: int) -> None:
    assert isinstance(judge(Answer(status, "ok")), Delivered)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, None])
def test_what_may_pass_is_tried_again(status: int | None) -> None:
    assert isinstance(judge(Answer(status, "busy")), Later)


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 410])
def test_what_will_not_change_is_not_tried_again(status: int) -> None:
    outcome = judge(Answer(status, "no_service"))
    assert isinstance(outcome, Refused)
    assert outcome.reason == f"{status} no_service"


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("999999999", 3600.0),
        ("soon", None),
        ("", None),
        (None, None),
        ("nan", None),
    ],
)
def test_retry_after_is_honoured_within_reason(given: str | None, seconds: float | None) -> None:
    assert judge(Answer(429, "", given)) == Later("429", seconds)


def test_retry_after_may_be_a_date() -> None:
    outcome = judge(Answer(503, "", email.utils.formatdate(time.time() + 600, usegmt=True)))
    assert isinstance(outcome, Later)
    assert outcome.after_seconds is not None
    assert 500 < outcome.after_seconds <= 600
