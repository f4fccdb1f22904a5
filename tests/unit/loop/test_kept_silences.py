"""What people silenced holds over the daemon's end, for its time, by the wall clock."""

from pathlib import Path

import pytest

from stallwatch.incidents import silence
from stallwatch.incidents.life import IncidentTable, Maintenance, ModeSet, Mute
from stallwatch.incidents.store import SILENCES, IncidentStore
from stallwatch.loop.control import ControlService
from stallwatch.model.incident import Telling
from tests.builders.clock import WALL_NS, FakeClock
from tests.builders.running_job import four, job_run
from tests.unit.loop.fakes import Bench
from tests.unit.loop.test_dead_disk import DeadStore
from tests.unit.outputs.reports import node_report

CALM = job_run(four(), 40)
HANG = job_run(four(stuck_at=20.3), 60)
HOUR_NS = 3_600_000_000_000


def silenced(folder: Path, store: IncidentStore | None = None) -> Bench:
    bench = Bench(folder, CALM, store=store).run(3)
    control = bench.daemon.control
    control.mute("train", 7200, "")
    control.maintenance("", 7200, "anna", "a new kernel")
    control.mode("shadow", 3600, "ben")
    return bench.run(2)


def after_a_restart(folder: Path) -> Telling:
    telling = Bench(folder, HANG).run(3).latest.telling
    assert telling is not None
    return telling


def test_a_mute_a_maintenance_and_a_mode_hold_over_a_restart(tmp_path: Path) -> None:
    silenced(tmp_path)
    after = after_a_restart(tmp_path)
    assert after.mode == "shadow"
    said = "\n".join(after.silences)
    assert "a new kernel" in said
    assert "train" in said


def test_what_was_taken_back_does_not_come_again(tmp_path: Path) -> None:
    bench = silenced(tmp_path)
    bench.daemon.control.mode("tell", 0, "ben")
    bench.daemon.control.mute("train", 0, "")
    bench.run(2)
    after = after_a_restart(tmp_path)
    assert after.mode == "tell"
    assert "train" not in "\n".join(after.silences)


def test_each_holds_for_its_time_by_the_wall_clock_whatever_a_boot_does_to_the_other() -> None:
    said = IncidentTable(
        mutes=(Mute("train", 2 * HOUR_NS),),
        mode=ModeSet("shadow", 1 * HOUR_NS, "ben"),
        maintenance=(Maintenance("n1", 3 * HOUR_NS, "anna"), Maintenance("n2", -5)),
    )
    kept = silence.kept(said, 0, WALL_NS)
    assert [one.node for one in kept.maintenance] == ["n1"], "what is over is not kept"
    booted = 17  # the other boot's monotonic clock
    held = silence.resumed(kept, booted, WALL_NS + HOUR_NS // 2)
    assert held.mutes == (Mute("train", booted + 3 * HOUR_NS // 2),)
    assert held.mode == ModeSet("shadow", booted + HOUR_NS // 2, "ben")
    held = silence.resumed(kept, booted, WALL_NS + 5 * HOUR_NS // 2)
    assert (held.mutes, held.mode) == ((), None)
    assert [one.node for one in held.maintenance] == ["n1"]


def test_a_disk_that_does_not_answer_gets_it_later(tmp_path: Path) -> None:
    store = DeadStore(tmp_path)
    bench = silenced(tmp_path, store)
    assert not (store.folder / SILENCES).exists()
    store.dead = False
    bench.run(30)
    assert (store.folder / SILENCES).exists()


@pytest.mark.parametrize("spoiled", [b"", b"{", b"\xff", b'{"mutes": 3}', b"[" * 100_000])
def test_a_file_that_cannot_be_read_silences_nobody(spoiled: bytes, tmp_path: Path) -> None:
    silenced(tmp_path)
    (tmp_path / "incidents" / SILENCES).write_bytes(spoiled)
    assert after_a_restart(tmp_path).mode == "tell"


@pytest.mark.parametrize(
    ("nodes", "named", "says"),
    [
        (("node-b",), "node-x", "no node-x is at the meeting place now (there are gpu-node-17, node-b)"),
        (("node-b",), "node-b", ""),
        (("node-b",), "", ""),
        ((), "node-x", ""),
    ],
)
def test_maintenance_of_a_node_that_is_not_there_says_which_are(
    tmp_path: Path, nodes: tuple[str, ...], named: str, says: str
) -> None:
    control = ControlService(DeadStore(tmp_path), FakeClock(), lambda: None)
    control.show(node_report(nodes=nodes))
    where = control.maintenance(named, 60.0, "anna", "")
    assert where.endswith(says) if says else "there are" not in where
    assert "there are" not in control.maintenance(named, 0.0, "anna", "")
