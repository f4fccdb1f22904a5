"""gloo records no send and no receive; where the hooks tell the peers, the waits are those of any other graph."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import RankEvidence
from stallwatch.model.hook_report import HookReport, NamedCall
from stallwatch.model.verdict import Verdict
from tests.builders.job import IN_RECV, SLEEPS, Call, Rank, evidence, loop, world

W = world(4)
STEPS = loop(W, 6)


def _transfers(rank: int, function: str, peer: int | None) -> RankEvidence:
    told = Rank(rank, STEPS, len(STEPS), IN_RECV, wchan="futex_do_wait", backend="gloo").evidence()
    return replace(told, scenes=(HookReport("scene.json", 2, None, (NamedCall(function, True, peer, str(told.pid)),)),))


def _sleeps(rank: int) -> RankEvidence:
    return Rank(rank, STEPS, len(STEPS), SLEEPS, backend="gloo").evidence()


def _collects(rank: int) -> RankEvidence:
    calls = (*STEPS, Call(W, elements=500, line=10))
    return Rank(rank, calls, len(STEPS), backend="gloo").evidence()


def _judged(*ranks: RankEvidence) -> Verdict:
    return judge(replace(evidence(world_size=4), ranks=ranks)).verdicts[0]


def test_two_that_receive_from_each_other_are_named_and_not_those_that_wait_for_them() -> None:
    verdict = _judged(
        _transfers(0, "recv", 1), _transfers(1, "recv", 2), _transfers(2, "recv", 1), _transfers(3, "recv", 2)
    )
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("p2p_unmatched", (1, 2), "likely")


@pytest.mark.parametrize("function", ["send", "recv"])
def test_a_chain_of_transfers_ends_at_the_one_that_is_elsewhere(function: str) -> None:
    verdict = _judged(_transfers(0, function, 1), _transfers(1, function, 2), _sleeps(2), _transfers(3, function, 0))
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("not_entered", (2,), "likely")


def test_a_send_and_its_receive_wait_for_nobody_else() -> None:
    """Both ends are there: who is not, they are not waiting for."""
    verdict = _judged(_transfers(0, "recv", 1), _transfers(1, "send", 0), _collects(2), _collects(3))
    assert verdict.confidence == "possible"


def test_a_receive_from_a_rank_that_waits_for_the_receiver_is_a_message_that_was_never_sent() -> None:
    verdict = _judged(_collects(0), _transfers(1, "recv", 0), _collects(2), _collects(3))
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("p2p_unmatched", (0, 1), "possible")


def test_a_receive_from_anybody_names_nobody() -> None:
    verdict = _judged(*(_transfers(rank, "recv", None) for rank in range(4)))
    assert verdict.confidence == "possible"


def test_of_a_pipeline_in_which_one_stage_has_gone_on_to_the_collective_that_stage_is_named() -> None:
    """Rank 0 sends to it, rank 2 receives from it, rank 3 from rank 2: each waits for it, and it waits for all."""
    verdict = _judged(_transfers(0, "send", 1), _collects(1), _transfers(2, "recv", 1), _transfers(3, "recv", 2))
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("p2p_unmatched", (1,), "possible")


def test_a_message_whose_two_ends_are_in_every_circle_names_both() -> None:
    """Only rank 2 waits for rank 1: it may have received one too many."""
    verdict = _judged(_collects(0), _collects(1), _transfers(2, "recv", 1), _transfers(3, "recv", 2))
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("p2p_unmatched", (1, 2), "possible")


def test_circles_that_share_no_rank_name_nobody() -> None:
    verdict = _judged(_collects(0), _collects(1), _transfers(2, "recv", 1), _transfers(3, "recv", 0))
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("p2p_unmatched", (), "possible")
