"""Looks and judgements under way: one user's many leave room for another's."""

from pathlib import Path

from msgspec.structs import replace

from stallwatch.bundle.reader import load
from stallwatch.bundle.report import make_report
from stallwatch.captures.capture_run import CaptureState
from stallwatch.config import Config
from stallwatch.incidents.incident_names import incident_id
from stallwatch.incidents.life import IncidentLife
from stallwatch.incidents.messages import Captured, Discard, Judge, Save, StartCapture
from stallwatch.incidents.store import IncidentStore
from stallwatch.loop.actions import ActionRunner
from stallwatch.loop.bundle_store import BundleStore
from stallwatch.loop.judging import JudgeState
from stallwatch.loop.ring import SnapshotRing
from stallwatch.loop.stage_guard import StageGuard
from stallwatch.loop.turns import Turns
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import JobKey, ProcessEnd
from tests.builders.clock import FakeClock
from tests.builders.heartbeat import JOB, START_NS, heartbeat
from tests.builders.node import sample as rank
from tests.builders.node import snapshot
from tests.unit.incidents.stories import Story, facts, finding, stall
from tests.unit.loop.fakes import FakeCapture, FakeStarter, node_clock


def of_user(owner: str, number: int, folder: Path) -> Incident:
    story, job = Story(), JobKey(f"job-{number}", "epoch", owner)
    story.at(6, stall(job=job), jobs=[facts(job)])
    name = incident_id(job, 1)
    return replace(story.incident, incident_id=name, bundle=str(folder / "incidents" / name))


def hands_with(
    starter: FakeStarter,
    folder: Path,
    clock: FakeClock | None = None,
    cores: int = 64,
    ring: SnapshotRing | None = None,
) -> ActionRunner:
    guard, now_ns = StageGuard(), (clock or node_clock()).monotonic_ns
    bundles = BundleStore(IncidentStore(folder), None, guard)
    return ActionRunner(Config(), bundles, ring or SnapshotRing(60, 1), starter, guard, now_ns, Turns(now_ns, cores))


def test_a_users_many_incidents_are_looked_at_two_at_a_time_and_delay_no_look_at_anothers(tmp_path: Path) -> None:
    starter = FakeStarter(hangs=True)
    hands = hands_with(starter, tmp_path)
    bens = [of_user("ben", number, tmp_path) for number in range(50)]
    anna = of_user("anna", 0, tmp_path)
    hands.do([StartCapture(incident, 1) for incident in (*bens, anna)])
    assert [name for name, _, _ in starter.captured] == [one.incident_id for one in (*bens[:2], anna)]

    starter.captures[0].state = CaptureState(done=True, evidence_complete=True)
    assert [event.incident_id for event in hands.poll() if isinstance(event, Captured)] == [bens[0].incident_id]
    assert starter.captured[3][0] == bens[2].incident_id
    hands.do([Discard(bens[3])])
    starter.captures[1].state = CaptureState(done=True, evidence_complete=True)
    hands.poll()
    assert starter.captured[4][0] == bens[4].incident_id
    hands.close()
    assert not hands.busy


def test_a_stop_is_judged_early_once_its_look_has_begun_and_not_on_nothing(tmp_path: Path) -> None:
    starter = FakeStarter(hangs=True)
    hands = hands_with(starter, tmp_path)
    *others, last = (of_user("ben", number, tmp_path) for number in range(3))
    hands.do([StartCapture(incident, 1) for incident in (*others, last)])
    hands.do([Judge(last, 1)])
    hands.poll()
    assert starter.judgements == []
    starter.captures[0].state = CaptureState(done=True, evidence_complete=True)
    hands.poll()
    assert (len(starter.captures), len(starter.judgements)) == (3, 1)
    hands.close()


def test_a_look_at_a_hang_does_not_wait_for_looks_at_slow_ranks_that_last(tmp_path: Path) -> None:
    starter = FakeStarter(hangs=True)
    hands = hands_with(starter, tmp_path)
    *slow, hang = (of_user("ben", number, tmp_path) for number in range(4))
    slow = [replace(one, findings=(finding("slow", job=one.job),)) for one in slow]
    hands.do([StartCapture(incident, 1) for incident in (*slow, hang)])
    assert [name for name, _, _ in starter.captured] == [one.incident_id for one in (*slow[:2], hang)]
    hands.close()


def test_a_user_whose_jobs_die_all_the_time_has_so_many_looked_at_in_a_while_and_others_theirs(tmp_path: Path) -> None:
    """One after the other they take a core for themselves."""
    starter, clock = FakeStarter(hangs=True), node_clock()
    hands = hands_with(starter, tmp_path, clock)
    bens = [of_user("ben", number, tmp_path) for number in range(50)]

    def all_that_begin(count: int) -> list[str]:
        before = len(starter.captured)
        for _ in range(count):
            hands.poll()
            for capture in starter.captures:
                capture.state = CaptureState(done=True, evidence_complete=True)
            clock.advance(0.1)
        return [name for name, _, _ in starter.captured[before:]]

    hands.do([StartCapture(incident, 1) for incident in bens])
    assert len(all_that_begin(100)) == 12 - 2
    anna = of_user("anna", 0, tmp_path)
    hands.do([StartCapture(anna, 1)])
    assert starter.captured[-1][0] == anna.incident_id
    clock.advance(21)
    assert len(all_that_begin(50)) == 12
    hands.close()


