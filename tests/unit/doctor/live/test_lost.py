import sys
import threading

from stallwatch.doctor.live.lost import Promise, run_child
from stallwatch.model.reading import Known, Unavailable

WAIT = "import sys; sys.stdin.close(); import time; time.sleep(600)"


def test_a_child_that_answers_is_known() -> None:
    reading = run_child((sys.executable, "-c", "print(1); import sys; sys.exit(3)"), 20)
    assert isinstance(reading, Known)
    assert (reading.value.exit_code, reading.value.stdout) == (3, "1\n")


def test_a_child_that_does_not_answer_is_lost_and_said() -> None:
    reading = run_child((sys.executable, "-c", WAIT), 0.2, what="NVML")
    assert isinstance(reading, Unavailable)
    assert reading.reason == "NVML has not answered for 0.2 s"


def test_a_command_that_is_absent_is_said() -> None:
    reading = run_child(("/absent/python", "-c", ""), 1)
    assert isinstance(reading, Unavailable)
    assert "No such file" in reading.reason


def test_a_promise_gives_everybody_its_one_answer() -> None:
    calls: list[int] = []

    def answer() -> int:
        calls.append(1)
        return 7

    promise = Promise(answer, 5, "x")
    first, second = promise.get(), promise.get()
    assert isinstance(first, Known) and first == second
    assert first.value == 7
    assert calls == [1]


def test_a_promise_that_is_not_kept_in_time_is_unavailable() -> None:
    never = threading.Event()
    reading = Promise(never.wait, 0.05, "DNS").get()
    never.set()
    assert isinstance(reading, Unavailable)
    assert reading.reason == "DNS has not answered for 0.05 s"


def test_what_a_promise_raises_is_its_answer() -> None:
    def fails() -> int:
        raise OSError("no route")

    reading = Promise(fails, 5, "DNS").get()
    assert isinstance(reading, Unavailable)
    assert "OSError: no route" in reading.reason
