import threading

from stallwatch.node.aside import Aside


def test_a_call_that_hangs_is_waited_for_once_and_no_second_joins_it() -> None:
    answers, calls = threading.Event(), threading.Semaphore(0)

    def hanging() -> str:
        calls.release()
        answers.wait(60)
        return "late"

    aside = Aside[str](0.01)
    assert [aside.call(hanging, "nothing") for _ in range(3)] == ["nothing"] * 3
    assert calls.acquire(timeout=30)
    assert not calls.acquire(blocking=False)
    answers.set()


def test_what_comes_in_time_is_the_answer() -> None:
    assert Aside[int](60.0).call(lambda: 7, 0) == 7
