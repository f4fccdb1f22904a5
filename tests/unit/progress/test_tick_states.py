"""What a rank did at each tick, by its record alone; what the page draws of it: tests/unit/outputs/test_timeline.py."""

from typing import Unpack

from stallwatch.model.snapshot import GroupCounter, Heartbeat
from stallwatch.progress.tick_states import TickState, tick_states
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import HeartbeatFields, heartbeat


def beat(**fields: Unpack[HeartbeatFields]) -> Heartbeat:
    return heartbeat(0, **fields)


def states(*beats: Heartbeat | None) -> list[TickState]:
    return tick_states(beats, [False] * len(beats), [tick * SECOND_NS for tick in range(len(beats))])


def test_who_has_operations_pending_is_in_them_unless_its_phase_says_more() -> None:
    groups = (GroupCounter("gloo", 0, 6, 6), GroupCounter("nccl", 1, 4, 3))
    pending = [beat(step=2, pulse_count=1 + tick, groups=groups) for tick in range(2)]
    assert states(beat(step=1), *pending)[1:] == ["stepped", "pending"]
    assert states(*pending, beat(step=2, pulse_count=9, phase="eval", groups=groups))[2] == "in_phase"


def test_a_dump_that_keeps_the_pulse_from_beating_is_no_hook_that_stands() -> None:
    still = [beat(step=1, pulse_count=7)] * 6
    assert states(*still)[-1] == "hook_stands"
    assert states(*[beat(step=1, pulse_count=7, dump_started_ns=1)] * 6)[-1] == "idle"


def test_a_record_that_was_not_read_is_unknown_and_what_comes_after_it_begins_anew() -> None:
    assert states(beat(step=1), None, beat(step=4), beat(step=5)) == ["idle", "unknown", "stepped", "stepped"]
