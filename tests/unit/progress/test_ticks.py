"""How a rank moves from tick to tick, by the words of its record and the CPU of its main thread."""

from itertools import pairwise
from typing import Unpack

from stallwatch.model.process import ChildProcess
from stallwatch.model.snapshot import GroupCounter, Heartbeat, ProcessSample
from stallwatch.progress.ticks import (
    Ticks,
    TickTimes,
    advanced,
    counts_steps,
    first_seen,
    has_changed_phase,
    pulse_stands,
    unread,
    without_late_time,
)
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import START_NS, HeartbeatFields, heartbeat
from tests.builders.node import process


def beat(**fields: Unpack[HeartbeatFields]) -> Heartbeat:
    return heartbeat(0, **fields)


def at(second: float) -> int:
    return START_NS + int(second * SECOND_NS)


def after(*looks: Heartbeat, processes: dict[int, ProcessSample] | None = None) -> Ticks:
    """A look a second, the first at second 0."""
    ticks = first_seen(looks[0], at(0))
    for second, (old, new) in enumerate(pairwise(looks), 1):
        moment = TickTimes(at(second), at(second - 1), 0)
        ticks = advanced(ticks, old, new, (processes or {}).get(second), moment)
    return ticks


def counted(number: int, *, step: int | None, frame_changes: int | None) -> Heartbeat:
    groups = (GroupCounter("nccl", 0, number, number),)
    return beat(groups=groups, step=step, frame_changes=frame_changes)


def test_a_rank_that_is_met_in_the_middle_of_a_hang_stands_since_its_record_says() -> None:
    known = first_seen(beat(step=7, last_step_ns=at(-90)), at(0))
    assert (known.step_since_ns, known.counters_since_ns, known.phase_since_ns) == (at(-90), at(-90), at(-90))
    assert (known.frames_since_ns, known.pulse_since_ns) == (at(0), at(0))
    for beyond in (beat(step=7, last_step_ns=at(1)), beat(step=7, last_step_ns=None), beat(step=7, last_step_ns=0)):
        assert first_seen(beyond, at(0)).step_since_ns == at(0)
    started = first_seen(beat(step=None, last_step_ns=at(-90)), at(0))
    assert (started.step_since_ns, started.counters_since_ns) == (at(0), at(0))
    saves = first_seen(beat(step=7, last_step_ns=at(-90), phase="save", phase_since_ns=at(-30)), at(0))
    assert (saves.phase_since_ns, saves.steps_since_ns) == (at(-30), at(-30))


def test_a_step_moves_and_is_dated_by_the_record_between_the_looks_that_saw_it() -> None:
    one, two = beat(step=1), beat(step=2, last_step_ns=at(0.4))
    ticks = after(one, two)
    assert (ticks.moved, ticks.stepped, ticks.step_since_ns) == (True, True, at(0.4))
    for last_step_ns in (at(-0.6), at(1.1), None):
        assert after(one, beat(step=2, last_step_ns=last_step_ns)).step_since_ns == at(1)
    assert not after(one, two, two).moved


def test_a_step_between_the_reading_of_a_record_and_its_snapshot_is_dated_by_the_record() -> None:
    """The snapshot waited for a slower sensor: dated by the next one, the last step of a job was a second too young."""
    one, two = beat(step=1, last_step_ns=at(-0.3)), beat(step=2, last_step_ns=at(-0.1))
    assert after(one, two).step_since_ns == at(-0.1)
    assert after(two, beat(step=3, last_step_ns=at(-0.3))).step_since_ns == at(1), "it came before the step before it"


def test_a_phase_is_dated_by_the_record_between_the_looks_that_saw_it() -> None:
    step = beat(step=1)
    assert after(step, beat(step=1, phase="save", phase_since_ns=at(0.4))).phase_since_ns == at(0.4)
    for beyond in (at(-0.6), at(1.1), 0):
        assert after(step, beat(step=1, phase="save", phase_since_ns=beyond)).phase_since_ns == at(1)


def test_counters_of_a_long_step_move_once_they_are_more_than_what_the_step_left() -> None:
    looks = [counted(number, step=3, frame_changes=number) for number in range(5)]
    assert [after(*looks[:count]).moved for count in (2, 3, 4, 5)] == [False, False, True, True]
    assert after(*looks).progress_since_ns(looks[-1]) == at(4)
    assert after(*looks[:3]).progress_since_ns(looks[2]) == at(0)
    without = [counted(number, step=None, frame_changes=number) for number in range(2)]
    assert after(*without).moved, "nobody counts steps: each collective is progress"
    assert after(*looks, counted(5, step=4, frame_changes=5)).counter_changes == 0


