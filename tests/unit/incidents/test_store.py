import os
from pathlib import Path

import msgspec
import pytest

from stallwatch.config_sections import IncidentSection
from stallwatch.incidents.incident_names import incident_id, is_incident_id, ordinal_of
from stallwatch.incidents.life import IncidentTable
from stallwatch.incidents.store import MOST_OF_OWNER, IncidentStore, looks_in
from stallwatch.loop.past_incidents import make_room
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import JobKey
from tests.unit.incidents.stories import JOB, Story, facts


def told(name: str | None = None, job: JobKey = JOB) -> Incident:
    story = Story()
    story.hang("not_entered")
    changes = {"incident_id": name or incident_id(job, 1), "job": job}
    return msgspec.structs.replace(story.incident, **changes)


def resolved(incident: Incident) -> Incident:
    return msgspec.structs.replace(incident, state="resolved", resolved_wall_ns=incident.opened_wall_ns + 1)


@pytest.fixture
def store(tmp_path: Path) -> IncidentStore:
    made = IncidentStore(tmp_path)
    made.prepare()
    return made


def kept(store: IncidentStore, name: str, size: int, age: int, owner: str = "") -> None:
    store.save(resolved(told(name, msgspec.structs.replace(JOB, owner=owner))))
    (store.folder / name / "dump").write_bytes(b"x" * size)
    os.utime(store.folder / name, (1_000_000 - age, 1_000_000 - age))


def test_what_is_saved_is_loaded(store: IncidentStore) -> None:
    incident = told()
    store.save(incident)
    assert store.load(incident.incident_id) == incident
    assert store.newest(5) == (incident,)
    assert store.ordinals() == ((JOB, 1),)


def test_the_folder_is_the_daemons_alone(store: IncidentStore) -> None:
    store.save(told())
    assert store.folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["../../etc/passwd", "..", "", "/etc", "a/b", ".hidden", "x" * 300, "a\0b", "a\n"])
def test_an_id_that_is_no_plain_name_finds_nothing(store: IncidentStore, name: str) -> None:
    (store.folder.parent / "incident.json").write_bytes(msgspec.json.encode(told()))
    assert not is_incident_id(name)
    assert store.load(name) is None
    store.discard(name)
    assert (store.folder.parent / "incident.json").exists()


def test_incidents_that_were_told_are_left_open_and_mere_suspicions_are_dropped(store: IncidentStore) -> None:
    story = Story()
    story.hang("not_entered")
    store.save(story.incident)
    (store.folder / story.incident.incident_id / "ranks" / "0").mkdir(parents=True)
    (store.folder / story.incident.incident_id / "ranks" / "0" / "process-2.json").touch()
    store.save(msgspec.structs.replace(told("suspect-1"), state="suspect", report=None))
    store.save(resolved(told("over-1")))
    assert store.left_open() == ((story.incident, 2),)
    assert store.load("suspect-1") is None
    assert store.load("over-1") is not None


def test_a_damaged_incident_is_skipped(store: IncidentStore) -> None:
    store.save(told())
    (store.folder / "broken-1").mkdir()
    (store.folder / "broken-1" / "incident.json").write_bytes(b'{"incident_id": 3')
    (store.folder / "empty-1").mkdir()
    (store.folder / "pipe-1").mkdir()
    os.mkfifo(store.folder / "pipe-1" / "incident.json")
    assert [incident.incident_id for incident in store.newest(5)] == [incident_id(JOB, 1)]


def test_the_oldest_go_when_all_take_too_much(store: IncidentStore) -> None:
    for age, name in enumerate(("new-1", "middle-1", "old-1")):
        kept(store, name, 100_000, age)
    assert store.retain(250_000, 0, ()) == ("old-1",)
    assert store.load("middle-1") is not None


def test_room_is_made_by_whose_incidents_take_the_most(store: IncidentStore) -> None:
    kept(store, "annas-1", 100_000, 5, owner="anna")
    for number in range(4):
        kept(store, f"bens-{number}", 100_000, number, owner="ben")
    assert store.retain(250_000, 0, ()) == ("bens-3", "bens-2", "bens-1")
    assert store.load("annas-1") is not None