def test_who_has_had_many_lately_has_one_at_a_time_and_begins_none_while_anothers_is_under_way(tmp_path: Path) -> None:
    """Two starts of Python of his beside each of theirs made a verdict of 1 s one of 3."""
    starter, clock = FakeStarter(hangs=True), node_clock()
    hands = hands_with(starter, tmp_path, clock, cores=2)
    bens = [of_user("ben", number, tmp_path) for number in range(20)]
    hands.do([StartCapture(incident, 1) for incident in bens])

    def end(capture: FakeCapture) -> None:
        capture.state = CaptureState(done=True, evidence_complete=True)
        hands.poll()
        clock.advance(0.1)

    for capture in starter.captures[:2]:
        end(capture)
    assert len(starter.captures) == 4  # each that ended has made room for one
    for capture in starter.captures[2:4]:
        end(capture)
    assert len(starter.captures) == 5

    hands.do([StartCapture(of_user("anna", 0, tmp_path), 1)])
    end(starter.captures[4])
    assert len(starter.captures) == 6, "anna's is under way"
    clock.advance(6)
    hands.poll()
    assert len(starter.captures) == 7, "he is not held up for ever by one that takes long"
    end(starter.captures[6])
    assert len(starter.captures) == 8
    hands.close()


def test_on_many_cores_who_has_had_many_lately_still_has_two_at_a_time(tmp_path: Path) -> None:
    starter = FakeStarter(hangs=True)
    hands = hands_with(starter, tmp_path)
    hands.do([StartCapture(of_user("ben", number, tmp_path), 1) for number in range(20)])
    for _ in range(8):
        starter.captures[-2].state = CaptureState(done=True, evidence_complete=True)
        hands.poll()
    assert len(starter.captures) == 10
    hands.close()


def test_judgements_of_who_has_had_many_lately_wait_for_anothers_too(tmp_path: Path) -> None:
    starter = FakeStarter()
    hands = hands_with(starter, tmp_path)
    bens = [of_user("ben", number, tmp_path) for number in range(20)]
    for incident in bens[:4]:
        hands.do([Judge(incident, 1)])
        hands.poll()
    starter.never_judges = True
    anna = of_user("anna", 0, tmp_path)
    hands.do([Judge(anna, 1), Judge(bens[4], 1)])
    assert len(starter.judgements) == 5
    starter.judgements[-1].state = JudgeState(starter.report)
    hands.poll()
    assert len(starter.judgements) == 6
    hands.close()


def test_a_death_is_judged_though_no_look_can_be_started(tmp_path: Path) -> None:
    """The process that holds the capabilities stands for ever; how the rank ended the sensor had seen before."""
    gone = ProcessEnd(START_NS, None, 9, "zombie")
    ranks = [rank(0, heartbeat(0, world_size=2)), rank(1, heartbeat(1, world_size=2), end=gone)]
    ring, starter = SnapshotRing(60, 1), FakeStarter(broken=True)
    ring.add(snapshot(0, ranks))
    hands = hands_with(starter, tmp_path, ring=ring)
    story = Story()
    story.at(6, finding("exit", resolvable=False), jobs=[facts()])
    folder = tmp_path / "incidents" / story.incident.incident_id
    dead = replace(story.incident, job=JOB, bundle=str(folder))
    for look, name in ((1, "process.json"), (2, "process-2.json")):
        hands.do([StartCapture(dead, look)])
        assert (folder / "ranks" / "1" / name).exists()
    assert [path.name for path in (folder / "ranks").iterdir()] == ["1"], "of who lives nothing was looked at"
    verdict = make_report(load([folder])).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("rank_exited", (1,))


def test_a_verdict_that_comes_after_its_incident_has_ended_leaves_nothing_under_way(tmp_path: Path) -> None:
    """What was noted of a timeline to go on with stayed for the life of the daemon."""
    starter, ring = FakeStarter(), SnapshotRing(60, 1)
    starter.never_judges = True
    hands, incident = hands_with(starter, tmp_path, ring=ring), of_user("anna", 0, tmp_path)
    ring.add(snapshot(0, [rank(0, heartbeat(0))]))
    hands.do([StartCapture(incident, 1), Judge(incident, 1)])
    hands.poll([IncidentLife(incident, "hang", looks=1, judging=True)])
    over = replace(incident, state="ended")
    hands.do([Save(over)])
    starter.judgements[0].state = JudgeState(starter.report)
    hands.poll([])
    assert (Path(incident.bundle) / "verdict.json").exists()
    written = (Path(incident.bundle) / "timeline.jsonl").read_bytes()
    ring.add(snapshot(1, [rank(0, heartbeat(0))]))
    hands.do([Save(replace(over, judged="wrong"))])
    assert (Path(incident.bundle) / "timeline.jsonl").read_bytes() == written
