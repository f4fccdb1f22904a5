"""A state directory whose disk does not answer: the loop goes on, says so, and catches up."""

import errno
from pathlib import Path

import msgspec

from stallwatch.config import Config, DaemonSection
from stallwatch.incidents.store import IncidentStore, Left
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import NodeSnapshot
from stallwatch.node.disk import DiskHangs
from tests.unit.detectors.nodes import four, job_run
from tests.unit.loop.fakes import Bench, FakeStarter

HANG = job_run(four(stuck_at=20.3), 60)


class DeadStore(IncidentStore):
    """Refuses as node.disk does while `dead`."""

    dead = True

    def _check(self) -> None:
        if self.dead:
            raise DiskHangs(errno.ETIMEDOUT, self.problem())

    def problem(self) -> str:
        return "/var/lib/stallwatch has not answered for 3 s" if self.dead else ""

    def save(self, incident: Incident) -> None:
        self._check()
        super().save(incident)

    def write(self, path: Path, data: bytes) -> None:
        self._check()
        super().write(path, data)

    def left(self, past: int) -> Left:
        self._check()
        return super().left(past)


def bench_of(tmp_path: Path) -> tuple[Bench, DeadStore]:
    store = DeadStore(tmp_path)
    return Bench(tmp_path, HANG, starter=FakeStarter(), store=store), store


def test_detection_goes_on_and_the_disk_is_a_source_that_is_down(tmp_path: Path) -> None:
    bench, _ = bench_of(tmp_path)
    bench.run()
    assert bench.latest.snapshot.at_ns == HANG[-1].at_ns
    assert [incident.state for incident in bench.latest.incidents] == ["suspect"]
    assert bench.latest.findings
    (disk,) = [sensor for sensor in bench.latest.snapshot.sensors if sensor.sensor == "state_directory"]
    assert (disk.up, disk.reason) == (False, "/var/lib/stallwatch has not answered for 3 s")
    assert bench.starter.captured == []


def test_a_disk_that_answers_again_gets_what_it_missed(tmp_path: Path) -> None:
    bench, store = bench_of(tmp_path)
    bench.run(40)
    assert not store.newest(1)
    store.dead = False
    bench.run(20)
    incident = bench.latest.incidents[0]
    stored = store.load(incident.incident_id)
    assert stored is not None
    assert stored.events == incident.events
    assert all(sensor.up for sensor in bench.latest.snapshot.sensors if sensor.sensor == "state_directory")


def test_what_the_last_daemon_left_is_taken_over_when_the_disk_answers(tmp_path: Path) -> None:
    first = Bench(tmp_path, HANG).run()
    told = first.latest.incidents[0]
    store = DeadStore(tmp_path)
    config = Config(daemon=DaemonSection(state_directory=str(tmp_path)))
    calm: list[NodeSnapshot] = [msgspec.structs.replace(shot, ranks=()) for shot in HANG]
    bench = Bench(tmp_path, calm, config=config, store=store).run(5)
    assert [incident.incident_id for incident in bench.latest.incidents] == []
    store.dead = False
    bench.run(10)
    assert [incident.incident_id for incident in bench.latest.incidents] == [told.incident_id]
