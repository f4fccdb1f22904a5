import threading

import pytest

from stallwatch.node.aside import OneCallAtATime, Silent
from tests.builders.clock import FakeClock


def test_a_call_that_hangs_is_waited_for_once_and_no_second_joins_it() -> None:
    answers, calls = threading.Event(), threading.Semaphore(0)

    def hanging() -> str:
        calls.release()
        answers.wait(60)
        return "late"

    aside = OneCallAtATime[str]()
    assert [aside.call(hanging, 0.01, "nothing") for _ in range(3)] == ["nothing"] * 3
    assert calls.acquire(timeout=30)
    assert not calls.acquire(blocking=False)
    answers.set()


def test_what_comes_in_time_is_the_answer_as_often_as_it_is_asked_for() -> None:
    aside = OneCallAtATime[int]()
    assert aside.begin(lambda: 7)
    assert aside.answer(60) == aside.answer(60) == 7
    assert aside.call(lambda: 8, 60, 0) == 8


def test_what_it_raises_is_raised_where_it_is_asked_for_and_the_next_call_is_another() -> None:
    def fails() -> int:
        raise OSError("no route")

    aside = OneCallAtATime[int]()
    aside.begin(fails)
    with pytest.raises(OSError, match="no route"):
        aside.answer(60)
    assert aside.begin(lambda: 7)
    assert aside.answer(60) == 7


def test_how_long_it_is_silent_is_told_by_the_clock_that_it_was_given() -> None:
    clock, answers = FakeClock(), threading.Event()
    aside = OneCallAtATime[bool](clock.seconds)
    assert [aside.silent_seconds] == [None]
    aside.begin(lambda: answers.wait(60))
    clock.advance(7)
    assert [aside.silent_seconds] == [7.0]
    with pytest.raises(Silent) as silence:
        aside.answer()
    assert silence.value.seconds == 7.0
    answers.set()
    assert aside.wait(60)
    assert [aside.silent_seconds] == [None]
    assert aside.answer() is True


def test_a_call_that_gets_no_thread_is_no_call_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory, or at a limit of threads: the next one is begun."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    aside = OneCallAtATime[int]()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            aside.begin(lambda: 7)
    assert aside.silent_seconds is None
    assert aside.call(lambda: 7, 10.0, 0) == 7
