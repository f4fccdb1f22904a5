"""What CPython keeps of freed tuples is given back now and then."""

import gc
import sys

import pytest

from stallwatch.node.free_lists import FreeLists, keep_what_is_there


def test_tuples_that_were_freed_are_given_back_each_five_minutes() -> None:
    now = 0.0
    lists = FreeLists(lambda: now)
    gc.collect()
    _ = [tuple(range(number, number + 17)) for number in range(2000)]
    del _
    kept = sys.getallocatedblocks()
    now = 299.0
    lists.give_back()
    assert sys.getallocatedblocks() > kept - 100
    now = 300.0
    lists.give_back()
    assert sys.getallocatedblocks() < kept - 1500


def test_it_is_not_done_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[float] = []
    now = 0.0
    monkeypatch.setattr(gc, "collect", lambda: collected.append(now))
    lists = FreeLists(lambda: now)
    for second in range(1000):
        now = float(second)
        lists.give_back()
    assert collected == [300.0, 600.0, 900.0]


def test_a_tick_is_over_before_its_objects_are_looked_through() -> None:
    before = gc.get_threshold()
    try:
        FreeLists()
        assert gc.get_threshold() == (5000, *before[1:])
    finally:
        gc.set_threshold(*before)


def test_what_a_process_has_for_its_life_is_looked_through_no_more() -> None:
    for_life = [[number] for number in range(1000)]
    try:
        keep_what_is_there()
        assert gc.get_freeze_count() >= len(for_life)
    finally:
        gc.unfreeze()
