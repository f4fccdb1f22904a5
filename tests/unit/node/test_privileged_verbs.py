"""What of a request is passed on: numbers within bounds, ranks that are two of them, and nothing else."""

from typing import Any

import pytest

from stallwatch.node.privileged_verbs import MOST_RANKS, SENSOR, VERBS, NotAllowed, number_of

LOOK = {"verb": "look", "number": 1, "look": 3, "ranks": [[7, 0], [4194304, (1 << 63) - 1]]}


def words(verb: str, request: dict[str, Any]) -> dict[str, Any]:
    check = VERBS[verb].words
    assert check is not None
    return check(request)


def test_a_look_is_passed_on_as_checked_words_alone() -> None:
    asked = {**LOOK, "profile_seconds": 12, "call_sites": 1, "py_spy": "/tmp/evil", "user": 0}
    assert words("look", asked) == {
        "look": 3,
        "ranks": [(7, 0), (4194304, (1 << 63) - 1)],
        "profile_seconds": 12,
        "call_sites": 1,
    }
    assert words("look", LOOK) == {
        "look": 3,
        "ranks": words("look", asked)["ranks"],
        "profile_seconds": 0,
        "call_sites": 0,
    }


def test_a_sample_is_passed_on_as_checked_words_alone() -> None:
    asked = {"verb": "sample", "at_ns": 0, "ranks": [[1, 1]], "kind": "look", "module": "os"}
    assert words("sample", asked) == {"kind": "sample", "at_ns": 0, "ranks": [(1, 1)]}


@pytest.mark.parametrize(
    "changed",
    [
        {"look": 0},
        {"look": 1001},
        {"look": True},
        {"look": 1.0},
        {"look": "1"},
        {"look": None},
        {"profile_seconds": -1},
        {"profile_seconds": 13},
        {"call_sites": 2},
        {"call_sites": False},
        {"ranks": []},
        {"ranks": [[1, 1]] * (MOST_RANKS + 1)},
        {"ranks": {"1": 1}},
        {"ranks": [[1]]},
        {"ranks": [[1, 1, 1]]},
        {"ranks": [(1, 1)]},
        {"ranks": [[0, 1]]},
        {"ranks": [[-1, 1]]},
        {"ranks": [[4194305, 1]]},
        {"ranks": [[1, -1]]},
        {"ranks": [[1, 1 << 63]]},
        {"ranks": [[True, 1]]},
        {"ranks": [[1, 1.0]]},
        {"ranks": [[1, 1], "12"]},
    ],
)
def test_words_out_of_bounds_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(NotAllowed):
        words("look", {**LOOK, **changed})


def test_bounds_are_among_what_is_allowed() -> None:
    assert number_of({"a": 1}, "a", 1, 5) == 1
    assert number_of({"a": 5}, "a", 1, 5) == 5
    for look in (1, 1000):
        assert words("look", {**LOOK, "look": look})["look"] == look
    assert len(words("look", {**LOOK, "ranks": [[1, 1]] * MOST_RANKS})["ranks"]) == MOST_RANKS
    assert words("sample", {"at_ns": (1 << 63) - 1, "ranks": [[1, 1]]})["at_ns"] == (1 << 63) - 1
    for at_ns in (-1, 1 << 63):
        with pytest.raises(NotAllowed, match="at_ns"):
            words("sample", {"at_ns": at_ns, "ranks": [[1, 1]]})


def test_no_more_of_each_are_alive_than_are_of_use() -> None:
    assert SENSOR.most == 2, "one that is going and the next one"
    assert {name: verb.most for name, verb in VERBS.items()} == {"look": 32, "sample": 32}
    assert SENSOR.words is None
    assert {verb.module for verb in (SENSOR, *VERBS.values())} == {
        "stallwatch.sensors.child",
        "stallwatch.captures.child",
    }