def test_counters_that_go_on_while_the_training_thread_stands_are_another_threads() -> None:
    looks = [counted(number, step=None, frame_changes=7) for number in range(6)]
    ticks = after(*looks)
    assert not ticks.moved
    assert ticks.counters_since_ns == at(1), "its frames stood at the look before: they are seen a moment later"
    unknown = [counted(number, step=None, frame_changes=None) for number in range(6)]
    assert after(*unknown).moved, "a hook that does not count frames"


def test_a_phase_moves_when_it_begins_ends_or_begins_anew() -> None:
    none, saves = beat(), beat(phase="save", phase_since_ns=at(1))
    again = beat(phase="save", phase_since_ns=at(2))
    assert [has_changed_phase(*pair) for pair in ((none, saves), (saves, again), (saves, none), (saves, saves))] == [
        True, True, True, False
    ]  # fmt: skip
    assert after(none, saves).phase_since_ns == at(1)
    assert after(none, saves).moved
    assert not after(none, saves, saves).moved


def test_a_pulse_is_seen_and_is_no_progress() -> None:
    ticks = after(beat(pulse_count=1), beat(pulse_count=2))
    assert (ticks.pulsed, ticks.moved, ticks.pulse_since_ns) == (True, False, at(1))
    assert not unread(ticks, process(0), at(2)).pulsed
    assert unread(ticks, process(0), at(2)).pulse_since_ns == at(1)


def test_a_pulse_stands_after_three_seconds_and_not_while_a_dump_keeps_the_gil() -> None:
    assert pulse_stands(at(0), at(3.1), None)
    assert not pulse_stands(at(0), at(2.9), None)
    assert not pulse_stands(at(0), at(60), at(1))
    assert counts_steps(beat(step=1))
    assert not any(map(counts_steps, (None, beat(step=0), beat(step=None))))


def working(ticks_a_second: int, seconds: int, *, child: bool = False, step: int = 3, reaped: int = 0) -> bool:
    """Whether it works while it stands, by a CPU that goes on at this rate."""
    processes = {}
    for second in range(1, seconds + 1):
        used = 7_000 + ticks_a_second * second  # what it had computed before counts for nothing
        children = (ChildProcess(7, "R", "convert", used, reaped_ticks=9_000 + reaped * second),) if child else ()
        processes[second] = process(0, main_thread_cpu_ticks=0 if child else used, children=children)
    looks = [beat(step=step, last_step_ns=at(0))] * (seconds + 1)
    return after(*looks, processes=processes).works(processes[seconds], at(seconds))


def test_what_computes_now_and_then_while_it_stands_works() -> None:
    assert working(100, 5)
    assert working(100, 5, child=True)
    assert working(1, 10), "a hundredth of a core"
    assert not working(0, 10)
    assert not working(100, 4), "it has stood still for two seconds since its step, and three more must tell"


def test_programs_that_a_child_ran_to_their_end_are_work_from_half_a_core_on() -> None:
    assert not working(0, 10, child=True, reaped=9), "a loop that polls by a program"
    assert not working(0, 10, child=True, reaped=49)
    assert working(0, 10, child=True, reaped=50)
    assert working(1, 10, child=True, reaped=9)
    assert not working(0, 4, child=True, reaped=90)


def test_what_moved_or_is_not_read_says_nothing_of_work() -> None:
    assert not Ticks().works(process(0, main_thread_cpu_ticks=900), at(9))
    still = after(*[beat(step=3, last_step_ns=at(0))] * 6, processes={n: process(0) for n in range(1, 6)})
    assert still.still == (at(2), 0, 0)
    assert not still.works(None, at(9))
    moved = advanced(still, beat(step=3), beat(step=4), process(0), TickTimes(at(6), at(5), 0))
    assert moved.still is None
    unseen = advanced(still, beat(step=3), beat(step=3), None, TickTimes(at(6), at(5), 0))
    assert unseen.still is None


STARTS = beat(step=None)


def last_worked(*samples: ProcessSample | None, step: int | None = None, beside: bool = False) -> float:
    """Of samples that are half a minute apart, the first at second 30. `beside`: not counting its training thread."""
    ticks = first_seen(beat(step=step), at(0))
    for number, sample in enumerate(samples, 1):
        moment = TickTimes(at(30 * number), at(30 * number - 1), 0)
        ticks = advanced(ticks, beat(step=step), beat(step=step), sample, moment)
    return ((ticks.worked_beside_ns if beside else ticks.worked_ns) - START_NS) / SECOND_NS


