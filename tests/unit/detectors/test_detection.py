import msgspec
import pytest

from stallwatch.config import Config
from stallwatch.detectors.detection import Detection, DetectionState, Detector, detectors
from stallwatch.detectors.history import NodeHistory
from stallwatch.model.finding import Finding
from stallwatch.model.process import ChildProcess
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import GroupCounter, NodeSnapshot, RankSample
from stallwatch.replay.playing import detect
from tests.builders.heartbeat import START_NS
from tests.builders.node import process, sample, snapshot, with_beat
from tests.builders.running_job import found, four, job_run, run


class Broken:
    name = "broken"

    def start(self) -> int:
        return 0

    def step(self, state: int, seen: NodeHistory) -> tuple[int, tuple[Finding, ...]]:
        raise KeyError("rank 3")


def test_a_bug_in_one_detector_is_reported_and_the_others_go_on() -> None:
    broken: Detector[int] = Broken()
    detection, state = Detection(Config(), (broken, *detectors(Config()))), DetectionState()
    stalls = []
    for shot in job_run(four(stuck_at=20.3), 40):
        state, detected = detection.step(state, shot)
        stalls += [f for f in detected.findings if f.detector == "stall"]
        assert [error.detector for error in detected.errors] == ["broken"]
        assert "rank 3" in detected.errors[0].error
    assert stalls


def test_names_of_detectors_are_unique() -> None:
    names = [detector.name for detector in detectors(Config())]
    assert len(names) == len(set(names))


def test_a_timeline_on_disk_replays_to_the_same_findings() -> None:
    shots = job_run(four(stuck_at=20.3), 40)
    lines = [msgspec.json.encode(shot) for shot in shots]
    live = [detected for _, detected in detect(Config(), shots)]
    kept = (msgspec.json.decode(line, type=NodeSnapshot) for line in lines)
    replayed = [detected for _, detected in detect(Config(), kept)]
    assert live == replayed
    assert any(one.findings for one in replayed)


def test_the_timeline_of_an_incident_alone_is_enough() -> None:
    whole = run(job_run(four(stuck_at=100.3), 115))
    tail = run(job_run(four(stuck_at=100.3), 115, first_second=55))
    assert [second for second, _ in found(whole, "stall")] == [second for second, _ in found(tail, "stall")]


def test_the_state_is_not_changed_in_place() -> None:
    detection, shots = Detection(Config()), job_run(four(stuck_at=5.3), 12)
    state = DetectionState()
    for shot in shots[:-1]:
        state, _ = detection.step(state, shot)
    before = msgspec.json.encode(state)
    first = detection.step(state, shots[-1])[1]
    assert msgspec.json.encode(state) == before
    assert detection.step(state, shots[-1])[1] == first


def views_at(second: float, shots: list[NodeSnapshot]) -> dict[int, str]:
    detected = next(one for at, one in run(shots) if at == second)
    return {view.rank: view.state for view in detected.ranks}


def test_views_say_what_ranks_do() -> None:
    shots = job_run(four(stuck_at=20.3), 40)
    assert set(views_at(10, shots).values()) == {"stepping"}
    assert set(views_at(24, shots).values()) == {"waiting"}
    assert set(views_at(30, shots).values()) == {"waiting"}  # who stands in a collective waits, however long


def test_who_stands_and_waits_in_no_collective_is_the_suspect_one() -> None:
    def edit(second: float, rank: RankSample) -> RankSample:
        absent = second > 20.3 and rank.rank == 2
        return with_beat(rank, groups=(GroupCounter("gloo", 0, 406, 406),)) if absent else rank

    shots = job_run(four(stuck_at=20.3), 40, edit=edit)
    assert set(views_at(10, shots).values()) == {"stepping"}
    assert views_at(30, shots) == {0: "waiting", 1: "waiting", 2: "suspect", 3: "waiting"}


def test_views_carry_the_learned_limit_and_its_reason() -> None:
    detected = run(job_run(four(), 10))[-1][1]
    view = detected.ranks[0]
    assert view.limit_seconds == 5.0
    assert "percentile" in view.limit_reason
    assert view.step_seconds == pytest.approx(0.05)
    assert view.beat_age_seconds == 0
    early = run(job_run(four(step_seconds=10), 5))[-1][1].ranks[0]
    assert early.limit_seconds is None


def test_ranks_without_a_hook_are_unknown_and_have_no_ages() -> None:
    shots = [msgspec.structs.replace(snapshot(s, []), ranks=(bare(0), bare(1))) for s in range(20)]
    view = run(shots)[-1][1].ranks[0]
    assert view.state == "unknown"
    assert view.beat_age_seconds is None
    assert view.pulse_age_seconds is None


def test_of_a_rank_without_a_hook_it_is_said_whether_it_was_seen_to_work() -> None:
    def reason_at(second: int) -> str:
        worked = [
            snapshot(
                tick, [msgspec.structs.replace(bare(0), process=Known(process(0, cpu_ticks=100 * tick), START_NS))]
            )
            for tick in range(second)
        ]
        return run(worked)[-1][1].ranks[0].limit_reason

    assert reason_at(5).endswith("process, which was not seen to work yet")
    assert reason_at(20).endswith("process")


def bare(rank: int) -> RankSample:
    return sample(rank, None)


def test_job_facts_carry_wishes_for_silence() -> None:
    def edit(second: float, rank: RankSample) -> RankSample:
        rank = with_beat(rank, notify=rank.rank != 2, phase="eval" if rank.rank == 1 else "")
        return msgspec.structs.replace(rank, process=Known(process(rank.rank, has_terminal=True), START_NS))

    facts = run(job_run(four(), 5, edit=edit))[-1][1].jobs[0]
    assert facts.opted_out
    assert facts.in_terminal
    assert facts.phases == ((1, "eval"),)
    assert facts.alive == (0, 1, 2, 3)
    assert facts.moved


@pytest.mark.parametrize(
    ("main_thread", "child", "working"),
    [(3, 0, (2,)), (0, 40, (2,)), (0, 0, ()), (0.2, 0.0, ())],
    ids=["work between sleeps", "a program it waits for", "one long sleep", "a poll"],
)
def test_a_rank_that_stands_still_works_when_it_or_what_it_started_computes(
    main_thread: float, child: float, working: tuple[int, ...]
) -> None:
    """In ticks a second, of a hundredth of a second each; rank 2 stands still from second 10 on."""

    def edit(second: float, rank: RankSample) -> RankSample:
        stood = max(0.0, second - 10)
        ticks = int(min(second, 10) * 90 + stood * main_thread) if rank.rank == 2 else int(min(second, 10) * 90)
        children = (ChildProcess(77, "R", "python", int(stood * child)),) if rank.rank == 2 else ()
        new = process(rank.rank, main_thread_cpu_ticks=ticks, children=children)
        return msgspec.structs.replace(rank, process=Known(new, START_NS))

    shots = job_run(four(stuck_at=10), 20, edit=edit)
    assert run(shots[:9])[-1][1].jobs[0].working == (), "who steps does not stand still"
    assert run(shots)[-1][1].jobs[0].working == working
