from stallwatch.diagnosis.verdicts import what_a_hook_adds
from stallwatch.model.evidence import Attempt, RankEvidence


def rank(number: int, *answered: bool) -> RankEvidence:
    return RankEvidence(number, "n", 1, attempts=tuple(Attempt("heartbeat", 1, 0, one, "") for one in answered))


def test_ranks_without_a_hook_are_named_with_what_it_would_add() -> None:
    (said,) = what_a_hook_adds([rank(0, False), rank(1, False, False), rank(2, True)])
    assert said.startswith("ranks 0-1 have no hook: stallwatch.attach() would add steps")
    assert what_a_hook_adds([rank(3, False)])[0].startswith("rank 3 has no hook")


def test_bundle_of_a_tool_that_looks_for_no_record_says_nothing() -> None:
    assert what_a_hook_adds([rank(0), rank(1)]) == ()


def test_record_that_was_read_once_is_a_hook() -> None:
    assert what_a_hook_adds([rank(0, True, False)]) == ()
