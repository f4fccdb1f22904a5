"""What follows from what among the events of one attempt: exceptions raised while others were handled, meetings that
were tried again."""

from typing import Any

import pytest

from stallwatch.diagnosis.logs.first_cause import tell
from stallwatch.model.log_event import LogEvent


def raised(line: int, text: str, **fields: Any) -> LogEvent:
    exception, _, message = text.partition(": ")
    return LogEvent("exception", text, line, rank=0, exception=exception, message=message, source="job.log", **fields)


def said(line: int, kind: str, text: str = "", **fields: Any) -> LogEvent:
    return LogEvent(kind, text, line, source="job.log", **fields)


LOST, BAD = "RuntimeError: Connection closed by peer", "ValueError: bad shard"
WARNS = "[W socket.cpp] The client socket has failed to connect to [node7]:29500"


@pytest.mark.parametrize(
    ("first", "second", "cause"),
    [
        (BAD, LOST, BAD),  # it told its peers, who had gone meanwhile
        (LOST, BAD, None),  # what cleans up after a lost peer fails as well
        (BAD, "KeyError: 'step'", BAD),
    ],
)
def test_what_is_raised_while_another_exception_is_handled_follows_where_that_one_does(
    first: str, second: str, cause: str | None
) -> None:
    told = tell([raised(1, first), raised(9, second, chained=True)])
    assert next((one.event.text for one in told if not one.consequence), None) == cause


def test_what_was_raised_in_handling_an_exception_that_the_log_has_lost_is_no_cause() -> None:
    (told,) = tell([raised(1, BAD, chained=True)])
    assert told.consequence


@pytest.mark.parametrize(
    ("later", "is_cause"),
    [
        ((), True),
        ((said(5, "nccl_init_complete"),), False),
        ((raised(5, BAD),), False),  # with the mark of a rank, which torch gives to members of a group
        ((said(4, "trying_again"), said(5, "out_of_memory", "CUDA out of memory")), False),
        ((said(5, "collective_timeout", rank=0, seq=7),), False),
    ],
)
def test_ranks_that_met_at_a_later_try_did_not_fail_to_meet(later: tuple[LogEvent, ...], is_cause: bool) -> None:
    told = tell([said(1, "store_unreachable", WARNS), *later])
    (meeting,) = (one for one in told if one.kind == "store_unreachable")
    assert (not meeting.consequence) == is_cause


def test_of_several_tries_the_one_that_failed_for_good_is_the_cause() -> None:
    fatal = said(9, "store_unreachable", "The client socket has failed to connect to [node7]:29500 (timed out)")
    told = tell([said(1, "store_unreachable", WARNS), fatal])
    assert [bool(one.consequence) for one in sorted(told, key=lambda one: one.event.line)] == [True, False]