def test_of_a_user_with_many_small_incidents_the_latest_are_kept_and_of_others_all(store: IncidentStore) -> None:
    """Each takes inodes, and time whenever the folder is read."""
    kept(store, "annas-1", 1, 9_000, owner="anna")
    for number in range(MOST_OF_OWNER + 20):
        kept(store, f"bens-{number}", 1, 8_000 - number, owner="ben")
    gone = [*store.retain(1 << 40, 0, {"bens-0"}), *store.retain(1 << 40, 0, {"bens-0"})]
    assert gone == [f"bens-{number}" for number in range(1, 21)]
    assert store.retain(1 << 40, 0, {"bens-0"}) == ()
    assert store.load("annas-1") is not None


def test_room_is_made_in_steps_of_which_none_takes_the_disk_for_long(store: IncidentStore) -> None:
    """While they are removed nothing else is written."""
    for number in range(40):
        kept(store, f"bens-{number}", 100_000, number)
    lives, limits = IncidentTable(), IncidentSection(keep_bytes=150_000)
    assert [make_room(store, lives, limits, 1) for _ in range(3)] == [True, True, False]
    assert sorted(path.name for path in store.folder.iterdir()) == ["bens-0"]


def test_what_small_files_take_is_counted_in_blocks(store: IncidentStore) -> None:
    for number in range(4):
        kept(store, f"bens-{number}", 1, 4 - number)
        for file in range(20):
            (store.folder / f"bens-{number}" / str(file)).write_bytes(b"x")
    assert store.retain(250_000, 0, ()) == ("bens-0", "bens-1")


def test_what_is_too_old_goes_whatever_the_room(store: IncidentStore) -> None:
    kept(store, "old-1", 10, 100)
    kept(store, "new-1", 10, 0)
    assert store.retain(1 << 30, (1_000_000 - 50) * 10**9, ()) == ("old-1",)


def test_an_open_incident_is_never_removed(store: IncidentStore) -> None:
    kept(store, "open-1", 100_000, 100)
    kept(store, "other-1", 100_000, 0)
    assert store.retain(0, 2_000_000 * 10**9, {"open-1"}) == ("other-1",)


def test_a_link_in_the_store_is_not_followed(store: IncidentStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    (store.folder / "linked-1").symlink_to(outside)
    store.retain(0, 2_000_000 * 10**9, ())
    assert (outside / "file").exists()


def test_looks_are_counted_from_the_evidence(tmp_path: Path) -> None:
    folder = tmp_path / "ranks" / "3"
    folder.mkdir(parents=True)
    assert looks_in(tmp_path) == 1
    for name in ("stacks.json", "stacks-2.json", "flight_recorder.gloo-3.pickle", "stacks.child-777.json"):
        (folder / name).touch()
    assert looks_in(tmp_path) == 3


def test_names_are_safe_stable_and_hold_no_time() -> None:
    hostile = JobKey("../../x y/é", "epoch")
    name = incident_id(hostile, 2)
    assert is_incident_id(name)
    assert name == incident_id(hostile, 2)
    assert ordinal_of(name) == 2
    assert incident_id(JobKey("a/b", "e"), 1) != incident_id(JobKey("a_b", "e"), 1)
    assert incident_id(JobKey("job", "e1"), 1) != incident_id(JobKey("job", "e2"), 1)
    assert incident_id(JobKey("x" * 500, "e"), 1) != incident_id(JobKey("x" * 501, "e"), 1)
    assert is_incident_id(incident_id(JobKey("", ""), 1))
    assert incident_id(JobKey("job", "e", "anna"), 1) != incident_id(JobKey("job", "e", "ben"), 1)
    assert incident_id(JobKey("a/b", "e", "anna"), 1) != incident_id(JobKey("a/b", "e", "ben"), 1)
    assert facts().job == JOB
