import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallwatch.clock import SystemClock
from stallwatch.config import Config
from stallwatch.config_sections import DaemonSection, SensorsSection
from stallwatch.loop.privileged import own_side
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import GpusLook, NodeSnapshot, PartStatus, RanksLook
from stallwatch.node.children import start_own
from stallwatch.node.privileged_client import Privileged
from stallwatch.sensors.panel import SensorSet, SupervisedSensor
from tests.builders.records import start_ticks_of, write_record

CONFIG = SensorsSection(deadline_seconds=20.0, discover_seconds=3600, gpus=False, host=False)

UP = PartStatus(True, "", 0.0, 0)


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Privileged]:
    side = own_side(Config(daemon=DaemonSection(rank_directory=str(tmp_path)), sensors=CONFIG))
    yield side
    side.close()


@pytest.fixture
def panel(tmp_path: Path, side: Privileged) -> Iterator[SensorSet]:
    panel = SensorSet(Config(daemon=DaemonSection(rank_directory=str(tmp_path)), sensors=CONFIG), SystemClock(), side)
    yield panel
    panel.close()


def with_child(panel: SensorSet, *arguments: str, deadline_seconds: float) -> SupervisedSensor[RanksLook]:
    """Put a child of the test's own in the place of the reader of ranks."""
    command = [sys.executable, str(Path(__file__).with_name("children.py")), *arguments]
    sensor = SupervisedSensor("ranks", "the reader of ranks", RanksLook, start_own(command), SystemClock())
    panel.close()
    panel.sensors = {"ranks": sensor}
    panel._deadline_seconds = deadline_seconds
    return sensor


def test_snapshot_has_ranks_and_says_how_every_sensor_did(panel: SensorSet, tmp_path: Path) -> None:
    panel.look(0)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    write_record(tmp_path, 1, process.pid, start_ticks_of(process.pid))
    snapshot = panel.look(1)
    process.communicate(b"\n")
    (rank,) = [rank for rank in snapshot.ranks if rank.job.training_job == "job"]
    assert (rank.rank, rank.pid) == (1, process.pid)
    assert isinstance(rank.process, Known)
    sensors = {s.sensor: s.up for s in snapshot.sensors}
    assert sensors.items() >= {"heartbeats": True, "processes": True, "gpus": False, "host": False}.items()
    required = {s.sensor for s in snapshot.sensors if s.required}
    assert required >= {"heartbeats", "processes"}
    assert not required & {"gpus", "host"}, "they are off"
    assert snapshot.gpus == Unavailable("NVML is not asked: sensors.gpus is off", snapshot.gpus.at_ns)
    assert snapshot.tick == 1


def test_gpus_are_asked_seldom_while_no_rank_is_on_the_node(
    panel: SensorSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Noted(SupervisedSensor[GpusLook]):
        def ask(self) -> None:
            asked.append(self.name)
            self._settled, self._result = True, Known(GpusLook((), UP, UP), SystemClock().monotonic_ns())

    panel.sensors["gpus"] = Noted("gpus", "NVML", GpusLook, start_own(["false"]), SystemClock(), required=False)
    monkeypatch.setattr(panel, "_ranks_of", lambda _: ())
    for tick in range(3):
        panel.look(tick)
    assert asked == ["gpus"]
    monkeypatch.undo()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    write_record(tmp_path, 1, process.pid, start_ticks_of(process.pid))
    for tick in range(3, 6):
        panel.look(tick)
    process.communicate(b"\n")
    assert len(asked) >= 3, "with a rank, each look asks"


def test_look_ends_at_its_deadline_and_ranks_do_not_vanish(panel: SensorSet, tmp_path: Path) -> None:
    panel.look(0)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    write_record(tmp_path, 1, process.pid, start_ticks_of(process.pid))
    panel.look(1)
    with_child(panel, "hangs", str(tmp_path / "never"), deadline_seconds=0.05)
    began = time.monotonic()
    snapshot = panel.look(2)
    took = time.monotonic() - began
    process.communicate(b"\n")
    assert took < 10  # the child would hang for ever
    (rank,) = [rank for rank in snapshot.ranks if rank.job.training_job == "job"]
    assert isinstance(rank.heartbeat, Unavailable)
    assert isinstance(rank.process, Unavailable)
    assert "the reader of ranks has not answered" in rank.heartbeat.reason
    assert not any(s.up for s in snapshot.sensors if s.sensor in ("heartbeats", "processes", "gpus", "host"))


def test_snapshot_survives_its_way_into_the_timeline(panel: SensorSet) -> None:
    import msgspec

    snapshot = panel.look(0)
    assert msgspec.json.decode(msgspec.json.encode(snapshot), type=NodeSnapshot) == snapshot
