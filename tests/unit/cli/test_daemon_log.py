"""What the daemon's log says to whom."""

import logging
import sys

import pytest

from stallwatch.cli.daemon import ForPeople


def said(message: str, level: int = logging.INFO) -> str:
    return ForPeople().format(logging.LogRecord("stallwatch.incidents", level, __file__, 1, message, (), None))


def test_a_person_reads_who_and_the_sentence() -> None:
    line = said("incident=train-1 job=train state=open severity=none cause=not_entered | Rank 1 sleeps")
    assert line.partition(" ")[2] == "train-1: Rank 1 sleeps"
    assert said("sensor=gpus up=false | no GPU", logging.WARNING).partition(" ")[2] == "WARNING gpus: no GPU"
    assert said("stopped").partition(" ")[2] == "stopped"


def test_a_failure_keeps_its_traceback() -> None:
    try:
        raise KeyError("x")
    except KeyError:
        record = logging.LogRecord("stallwatch", logging.ERROR, __file__, 1, "tick failed", (), sys.exc_info())
    assert ForPeople().format(record).endswith("KeyError: 'x'")


@pytest.mark.parametrize("text", ["a | b", "a=b"])
def test_a_line_without_keys_is_left_as_it_is(text: str) -> None:
    assert text.rpartition(" ")[2] in said(text)
