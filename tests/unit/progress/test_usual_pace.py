"""The pace of a main thread: how often it is woken and how much it computes while it trains."""

import pytest

from stallwatch.progress.usual_pace import UsualPace, paced

SECOND = 1_000_000_000
Stretch = tuple[int, int | None, float, bool]  # seconds, wakes a second, share of a core, whether it works
TRAINS: Stretch = (20, 30, 0.3, True)


def after(*stretches: Stretch) -> UsualPace:
    """A tick a second."""
    pace, second = UsualPace(), 0
    for seconds, wakes, share, works in stretches:
        for _ in range(seconds):
            second += 1
            pace = paced(pace, wakes, int(share * SECOND), second * SECOND, SECOND, works=works)
    return pace


def kept(*stretches: Stretch, before: int = 1_000) -> float | None:
    kept_ns = after(*stretches).kept_since(before * SECOND)
    return None if kept_ns is None else kept_ns / SECOND


def test_a_pace_is_kept_until_it_stands() -> None:
    """Measured: 16 to 40 wakes a second in training; none in a collective."""
    assert kept(TRAINS) == 20
    assert kept(TRAINS, (30, 0, 0.0, False)) == 20
    assert kept(TRAINS, (30, 0, 0.0, False), (4, 28, 0.25, True)) == 20
    assert kept(TRAINS, (30, 0, 0.0, False), (6, 28, 0.25, True)) == 56, "it goes on"


@pytest.mark.parametrize(
    "waits",
    [(60, 10, 0.01, False), (60, 100, 0.04, True), (60, 0, 1.0, True), (60, 30, 0.02, False), (60, 30, 1.0, True)],
    ids=["polls", "polls as NCCL does", "spins", "is woken as often", "computes"],
)
def test_who_polls_or_spins_keeps_no_pace_of_before(waits: Stretch) -> None:
    pace = after(TRAINS, waits)
    assert pace.kept_since(20 * SECOND) in (None, 20 * SECOND)


def test_less_processor_time_than_usual_is_its_pace_all_the_same() -> None:
    assert kept(TRAINS, (20, 20, 0.1, False)) == 40


def test_a_new_pace_is_known_after_some_windows_in_a_row() -> None:
    assert kept((60, 3, 1.0, True)) is None, "a start: who computes all the time has no pace"
    assert kept(TRAINS, (4, 90, 0.9, True)) == 20
    assert kept(TRAINS, (6, 90, 0.9, True)) == 26
    assert kept(TRAINS, (6, 90, 0.9, True), before=25) is None, "it is new"


def test_what_is_not_known_to_work_is_no_pace() -> None:
    assert kept((60, 10, 0.01, False)) is None
    assert kept((60, None, 0.3, True)) is None


def test_a_blip_does_not_make_a_pace() -> None:
    blips: list[Stretch] = [(1, 30, 0.3, True), (9, 0, 0.0, False)] * 20
    assert kept(*blips) is None
    assert kept(TRAINS, (9, 0, 0.0, False), *blips) == 20
