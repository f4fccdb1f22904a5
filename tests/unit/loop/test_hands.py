"""Looks and judgements under way: one user's many leave room for another's."""

from pathlib import Path

from msgspec.structs import replace

from stallwatch.captures.run import CaptureState
from stallwatch.config import Config
from stallwatch.incidents.messages import Captured, Discard, StartCapture
from stallwatch.incidents.names import incident_id
from stallwatch.incidents.store import IncidentStore
from stallwatch.loop.bundles import Bundles
from stallwatch.loop.guard import StageGuard
from stallwatch.loop.hands import Hands
from stallwatch.loop.ring import SnapshotRing
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import JobKey
from tests.unit.incidents.stories import Story, facts, stall
from tests.unit.loop.fakes import FakeStarter


def of_user(owner: str, number: int, folder: Path) -> Incident:
    story, job = Story(), JobKey(f"job-{number}", "epoch", owner)
    story.at(6, stall(job=job), jobs=[facts(job)])
    name = incident_id(job, 1)
    return replace(story.incident, incident_id=name, bundle=str(folder / "incidents" / name))


def hands_with(starter: FakeStarter, folder: Path) -> Hands:
    guard = StageGuard()
    return Hands(Config(), Bundles(IncidentStore(folder), None, guard), SnapshotRing(60, 1), starter, guard)


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
