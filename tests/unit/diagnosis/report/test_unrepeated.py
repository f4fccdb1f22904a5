"""What the sentence above them has said, steps do not say again."""

import pytest

from stallwatch.diagnosis.report.steps import unrepeated
from stallwatch.model.verdict import Mismatch
from tests.unit.outputs.reports import verdict


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("See its threads: `py-spy dump`; it stands at a.py:4 in f (`x: y()`).", "See its threads: `py-spy dump`."),
        ("See `x`; it waits at a.py:4 in f (`x: y()`): look for the thread.", "See `x`; look for the thread."),
        ("See whom it talks to: `ss`; the call is at a.py:4 in f (`x: y()`).", "See whom it talks to: `ss`."),
        ("Pair each send; rank 2 stands at a.py:4 in f (`x: y()`).", "Pair each send."),
        ("Compare the paths. Rank 2 is now at a.py:4 in f (`x: y()`).", "Compare the paths."),
        (
            "See where its workers stand: `py-spy`. The rank waits at a.py:4 in f (`x: y()`).",
            "See where its workers stand: `py-spy`.",
        ),
        ("What lets it go round? It is now at a.py:4 in f (`x: y()`).", "What lets it go round?"),
        ("Wait: rank 2 makes progress (it is at a.py:4 in f (`x: y()`)).", "Wait: rank 2 makes progress."),
        ("See `x`; it stands at b.py:9 in g (`z()`).", ""),
        ("See `x`; it waits at a.py:4 in f (`x: y()`) for ranks that have not come.", ""),
        ("Compare the paths. Rank 2 is now at b.py:9 in g (`z()`).", ""),
        ("Wait: rank 2 makes progress (it is at b.py:9 in g).", ""),
        ("Its child process 7 is at a.py:4 in f (`x: y()`): `py-spy dump --pid 7`.", ""),
    ],
)
def test_a_step_does_not_repeat_the_place_that_the_sentence_names(step: str, said: str) -> None:
    found = verdict(summary="Rank 2 stands at a.py:4 in f (`x: y()`); ranks 0-1 wait.")
    assert unrepeated((step,), found) == (said or step,)


@pytest.mark.parametrize("named", [True, False])
def test_what_differs_is_not_said_by_a_step_where_the_sentence_says_it(named: bool) -> None:
    differs = Mismatch("size", "1048576 elements", "2097152 elements")
    step = f"Compare the paths up to the call: rank 2 has {differs.found}, the others {differs.expected}."
    sizes = "Rank 2 entered all_reduce with 2097152 elements where the others have 1048576 elements."
    found = verdict(cause="collective_mismatch", summary=sizes if named else "Sizes differ.", mismatch=differs)
    assert unrepeated((step,), found) == ("Compare the paths up to the call." if named else step,)
