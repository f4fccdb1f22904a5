import msgspec

from stallwatch.config_sections import StallSection
from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.detectors.init import InitDetector, InitState
from stallwatch.model.snapshot import GroupCounter, NodeSnapshot, ProcessEnd, RankSample
from tests.builders.heartbeat import START_NS, heartbeat
from tests.builders.node import sample, snapshot
from tests.builders.running_job import found, run

LOOK = StallSection().start_seconds


def starting(arrivals: dict[int, float], seconds: float, hooked: bool = True) -> list[NodeSnapshot]:
    shots = []
    for second in range(int(seconds) + 1):
        here = [rank for rank, arrival in arrivals.items() if second >= arrival]
        shots.append(snapshot(second, [sample(r, heartbeat(r, pulse_count=second) if hooked else None) for r in here]))
    return shots


def test_ranks_that_are_here_and_do_not_begin_are_looked_at() -> None:
    findings = found(run(starting({0: 0, 1: 0, 3: 0}, 20)), "init")
    assert findings[0][0] == LOOK
    assert findings[0][1].ranks == (0, 1, 3)
    assert "3 of 4 ranks" in findings[0][1].reason
    assert (
        next(second for second, finding in findings if finding.stage == "confirmed")
        == LOOK + StallSection().second_look_seconds
    )


def test_a_late_arrival_begins_the_time_anew() -> None:
    assert found(run(starting({0: 0, 1: 0, 2: 3, 3: 4}, 30)), "init")[0][0] == 4 + LOOK


def test_collectives_that_move_are_a_start_that_moves() -> None:
    def moving(shot: NodeSnapshot, second: int) -> NodeSnapshot:
        beats = [heartbeat(r, groups=(GroupCounter("gloo", 0, second, second),)) for r in range(4)]
        return msgspec.structs.replace(shot, ranks=tuple(sample(r, beats[r]) for r in range(4)))

    shots = [moving(snapshot(second, []), second) for second in range(30)]
    assert not found(run(shots), "init")


def test_a_job_without_hooks_says_nothing_about_its_start() -> None:
    assert not found(run(starting({0: 0, 1: 0}, 30, hooked=False)), "init")


def test_a_job_that_steps_is_past_its_start() -> None:
    def stepping(rank: RankSample, second: int) -> RankSample:
        return sample(rank.rank, heartbeat(rank.rank, step=3, last_step_ns=1))

    shots = [
        msgspec.structs.replace(s, ranks=tuple(stepping(r, 0) for r in s.ranks)) for s in starting({0: 0, 1: 0}, 30)
    ]
    assert not found(run(shots), "init")


def test_who_counts_at_a_start() -> None:
    """One that has ended is a story of its own; one without a hook is here; one that cannot be read counts only as long
    as its job is suspected already."""
    beat, end = heartbeat(0), ProcessEnd(START_NS, 1, None, "zombie", None)
    hooked, hidden = (RankHistory(sample(0, beat), START_NS, beat, readable=can) for can in (True, False))
    without, ended = RankHistory(sample(1, None), START_NS), RankHistory(sample(1, None, end=end), START_NS)
    detector = InitDetector(StallSection())

    def step(*ranks: RankHistory, state: InitState | None = None, second: float = LOOK) -> list[tuple[str, object]]:
        after, findings = detector.step(state or detector.start(), NodeHistory(snapshot(second, []), ranks))
        return [(finding.stage, after) for finding in findings]

    assert step(hooked, without)
    assert not step(hooked, ended)
    assert not step(hidden, without)
    ((_, suspected),) = step(hooked, without)
    assert isinstance(suspected, InitState)
    assert step(hidden, without, state=suspected, second=LOOK + 1) == [("suspect", suspected)]
    assert step(hidden, without, state=suspected, second=LOOK + 2) == [("confirmed", suspected)]
    assert not step(without, state=suspected, second=LOOK + 2), "a job without hooks says nothing about its start"
