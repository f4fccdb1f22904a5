"""A state directory whose disk does not answer: the loop goes on, says so, and catches up."""

import contextlib
import errno
from pathlib import Path

import msgspec
import pytest

from stallwatch.config import Config
from stallwatch.config_sections import DaemonSection
from stallwatch.incidents.store import IncidentStore, Left
from stallwatch.loop import bundle_store
from stallwatch.loop.bundle_store import BundleStore
from stallwatch.loop.stage_guard import StageGuard
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import NodeSnapshot
from stallwatch.node.disk import DiskHangs
from tests.builders.running_job import four, job_run
from tests.unit.loop.fakes import Bench, FakeStarter
from tests.unit.outputs.reports import incident

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

    def discard(self, incident_id: str) -> None:
        self._check()
        super().discard(incident_id)

    def take_in(self, bundle: Path) -> None:
        self._check()
        super().take_in(bundle)

    def left(self, past: int) -> Left:
        self._check()
        return super().left(past)


class FullStore(IncidentStore):
    """A disk without room, from the second look on."""

    def write(self, path: Path, data: bytes) -> None:
        if path.parent.joinpath("bundle.json").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(path, data)


def bench_of(tmp_path: Path, *, with_spare: bool = False) -> tuple[Bench, DeadStore]:
    store = DeadStore(tmp_path)
    spare = IncidentStore(tmp_path / "run") if with_spare else None
    return Bench(tmp_path, HANG, starter=FakeStarter(), store=store, spare=spare), store


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


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


def test_evidence_goes_to_the_spare_folder_and_the_verdict_is_made_and_told(tmp_path: Path) -> None:
    bench, store = bench_of(tmp_path, with_spare=True)
    bench.run()
    (incident,) = bench.latest.incidents
    assert incident.verdict is not None
    assert incident.severity == "warning"
    spare = tmp_path / "run" / "incidents" / incident.incident_id
    assert incident.bundle == str(spare)
    assert {"bundle.json", "timeline.jsonl", "incident.json", "verdict.json"} <= names_in(spare)
    whats = [event.what for event in incident.events]
    assert any(f"evidence lies in {spare}: " in what and store.problem() in what for what in whats)


def test_evidence_comes_home_when_the_disk_answers_again(tmp_path: Path) -> None:
    bench, store = bench_of(tmp_path, with_spare=True)
    bench.run(40)
    store.dead = False
    bench.run(20)
    (incident,) = bench.latest.incidents
    home = tmp_path / "incidents" / incident.incident_id
    assert incident.bundle == str(home)
    assert {"bundle.json", "timeline.jsonl", "incident.json", "verdict.json"} <= names_in(home)
    stored = store.load(incident.incident_id)
    assert stored is not None
    assert (stored.bundle, stored.events) == (incident.bundle, incident.events)
    assert not names_in(tmp_path / "run" / "incidents")


def test_a_disk_that_fills_between_two_looks_costs_no_verdict(tmp_path: Path) -> None:
    bench = Bench(tmp_path, HANG, store=FullStore(tmp_path), spare=IncidentStore(tmp_path / "run")).run()
    (incident,) = bench.latest.incidents
    assert incident.bundle.startswith(str(tmp_path / "run"))
    assert incident.severity == "warning"
    assert any("No space left on device" in event.what for event in incident.events)


def test_a_suspicion_that_came_to_nothing_leaves_the_spare_folder_empty(tmp_path: Path) -> None:
    again = job_run(four(begins_at=6), 60, first_second=28)
    snapshots = [*job_run(four(stuck_at=20.3), 27), *again]
    bench = Bench(tmp_path, snapshots, store=DeadStore(tmp_path), spare=IncidentStore(tmp_path / "run")).run()
    assert bench.latest.incidents == ()
    assert not names_in(tmp_path / "run" / "incidents")


def test_evidence_that_the_last_daemon_left_in_the_spare_folder_is_taken_in(tmp_path: Path) -> None:
    bench, _ = bench_of(tmp_path, with_spare=True)
    told = bench.run(40).latest.incidents[0]
    store = IncidentStore(tmp_path)
    assert store.take_in_all(tmp_path / "run") == (told.incident_id,)
    ((taken, looks),) = store.left(20).open
    assert (taken.events, taken.bundle) == (told.events, str(store.folder / told.incident_id))
    assert looks == 1
    assert not names_in(tmp_path / "run" / "incidents")


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


def test_of_a_disk_that_does_not_answer_for_days_so_many_incidents_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits with its whole report, and jobs go on dying; those of now are written down once it answers."""
    monkeypatch.setattr(bundle_store, "_MOST_UNSAVED", 3)
    store = DeadStore(tmp_path)
    bundles = BundleStore(store, None, StageGuard())
    many = [incident(incident_id=f"job-{number}-0123abcd-1", bundle=str(tmp_path)) for number in range(5)]
    for one in many:
        with contextlib.suppress(OSError):
            bundles.save(one)
    store.dead = False
    bundles.catch_up(())
    assert names_in(store.folder) == {one.incident_id for one in many[2:]}
