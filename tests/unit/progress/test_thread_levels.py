"""Whether the threads that train stand, by how long each was on a processor in each second."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from stallwatch.model.snapshot import ThreadSample
from stallwatch.progress.thread_levels import ThreadLevel, leveled, passed_over, training_stands

MAIN, LOOP, GROUP, BESIDE, SIDE_GROUP = 1, 2, 3, 4, 5
COMMUNICATES = {GROUP, SIDE_GROUP}

Milliseconds = Callable[[int], float]  # on a processor, by the second


TIDS = {"main": MAIN, "loop": LOOP, "group": GROUP, "beside": BESIDE, "side_group": SIDE_GROUP}


def run(seconds: int, **threads: Milliseconds) -> tuple[ThreadLevel, ...]:
    """So many seconds of some threads."""
    return played(seconds, threads)


def played(
    seconds: int,
    threads: Mapping[str, Milliseconds],
    *,
    has_gpu: bool = False,
    wakes: Mapping[int, Milliseconds] | None = None,
) -> tuple[ThreadLevel, ...]:
    tids = {name: TIDS[name] for name in threads}
    run_ns, slept = dict.fromkeys(threads, 0.0), dict.fromkeys(threads, 0.0)
    levels: tuple[ThreadLevel, ...] = ()
    for second in range(seconds):
        for name, milliseconds in threads.items():
            run_ns[name] += milliseconds(second) * 1e6
            slept[name] += (wakes or {}).get(tids[name], always(100))(second)
        samples = [
            ThreadSample(tid, int(run_ns[name]), tid in COMMUNICATES, int(slept[name])) for name, tid in tids.items()
        ]
        levels = leveled(levels, samples, 1.0, has_gpu=has_gpu)
    return levels


def always(milliseconds: float) -> Milliseconds:
    return lambda _: milliseconds


def until(last: int, milliseconds: float, after: float = 0.0) -> Milliseconds:
    return lambda second: milliseconds if second < last else after


def between(first: int, last: int, milliseconds: float) -> Milliseconds:
    return lambda second: milliseconds if first <= second < last else 0.0


def in_turn(every: int, milliseconds: float, last: int = 10_000) -> Milliseconds:
    return lambda second: milliseconds if second % every == 0 and second < last else 0.0


def test_nothing_is_known_of_threads_that_were_not_read_or_only_just_seen() -> None:
    assert training_stands(()) is None
    assert training_stands(run(1, main=always(8))) is None
    assert training_stands(run(10, main=always(8))) is None
    assert training_stands(run(11, main=always(8))) is False


def test_a_main_thread_that_does_little_trains_and_stands_however_much_goes_on_beside() -> None:
    beside = {"beside": always(80), "side_group": always(20)}
    trained = {"main": until(20, 8), "group": until(20, 2.5), **beside}
    assert training_stands(run(20, **trained)) is False
    assert training_stands(run(21, **trained)) is True
    assert training_stands(run(200, **trained)) is True


def test_a_poll_is_no_training() -> None:
    assert training_stands(run(60, main=until(20, 8, 0.7), beside=always(80))) is True
    assert training_stands(run(90, main=until(40, 8, 3.0), beside=always(80))) is True, "a hundred times a second"
    assert training_stands(run(60, main=always(0.7), beside=always(80))) is not True, "who trains is not known"


def test_training_that_slows_down_or_does_less_goes_on() -> None:
    assert training_stands(run(21, main=until(20, 20, 9))) is False
    assert training_stands(run(40, main=until(20, 20, 5.5))) is False, "what is usual has become less"
    assert training_stands(run(40, main=until(5, 1000, 8))) is False, "the start is no measure"


def test_steps_of_some_seconds_are_steady_and_what_comes_seldom_is_not() -> None:
    assert training_stands(run(70, main=in_turn(4, 8), beside=always(80))) is True, "it rests at this tick"
    assert training_stands(run(69, main=in_turn(4, 8), beside=always(80))) is False
    assert training_stands(run(200, main=in_turn(9, 8), beside=always(80))) is not True


def test_a_main_thread_that_ends_its_start_while_communication_flows_does_not_train() -> None:
    """The loop runs in a thread: the main one waits for its results."""
    loop, group = between(20, 200, 8), between(20, 200, 2.5)
    for seconds in (32, 60, 190):
        assert training_stands(run(seconds, main=until(20, 8), loop=loop, group=group)) is False
    assert training_stands(run(60, main=until(20, 8), loop=between(20, 40, 8), group=between(20, 40, 2.5))) is True


def test_communication_of_others_hides_no_main_thread_that_stands() -> None:
    """A keep-alive that meets far more often than training does, in a group of its own or in training's."""
    assert training_stands(run(60, main=until(20, 8), loop=always(8), group=always(2.5))) is True


def test_a_thread_trains_where_communication_stands_with_it() -> None:
    beside = {"beside": always(80), "side_group": always(20)}
    trained = {"main": always(0.1), "loop": until(20, 8), "group": until(20, 2.5), **beside}
    assert training_stands(run(20, **trained)) is False
    assert training_stands(run(30, **trained)) is True


def test_a_thread_that_ends_while_communication_flows_did_not_train() -> None:
    assert training_stands(run(60, main=always(0), loop=always(8), group=always(2.5), beside=until(40, 60))) is False


def test_a_loop_that_evaluates_has_not_stopped() -> None:
    """Its communication stands, and it does not."""
    assert training_stands(run(60, main=always(0), loop=until(40, 8, 900), group=until(40, 2.5))) is not True
    other = {"beside": until(40, 0, 900)}
    stands = {"main": always(0), "loop": until(40, 8), "group": until(40, 2.5)}
    for seconds in (42, 60, 120):
        assert training_stands(run(seconds, **stands, **other)) is None, "another has begun to work, perhaps for it"
    assert training_stands(run(60, **stands)) is True


def test_under_nccl_who_does_most_trains() -> None:
    assert (
        training_stands(played(60, {"main": always(0), "loop": until(40, 80), "beside": always(60)}, has_gpu=True))
        is True
    )
    assert (
        training_stands(played(60, {"main": always(0), "loop": always(80), "beside": until(40, 60)}, has_gpu=True))
        is False
    )


@pytest.mark.parametrize(("has_gpu", "woke", "expected"), [(True, 4, True), (True, 60, False), (False, 4, False)])
def test_a_thread_that_spins_for_its_gpu_stands(has_gpu: bool, woke: int, expected: bool) -> None:
    threads = {"main": always(0), "loop": until(20, 80, 1000)}
    waits = played(60, threads, has_gpu=has_gpu, wakes={LOOP: until(20, 60, woke)})
    assert training_stands(waits) is expected


def test_a_tick_that_says_nothing_is_passed_over() -> None:
    trained = run(20, main=always(8))
    later = [ThreadSample(MAIN, 10**12)]
    passed = passed_over(trained, later)
    assert (passed[0].run_ns, passed[0].usual) == (10**12, trained[0].usual)
    assert training_stands(leveled(passed, [ThreadSample(MAIN, 10**12)], 1.0, has_gpu=False)) is True
    assert passed_over(trained, ()) == ()


def test_a_thread_that_is_new_or_gone_is_no_witness() -> None:
    trained = run(20, main=always(8), beside=always(80))
    samples: Sequence[ThreadSample] = [ThreadSample(MAIN, trained[0].run_ns), ThreadSample(9, 10**10)]
    levels = leveled(trained, samples, 1.0, has_gpu=False)
    assert [level.tid for level in levels] == [MAIN, 9]
    assert (levels[1].worked, training_stands(levels)) == (0, True)
