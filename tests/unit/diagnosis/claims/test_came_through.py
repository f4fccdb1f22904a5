"""Calls that did not fit have completed, as NCCL pairs by order alone, and one rank comes to its end after that."""

import pytest

from stallwatch.diagnosis import judge
from stallwatch.model.verdict import Verdict
from tests.builders.job import Call, Rank, evidence, world

_WORLD = world(4)
_STEP = [Call(_WORLD, "all_gather", 100, line=10), Call(_WORLD, "reduce_scatter", 400, line=11)]
_ROUNDS = 6
_END = Call(_WORLD, "all_reduce", 1, line=90)
_ODD = Call(_WORLD, "all_gather", 100, line=30)
_TRAINED = _STEP * _ROUNDS


def _stands(rank: int, calls: list[Call]) -> Rank:
    """It waits in the last one."""
    return Rank(rank, tuple(calls), len(calls) - 1)


def _once_more() -> list[Call]:
    """One call in its middle is another than its peers'."""
    return [*_TRAINED[:5], _ODD, *_TRAINED[6:], _END]


def _verdict(*ranks: Rank) -> Verdict:
    return judge(evidence(*ranks)).verdicts[0]


def test_who_made_the_call_that_did_not_fit_is_named_and_not_who_came_through() -> None:
    usual = [*_TRAINED, _END]
    through = Rank(3, dumped=False, state="Z", exit_code=0)
    told = _verdict(_stands(0, usual), _stands(1, usual), _stands(2, _once_more()), through)
    assert (told.cause, told.culprits, told.confidence) == ("collective_mismatch", (2,), "likely")
    assert any("rank 3" in fact.fact and "exit code 0" in fact.fact for fact in told.because)
    assert any("rank 3" in words for words in told.missing)  # what it had called nobody knows


@pytest.mark.parametrize("exit_code", [1, 3])
def test_an_end_that_is_a_failure_is_the_cause_as_ever(exit_code: int) -> None:
    usual = [*_TRAINED, _END]
    failed = Rank(3, dumped=False, state="Z", exit_code=exit_code)
    told = _verdict(_stands(0, usual), _stands(1, usual), _stands(2, _once_more()), failed)
    assert (told.cause, told.culprits) == ("rank_exited", (3,))


def test_where_all_calls_fitted_who_left_is_named() -> None:
    usual = [*_TRAINED, _END]
    left = Rank(3, dumped=False, state="Z", exit_code=0)
    told = _verdict(*(_stands(rank, usual) for rank in range(3)), left)
    assert (told.cause, told.culprits, told.confidence) == ("rank_exited", (3,), "certain")


def test_calls_that_did_not_fit_in_another_group_are_another_matter() -> None:
    pair = type(_WORLD)("1", "metrics", (0, 1, 2), 1)
    usual = [*_TRAINED[:5], Call(pair, "all_reduce", 8, line=40), *_TRAINED[5:], _END]
    odd = [*_TRAINED[:5], Call(pair, "broadcast", 8, line=41), *_TRAINED[5:], _END]
    left = Rank(3, dumped=False, state="Z", exit_code=0)
    told = _verdict(_stands(0, usual), _stands(1, usual), _stands(2, odd), left)
    assert (told.cause, told.culprits) == ("rank_exited", (3,))


def test_where_the_others_wait_in_the_middle_of_their_loop_who_left_it_is_named() -> None:
    """Seventy-five calls after the one that did not fit, which all fit again, in one that they had made forty times."""
    usual = [*_STEP * 40, _STEP[0]]
    odd = [*usual[:5], _ODD, *usual[6:]]
    left = Rank(3, dumped=False, state="Z", exit_code=0)
    told = _verdict(_stands(0, usual), _stands(1, usual), _stands(2, odd), left)
    assert (told.cause, told.culprits, told.confidence) == ("rank_exited", (3,), "likely")


def test_who_is_no_member_of_the_group_in_which_calls_did_not_fit_has_left() -> None:
    trio = type(_WORLD)("1", "metrics", (0, 1, 2), 1)
    usual = [*_TRAINED[:5], Call(trio, "all_reduce", 8, line=40), *_TRAINED[5:], _END]
    odd = [*_TRAINED[:5], Call(trio, "all_reduce", 9, line=40), *_TRAINED[5:], Call(trio, "all_reduce", 8, line=91)]
    left = Rank(3, dumped=False, state="Z", exit_code=0)
    told = _verdict(_stands(0, usual), _stands(1, usual), _stands(2, odd), left)
    assert (told.cause, told.culprits) == ("rank_exited", (3,))


def test_where_nothing_tells_whose_call_did_not_fit_the_end_is_not_excused_by_it() -> None:
    usual, left = [*_TRAINED, _END], Rank(3, dumped=False, state="Z", exit_code=0)
    told = _verdict(_stands(0, usual), _stands(1, _once_more()), Rank(2, dumped=False), left)
    assert (told.cause, told.culprits, told.confidence) == ("rank_exited", (3,), "likely")


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (_once_more(), "that completed, and the calls after it are alike"),
        ([*_TRAINED[:5], _ODD, *_TRAINED[5:]], "that completed, and the calls after it do not fit"),
        (_once_more()[:6], "that completed;"),
    ],
    ids=["alike", "one off", "none known"],
)
def test_of_the_calls_after_one_that_completed_is_said_what_recorders_show(odd: list[Call], said: str) -> None:
    usual = [*_TRAINED, _END]
    told = _verdict(*(_stands(rank, usual) for rank in (0, 1, 3)), Rank(2, tuple(odd), min(len(odd), 12)))
    assert (told.cause, told.culprits) == ("collective_mismatch", (2,))
    assert said in told.summary


def test_what_is_told_of_calls_that_completed_is_not_that_somebody_waits_in_them() -> None:
    usual = [*_TRAINED, _END]
    told = _verdict(*(_stands(rank, usual) for rank in (0, 1, 3)), _stands(2, _once_more()))
    assert (told.cause, told.culprits) == ("collective_mismatch", (2,))
    assert "that completed" in told.summary
    assert "in vain in theirs" not in told.summary


def test_a_call_that_did_not_fit_and_completed_is_not_certain_to_be_why_ranks_wait() -> None:
    """Others after it have completed, and fitted."""
    usual = [*_TRAINED, _END]
    told = _verdict(*(_stands(rank, usual) for rank in (0, 1, 3)), _stands(2, _once_more()))
    assert (told.cause, told.culprits, told.confidence) == ("collective_mismatch", (2,), "possible")
    waits_next = [_stands(rank, usual[:7]) for rank in (0, 1, 3)]
    told = _verdict(*waits_next, _stands(2, _once_more()[:7]))
    assert (told.cause, told.culprits, told.confidence) == ("collective_mismatch", (2,), "likely")
    in_it = [_stands(rank, usual[:6]) for rank in (0, 1, 3)]
    told = _verdict(*in_it, _stands(2, _once_more()[:6]))
    assert (told.cause, told.culprits, told.confidence) == ("collective_mismatch", (2,), "certain")
