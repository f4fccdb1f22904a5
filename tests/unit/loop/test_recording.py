from pathlib import Path

import msgspec
import pytest

from stallwatch.bundle.writer import BundleWriter
from stallwatch.loop import recording
from stallwatch.loop.recording import Recording
from stallwatch.loop.ring import SnapshotRing
from stallwatch.model.snapshot import NodeSnapshot
from stallwatch.replay.document import replay_bundle
from tests.builders.running_job import four, job_run, second_of
from tests.unit.loop.fakes import Bench


def seconds_of(folder: Path) -> list[float]:
    lines = (folder / "timeline.jsonl").read_bytes().splitlines()
    return [second_of(msgspec.json.decode(line, type=NodeSnapshot)) for line in lines]


def test_the_time_before_an_incident_stays_however_long_that_lasts(tmp_path: Path) -> None:
    ring = SnapshotRing(20, 1.0)
    recorded, writer = Recording(ring), BundleWriter(tmp_path, "node0")
    for shot in job_run(four(), 99):
        ring.add(shot)
        if second_of(shot) in (30, 35, 36, 50, 65, 80, 99):
            recorded.write(writer)
    assert seconds_of(tmp_path) == list(range(11, 100))


def test_a_timeline_that_is_gone_is_written_whole_the_next_time(tmp_path: Path) -> None:
    ring = SnapshotRing(20, 1.0)
    recorded, writer = Recording(ring), BundleWriter(tmp_path, "node0")
    first, second, third = job_run(four(), 2)
    ring.add(first)
    recorded.write(writer)
    (tmp_path / "timeline.jsonl").unlink()
    ring.add(second)
    with pytest.raises(FileNotFoundError):
        recorded.write(writer)
    ring.add(third)
    recorded.write(writer)
    assert seconds_of(tmp_path) == [0, 1, 2]


def test_a_timeline_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_MOST_BYTES", 1)
    ring = SnapshotRing(20, 1.0)
    recorded, writer = Recording(ring), BundleWriter(tmp_path, "node0")
    for shot in job_run(four(), 9):
        ring.add(shot)
        recorded.write(writer)
    assert seconds_of(tmp_path) == [0]


def test_what_somebody_was_told_late_is_in_the_timeline(tmp_path: Path) -> None:
    """A hang that is told as critical a minute after its last look replays to that."""
    bench = Bench(tmp_path, job_run(four(stuck_at=20.3), 130)).run()
    (incident,) = bench.latest.incidents
    escalated = next(event for event in incident.events if event.what == "escalated to critical")
    assert max(seconds_of(Path(incident.bundle))) >= 80
    assert bench.clock.wall_ns() > escalated.wall_ns
    decided = replay_bundle(Path(incident.bundle)).detection[0]
    assert (decided.after_seconds, decided.findings[0].stage) == (26.0, "suspect")
