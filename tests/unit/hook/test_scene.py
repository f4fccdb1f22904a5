"""What the hook tells beside stacks: the exception that is handled, and the rank that a call names."""

import json
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from stallwatch.formats.hook_report import parse
from stallwatch.hook import scene

_needs_current_exceptions = pytest.mark.skipif(
    not hasattr(sys, "_current_exceptions"), reason="the interpreter does not tell"
)


def _told() -> dict[str, Any]:
    answer: list[bytes] = []
    thread = threading.Thread(target=lambda: answer.append(scene.scene_json()))
    thread.start()
    thread.join()
    found = json.loads(answer[0])
    assert isinstance(found, dict)
    return found


def _fails() -> None:
    raise KeyError("secret value")


@_needs_current_exceptions
def test_an_exception_that_the_main_thread_handles_is_told_without_its_text() -> None:
    try:
        _fails()
    except KeyError:
        told = _told()
    assert told["handling"]["type"] == "KeyError"
    assert told["handling"]["frames"][0]["name"].endswith("_fails")
    assert "secret" not in json.dumps(told)


@_needs_current_exceptions
def test_so_is_one_that_passes_through_a_finally() -> None:
    told: dict[str, Any] = {}

    def cleans_up() -> None:
        nonlocal told
        try:
            _fails()
        finally:
            told = _told()

    with pytest.raises(KeyError):
        cleans_up()
    assert told["handling"]["type"] == "KeyError"


def test_outside_of_every_handler_nothing_is_handled() -> None:
    assert _told()["handling"] is None


@pytest.fixture
def c10d(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module as torch's: functions that block, with torch's names of arguments."""
    module = ModuleType("torch.distributed.distributed_c10d")
    code = """
def recv(blocked, src=None, group=None, group_src=None):
    blocked()

def broadcast(blocked, src=None, group=None, group_src=None):
    blocked()

def all_reduce(blocked, group=None):
    blocked()

def _new_group_with_tag(blocked, ranks=None):
    group_name = "2"
    _new_process_group_helper(blocked, len(ranks or ()))

def _new_process_group_helper(blocked, group_size):
    blocked()

def get_process_group_ranks(group):
    return group

def _get_default_group():
    return [0, 1, 2]
"""
    exec(code, module.__dict__)
    return module


def _within(call: Callable[..., None], **arguments: object) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """The calls that name a rank, and the members of each call's group."""
    entered, leave = threading.Event(), threading.Event()

    def blocked() -> None:
        entered.set()
        leave.wait(30)

    thread = threading.Thread(target=call, args=(blocked,), kwargs=arguments)
    thread.start()
    assert entered.wait(30)
    told = _told()
    calls = [call for call in told["calls"] if call["thread_id"] == thread.ident]
    inside = [call["members"] for call in told["inside"] if call["thread_id"] == thread.ident]
    names = {call["name"] for call in told["inside"] if call["thread_id"] == thread.ident}
    assert names <= {
        "2" if call.__name__ == "_new_group_with_tag" else getattr(arguments.get("group"), "group_name", None)
    }
    leave.set()
    thread.join()
    return calls, inside


@pytest.mark.parametrize(
    ("function", "arguments", "rank", "is_transfer"),
    [
        ("recv", {"src": 3}, 3, True),
        ("recv", {"group_src": 1, "group": [4, 6]}, 6, True),
        ("recv", {}, None, True),
        ("broadcast", {"group_src": 0, "group": [5, 7]}, 5, False),
        ("broadcast", {"src": 2, "group_src": 0, "group": [2, 7]}, 2, False),
        ("broadcast", {"group_src": 9, "group": [5]}, None, False),
    ],
)
def test_a_call_tells_the_global_rank_that_it_names(
    c10d: ModuleType, function: str, arguments: dict[str, object], rank: int | None, is_transfer: bool
) -> None:
    (call,), _ = _within(getattr(c10d, function), **arguments)
    assert (call["function"], call["rank"], call["is_transfer"]) == (function, rank, is_transfer)


def test_a_call_that_names_nobody_is_not_told(c10d: ModuleType) -> None:
    calls, inside = _within(c10d.all_reduce)
    assert calls == []
    assert inside == [[0, 1, 2]], "of the default group"


def test_a_call_tells_the_members_of_the_group_that_it_was_given(c10d: ModuleType) -> None:
    _, inside = _within(c10d.all_reduce, group=[7, 5])
    assert inside == [[5, 7]]
    _, inside = _within(c10d.all_reduce, group=["a group that is gone"])
    assert inside == []


def test_a_call_tells_torch_s_own_name_of_its_group(c10d: ModuleType) -> None:
    class Group(list[int]):
        group_name = "4"

    _, inside = _within(c10d.all_reduce, group=Group([7, 5]))
    assert inside == [[5, 7]]


@pytest.mark.parametrize(("ranks", "inside"), [([3, 0], [[0, 3]]), (None, [])])
def test_the_making_of_a_group_tells_of_whom(
    c10d: ModuleType, ranks: list[int] | None, inside: list[list[int]]
) -> None:
    _, told = _within(c10d._new_group_with_tag, ranks=ranks)
    assert told == inside


def test_the_answer_reads_back() -> None:
    try:
        _fails()
    except KeyError:
        read = parse(scene.scene_json(), "scene.json", 2)
    assert (read.look, read.calls) == (2, ())
