"""What the sentence above them has said, steps do not say again."""

from typing import Any

import pytest

from stallwatch.diagnosis.activity.flat import FlatActivity, unflatten
from stallwatch.diagnosis.report.steps import next_steps
from stallwatch.diagnosis.step import text_of
from stallwatch.model.verdict import Cause, CulpritProcess, Frame, Mismatch, Verdict

LINE = Frame("a.py", 4, "f")
SAID = "Rank 2 stands at a.py:4 in f; ranks 0-1 wait."


def first_step(cause: Cause, said: str, culprits: tuple[int, ...] = (2,), **fields: Any) -> str:
    values: dict[str, Any] = {"host": "h", "pid": 4711, "where": "lock", "frame": LINE, "detail": "waits"} | fields
    mismatch = values.pop("mismatch", None)
    activities = {rank: unflatten(FlatActivity(rank=rank, **values)) for rank in culprits}
    processes = tuple(CulpritProcess(rank, "h", 4711, None, values["where"], LINE) for rank in culprits)
    told = Verdict(
        cause, culprits, "certain", said, culprit_processes=processes, where=values["where"], mismatch=mismatch
    )
    return text_of(next_steps(told, activities)[0])


@pytest.mark.parametrize(
    ("cause", "fields", "place"),
    [
        ("not_entered", {"where": "user_code"}, "; it stands at a.py:4 in f"),
        ("not_entered", {"where": "socket"}, "; the call is at a.py:4 in f"),
        ("not_entered", {"where": "filesystem"}, "; it stands at a.py:4 in f"),
        ("not_entered", {"where": "compile"}, "; the rank is at a.py:4 in f"),
        ("not_entered", {"where": "dataloader"}, " The rank waits at a.py:4 in f."),
        ("not_entered", {"detail": "waits for a database"}, "; the call is at a.py:4 in f"),
        ("not_entered", {"moving": True}, " It is now at a.py:4 in f."),
        ("p2p_unmatched", {}, "; rank 2 stands at a.py:4 in f"),
        ("group_order", {}, "; rank 2 stands at a.py:4 in f"),
        ("waiting", {}, " (it is at a.py:4 in f)"),
        ("collective_mismatch", {}, " Rank 2 is now at a.py:4 in f."),
    ],
)
def test_a_step_does_not_repeat_the_place_that_the_sentence_names(
    cause: Cause, fields: dict[str, Any], place: str
) -> None:
    told = first_step(cause, "Rank 2 hangs.", **fields)
    assert place in told
    assert first_step(cause, SAID, **fields) == told.replace(place, "")


def test_a_sentence_that_ends_with_the_place_takes_no_full_stop_from_a_step() -> None:
    assert first_step("p2p_unmatched", "Ranks 0-1 wait; rank 2 is at a.py:4 in f.").endswith("with its receive.")


def test_what_follows_the_place_stays() -> None:
    assert "`; it waits at a.py:4 in f: look for the thread" in first_step("not_entered", "Rank 2 hangs.")
    assert "`; look for the thread" in first_step("not_entered", SAID)


def test_a_step_that_holds_for_others_says_whose_line_it_is() -> None:
    told = first_step("not_entered", SAID, (2, 3), where="user_code")
    assert told.endswith("; it stands at a.py:4 in f. (the same holds for 1 more: ranks 2-3)")


@pytest.mark.parametrize("named", [True, False])
def test_what_differs_is_not_said_by_a_step_where_the_sentence_says_it(named: bool) -> None:
    differs = Mismatch("size", "1048576 elements", "2097152 elements")
    sizes = "Rank 2 entered all_reduce with 2097152 elements where the others have 1048576 elements."
    told = first_step("collective_mismatch", sizes if named else "Sizes differ.", mismatch=differs)
    assert (": rank 2 has " in told) != named
    assert told.startswith("Compare the code paths of rank 2 and of another rank up to the call")
