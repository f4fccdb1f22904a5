"""The thread that steps, and its frames as the pulse counts them."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stallwatch.hook.beat import step_counter
from stallwatch.hook.training_thread import TrainingThread


@contextmanager
def stepping_elsewhere() -> Iterator[tuple[TrainingThread, threading.Thread, threading.Event]]:
    """A thread that makes one step and then stands in a wait until it is told."""
    step, _, stepper = step_counter()
    stands, end = threading.Event(), threading.Event()

    def train() -> None:
        step()
        stands.set()
        end.wait()

    thread = threading.Thread(target=train)
    thread.start()
    stands.wait()
    try:
        yield TrainingThread(stepper), thread, end
    finally:
        end.set()
        thread.join()


def test_without_steps_the_main_thread_trains() -> None:
    main = threading.main_thread()
    assert TrainingThread(step_counter()[2]).ids() == (main.ident, main.native_id)


def test_whoever_steps_trains() -> None:
    with stepping_elsewhere() as (training, thread, _):
        assert training.ids() == (thread.ident, thread.native_id)


def test_a_job_that_goes_on_in_another_thread_is_followed() -> None:
    step, _, stepper = step_counter()
    step()
    main = threading.main_thread()
    assert stepper() == (main.ident, main.native_id)
    other = threading.Thread(target=step)
    other.start()
    other.join()
    assert stepper() == (other.ident, other.native_id)


def test_a_thread_that_stands_shows_no_change_whatever_others_do() -> None:
    with stepping_elsewhere() as (training, thread, end):
        training.look()
        while not _stands_in_wait(training):
            pass
        before = training.frame_changes
        for _ in range(20):
            training.look()
        assert training.frame_changes == before
        end.set()
        thread.join()
        training.look()
        assert training.frame_changes == before + 1


def _stands_in_wait(training: TrainingThread) -> bool:
    """Whether it has come to rest: the event is set a moment before."""
    before = training.frame_changes
    for _ in range(1000):
        training.look()
    return training.frame_changes == before


def test_a_thread_that_goes_on_is_seen_to_change() -> None:
    training = TrainingThread(step_counter()[2])
    training.look()
    first = training.frame_changes
    training.look()  # another line of this thread, which is the main one
    assert training.frame_changes == first + 1


def test_who_steps_moves_and_is_not_asked_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    training = TrainingThread(step_counter()[2])
    with monkeypatch.context() as patch:
        patch.delattr(sys, "_current_frames")
        for steps in (1, 2, 20):
            training.look(steps)
    assert training.frame_changes == 3


def test_who_stands_since_its_last_step_has_not_moved_since() -> None:
    with stepping_elsewhere() as (training, thread, end):
        while not _stands_in_wait(training):
            pass
        before = training.frame_changes
        for _ in range(20):
            training.look(1)
        assert training.frame_changes == before + 1  # the step
        end.set()
        thread.join()
        training.look(1)
        assert training.frame_changes == before + 2
