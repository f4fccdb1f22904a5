"""One tick of the detector of stalls: which ranks stand, and in which words that is said."""

from typing import Any

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.config_sections import StallSection
from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.detectors.limits import Times, learn
from stallwatch.detectors.stall import StallDetector, StallState
from stallwatch.model.finding import Finding
from stallwatch.model.snapshot import GroupCounter
from stallwatch.progress.ticks import Ticks
from tests.builders.heartbeat import START_NS, HeartbeatFields, heartbeat
from tests.builders.node import sample, snapshot

STALL = StallSection()
NOW = 100.0
SECOND_STEPS = learn(Times(), (SECOND_NS,) * 8)  # a limit of 5 s, the floor


def ago(seconds: float) -> int:
    return START_NS + int((NOW - seconds) * SECOND_NS)


def rank(number: int, age: float, *, counted: float | None = None, readable: bool = True, **words: Any) -> RankHistory:
    """One whose step is `age` seconds old; `counted`: it has made calls since, the last so long ago."""
    fields: HeartbeatFields = {"step": 50}
    fields.update(words)  # type: ignore[typeddict-item]
    beat = heartbeat(number, **fields)
    since_ns, changes = (ago(age), 0) if counted is None else (ago(counted), 9)
    ticks = Ticks(step_since_ns=ago(age), counters_since_ns=since_ns, counter_changes=changes)
    return RankHistory(sample(number, beat), START_NS, beat, readable=readable, ticks=ticks, step_times=SECOND_STEPS)


def step(*ranks: RankHistory, state: StallState | None = None, now: float = NOW) -> tuple[StallState, list[Finding]]:
    detector = StallDetector(STALL)
    after, findings = detector.step(state or detector.start(), NodeHistory(snapshot(now, []), ranks))
    return after, list(findings)


def test_all_that_stand_are_told_by_the_last_that_moved_its_step_and_its_phase() -> None:
    _, (finding,) = step(rank(0, 9), rank(1, 6, step=70))
    assert (finding.ranks, finding.step, finding.stage) == ((0, 1), 70, "suspect")
    assert (finding.since_ns, finding.due_ns) == (ago(6), ago(-STALL.second_look_seconds))
    said = "no rank here moves; the last, rank 1, has stood at step 70 for 6.0 s; its limit is 5.0 s"
    assert finding.reason.startswith(said)
    _, (finding,) = step(rank(0, 9), rank(1, 6, step=70, phase="eval"))
    assert "has stood at step 70 in phase eval for 6.0 s" in finding.reason
    _, (finding,) = step(rank(0, 80), rank(1, 70, step=None, groups=(GroupCounter("gloo", 0, 4, 4),)))
    assert (finding.ranks, finding.step) == ((0, 1), None)
    assert "the last, rank 1, has stood for 70.0 s" in finding.reason


def test_a_tick_that_comes_a_moment_early_is_no_tick_later() -> None:
    assert step(rank(0, 4.95))[1]
    assert not step(rank(0, 4.85))[1]
    # The calls of the one go on: of another thread, or of a loop that leads nowhere.
    assert step(rank(0, 4.95), rank(1, 4.95, counted=0.5))[1]
    assert not step(rank(0, 4.95), rank(1, 4.85, counted=0.5))[1]


def test_while_some_move_the_others_are_left_behind_only_after_their_time() -> None:
    """Steps stand of all: their calls move nobody. Where those of one go on, it is by what stands for long."""
    steps_stand = step(rank(0, 9), rank(1, 6, counted=0.5))[1]
    assert [(one.ranks, one.reason.startswith("no rank here moves")) for one in steps_stand] == [((0,), True)]
    assert not step(rank(0, 9), rank(1, 1))[1]
    assert not step(rank(0, 29.9), rank(1, 1))[1]
    (behind,) = step(rank(0, 30), rank(1, 1))[1]
    assert behind.ranks == (0,)
    assert behind.reason.startswith("some ranks stand still while others move; the last, rank 0,")
    assert not step(rank(0, 90, step=0, groups=(GroupCounter("gloo", 0, 4, 4),)), rank(1, 1))[1], "it has not begun"


def test_what_is_suspected_lasts_while_its_ranks_cannot_be_read_and_is_confirmed_by_the_second_look() -> None:
    assert not step(rank(0, 6, readable=False))[1]
    assert not step(rank(0, 6, dump_started_ns=ago(1)), rank(1, 6))[1], "our own dump holds the GIL"
    suspected, _ = step(rank(0, 6), rank(1, 6))
    for later, stage in ((1.0, "suspect"), (STALL.second_look_seconds, "confirmed")):
        hidden = rank(0, 6, readable=False), rank(1, 6, dump_started_ns=ago(0))
        state, (finding,) = step(*hidden, state=suspected, now=NOW + later)
        assert (finding.stage, finding.ranks, state) == (stage, (0, 1), suspected)


def test_a_suspicion_lasts_while_nobody_moves_whatever_becomes_of_limits() -> None:
    """At load, ranks' own limits differ, and the job's is that of most of those that can be read; one that could not be
    read at the tick of the suspicion had it look away three seconds later, and what was seen was thrown away."""
    slow = learn(Times(), (2 * SECOND_NS,) * 8)  # a limit of 8 s
    quick, late = [rank(0, 6), rank(1, 6)], [msgspec.structs.replace(rank(n, 6), step_times=slow) for n in (2, 3)]
    assert not step(*quick, *late)[1], "its limit is that of most"
    suspected, (finding,) = step(*quick, late[0], msgspec.structs.replace(late[1], readable=False))
    assert finding.ranks == (0, 1, 2)
    for later, stage in ((1.0, "suspect"), (STALL.second_look_seconds, "confirmed")):
        state, (finding,) = step(*quick, *late, state=suspected, now=NOW + later)
        assert (finding.stage, finding.ranks, state) == (stage, (0, 1, 2, 3), suspected)
    moved = msgspec.structs.replace(rank(3, -0.5), step_times=slow)
    assert not step(*quick, late[0], moved, state=suspected, now=NOW + 1)[1]


def test_a_job_at_its_start_and_a_detector_that_is_turned_off_find_nothing() -> None:
    assert not step(rank(0, 90, step=0, groups=(GroupCounter("gloo", 0, 4, 4),)))[1]
    detector = StallDetector(msgspec.structs.replace(STALL, enabled=False))
    assert detector.step(detector.start(), NodeHistory(snapshot(NOW, []), (rank(0, 90),))) == (StallState(), ())