def test_a_start_was_last_at_work_when_any_of_its_threads_computed() -> None:
    assert last_worked(process(0), process(0)) == 0
    assert last_worked(process(0, cpu_ticks=0), process(0, cpu_ticks=149)) == 0, "pulses and polls"
    assert last_worked(process(0, cpu_ticks=0), process(0, cpu_ticks=150)) == 60, "a twentieth of a core"
    assert last_worked(process(0, cpu_ticks=0), process(0, cpu_ticks=150), process(0, cpu_ticks=150)) == 60
    busy = process(0, cpu_ticks=900)
    assert last_worked(busy, busy, busy) == 0, "that is what it did before"


def test_a_start_was_last_at_work_when_what_it_started_computed() -> None:
    def with_child(own: int, reaped: int = 0) -> ProcessSample:
        return process(0, children=(ChildProcess(7, "S", cpu_ticks=own, reaped_ticks=reaped),))

    assert last_worked(with_child(0), with_child(150)) == 60
    assert last_worked(with_child(0), with_child(0, reaped=1400)) == 0, "a loop that polls by a program"
    assert last_worked(with_child(0), with_child(0, reaped=1500)) == 60


def test_a_start_was_last_at_work_when_it_read_or_wrote_more_than_its_hook_writes() -> None:
    most, hooks = 30 * (128 << 10), 30 * (32 << 10)
    assert last_worked(process(0, read_bytes=0), process(0, read_bytes=most)) == 60
    assert last_worked(process(0, write_bytes=0), process(0, write_bytes=most)) == 60
    assert last_worked(process(0, write_bytes=0), process(0, write_bytes=hooks)) == 0


def test_what_a_training_thread_takes_that_spins_is_told_apart() -> None:
    """In the creation of a communicator all ranks spin, for ever where it hangs: it was taken for work."""
    idle, spins = process(0), process(0, cpu_ticks=3000, main_thread_cpu_ticks=3000)
    assert last_worked(idle, spins) == 60
    assert last_worked(idle, spins, beside=True) == 0
    assert last_worked(idle, process(0, cpu_ticks=3149, main_thread_cpu_ticks=3000), beside=True) == 0
    assert last_worked(idle, process(0, cpu_ticks=3150, main_thread_cpu_ticks=3000), beside=True) == 60
    assert last_worked(idle, process(0, read_bytes=30 * (128 << 10)), beside=True) == 60
    assert last_worked(process(0), None, process(0), beside=True) == 60


def test_programs_that_a_start_runs_to_their_end_are_its_work() -> None:
    assert last_worked(process(0), process(0, reaped_ticks=1500)) == 60
    assert last_worked(process(0), process(0, reaped_ticks=1400)) == 0, "a loop that polls by a program"


def test_a_start_whose_record_cannot_be_read_is_asked_of_its_process() -> None:
    ticks = first_seen(STARTS, at(0))
    for number, used in ((1, 0), (2, 900)):
        ticks = unread(ticks, process(0, cpu_ticks=used), at(30 * number))
    assert (ticks.worked_ns, ticks.worked_beside_ns) == (at(60), at(60))
    assert unread(ticks, None, at(61)).worked_ns == at(61)


def test_a_start_that_cannot_be_seen_may_be_at_work() -> None:
    assert last_worked(process(0), None, process(0)) == 60
    assert last_worked(process(0), process(0), step=3) == 0, "nobody asks it of one that steps"
    assert last_worked(process(0, cpu_ticks=0), process(0, cpu_ticks=900), step=3) == 0


def test_what_a_start_does_is_asked_of_whole_half_minutes() -> None:
    ticks = first_seen(STARTS, at(0))
    for second in range(1, 31):
        moment = TickTimes(at(second), at(second - 1), 0)
        ticks = advanced(ticks, STARTS, STARTS, process(0, cpu_ticks=100 * second), moment)
    assert ticks.worked_ns == at(0)
    ticks = advanced(ticks, STARTS, STARTS, process(0, cpu_ticks=3100), TickTimes(at(31), at(30), 0))
    assert ticks.worked_ns == at(31)


def test_time_in_which_we_were_late_is_not_counted() -> None:
    ticks = Ticks(at(1), at(2), 3, at(4), at(5), at(6), worked_ns=at(5), worked_beside_ns=at(3))
    later = without_late_time(ticks, at(10), 3 * SECOND_NS)
    assert (later.step_since_ns, later.counters_since_ns, later.counter_changes) == (at(4), at(5), 3)
    assert (later.phase_since_ns, later.frames_since_ns, later.pulse_since_ns) == (at(7), at(8), at(9))
    most = without_late_time(ticks, at(10), 20 * SECOND_NS)
    assert (later.worked_ns, later.worked_beside_ns) == (at(8), at(6))
    assert most == Ticks(at(10), at(10), 3, at(10), at(10), at(10), worked_ns=at(10), worked_beside_ns=at(10))
    assert without_late_time(ticks, at(10), 0) is ticks
