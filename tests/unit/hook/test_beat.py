"""What a training loop calls: counting, phases, and the object that does nothing."""

import copy
import pickle
import threading
from time import monotonic_ns

import pytest

from stallwatch.hook.beat import OFF, Beat, Phases, step_counter
from stallwatch.hook.layout import RING_SLOTS
from stallwatch.hook.phase_switch import PhaseSwitch


def test_a_step_is_counted_with_its_time() -> None:
    step, read, _ = step_counter()
    before = monotonic_ns()
    step()
    step()
    count, times = read(after=0)
    assert count == 2
    assert before <= times[0] <= times[1] <= monotonic_ns()
    assert read() == (2, ())
    assert read(after=1) == (2, times[1:])
    assert read(after=2) == (2, ())


def test_the_ring_goes_round() -> None:
    step, read, _ = step_counter()
    taken: list[int] = []
    for number in range(3 * RING_SLOTS):
        count, new = read(after=number - number % 5)
        assert (count, len(new)) == (number, number % 5)
        step()
        taken.append(read(after=number)[1][0])
        assert read(after=0) == (number + 1, taken[1 - RING_SLOTS :])


def test_counter_and_ring_belong_together_while_steps_go_on() -> None:
    step, read, _ = step_counter()
    stop = threading.Event()

    def train() -> None:
        while not stop.is_set():
            step()

    thread = threading.Thread(target=train)
    thread.start()
    try:
        for _ in range(2000):
            count, times = read(after=0)
            assert len(times) == min(count, RING_SLOTS - 1)
            assert list(times) == sorted(times)
    finally:
        stop.set()
        thread.join()


def test_phases_nest_and_return() -> None:
    phases = Phases(attached_ns=5)
    beat = Beat(lambda: None, phases, lambda: True)
    assert phases.current() == ("", 5)
    with beat.phase("evaluation"):
        outer = phases.current()
        with beat.phase("checkpoint"):
            assert phases.current()[0] == "checkpoint"
        assert phases.current() == outer
    name, since_ns = phases.current()
    assert (name, since_ns > 5) == ("", True)


def test_phases_of_two_threads_leave_nothing_behind() -> None:
    phases = Phases(0)
    beat = Beat(lambda: None, phases, lambda: True)
    first, second = beat.phase("checkpoint"), beat.phase("evaluation")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert phases.current()[0] == "evaluation"
    second.__exit__(None, None, None)
    assert phases.current()[0] == ""


def test_an_exception_passes_through_a_phase_and_ends_it() -> None:
    phases = Phases(0)
    beat = Beat(lambda: None, phases, lambda: True)
    with pytest.raises(KeyError), beat.phase("checkpoint"):
        raise KeyError
    assert phases.current()[0] == ""


def test_misuse_does_no_harm() -> None:
    beat = Beat(lambda: None, Phases(0), lambda: True)
    phase = beat.phase("x")
    phase.__exit__(None, None, None)
    with beat.phase(17):  # type: ignore[arg-type]
        pass


def test_off_is_false_and_does_nothing() -> None:
    assert not OFF
    OFF.step()
    with OFF.phase("checkpoint"):
        pass
    with pytest.raises(KeyError), OFF.phase("checkpoint"):
        raise KeyError


def test_a_beat_may_sit_in_what_a_job_copies_or_sends_to_a_worker() -> None:
    beat = Beat(lambda: None, Phases(0), lambda: True)
    assert copy.deepcopy({"beat": beat})["beat"] is beat
    assert copy.copy(beat) is beat
    assert pickle.loads(pickle.dumps(beat)) is OFF  # noqa: TID251 - our own object


def test_a_switch_holds_one_phase_at_most() -> None:
    phases = Phases(0)
    switch = PhaseSwitch(Beat(lambda: None, phases, lambda: True))
    switch.become("validation")
    since = phases.current()
    switch.become("validation")
    assert phases.current() == since
    switch.become("checkpoint")
    assert phases.current()[0] == "checkpoint"
    switch.become("")
    assert phases.current()[0] == ""
