"""A wait for communication that only stack and recorder together name."""

import pytest

from stallwatch.diagnosis.activity import RankActivity
from stallwatch.diagnosis.activity.rank_activity import CommunicationCall, with_transfer
from stallwatch.diagnosis.activity.thread_place import Place
from stallwatch.diagnosis.recorder.reduce import reduce_rank
from stallwatch.model.summary import RankSummary
from tests.builders.job import Rank, loop, world

STEPS = loop(world(2), 3)
WAITS = RankActivity(0, place=Place("collective", "waits for a collective"), call=CommunicationCall(True))


def _summary(rank: Rank) -> RankSummary:
    return reduce_rank(rank.evidence())


def test_gloo_with_nothing_unfinished_waits_in_a_transfer() -> None:
    assert with_transfer(WAITS, _summary(Rank(0, STEPS, backend="gloo"))).place.detail == "waits for a send or receive"


@pytest.mark.parametrize(
    "rank",
    [
        Rank(0, STEPS, len(STEPS) - 1, backend="gloo"),  # it waits in what it recorded
        Rank(0, STEPS, backend="nccl"),  # NCCL records transfers
        Rank(0, STEPS, backend="gloo", dumped=False),
        Rank(0, (), backend="gloo"),
    ],
)
def test_otherwise_the_wait_stays_what_the_stack_says(rank: Rank) -> None:
    assert with_transfer(WAITS, _summary(rank)) == WAITS


def test_a_named_call_keeps_its_name() -> None:
    named = RankActivity(0, place=Place("collective", "waits in recv"), call=CommunicationCall(True, "recv"))
    assert with_transfer(named, _summary(Rank(0, STEPS, backend="gloo"))) == named
