import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from stallwatch.hook import layout
from stallwatch.node import rank_files
from stallwatch.node.heartbeat_file import DEFAULT_DIRECTORIES
from stallwatch.sensors import heartbeats, record_names
from stallwatch.sensors.heartbeats import HeartbeatScan
from tests.builders.clock import FakeClock
from tests.builders.records import record_bytes, write_record


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "ranks"


@pytest.fixture
def scan(directory: Path) -> HeartbeatScan:
    scan = HeartbeatScan((str(directory),))
    scan.read()
    return scan


def test_directory_is_made_as_hooks_need_it(scan: HeartbeatScan, directory: Path) -> None:
    assert directory.stat().st_mode & 0o7777 == 0o1777
    assert (directory / ".daemon").stat().st_mode & 0o7777 == 0o755
    assert scan.read().up
    assert scan.read().reason == ""


def test_record_is_read_and_read_again(scan: HeartbeatScan, directory: Path) -> None:
    path = write_record(directory, 1, 50, 9, step=5)
    (heartbeat,) = scan.read().heartbeats
    assert (heartbeat.rank, heartbeat.step, heartbeat.path, heartbeat.uid) == (1, 5, str(path), os.geteuid())
    write_record(directory, 1, 50, 9, step=6)
    assert scan.read().heartbeats[0].step == 6


def test_record_that_is_written_in_place_is_read_again(scan: HeartbeatScan, directory: Path) -> None:
    path = write_record(directory, 1, 50, 9, step=5)
    scan.read()
    with path.open("r+b") as file:
        file.write(record_bytes(1, 50, 9, step=7))
    assert scan.read().heartbeats[0].step == 7


def flood(directory: Path, count: int, uid: int | None = None) -> None:
    """Names that sort before those of ranks with high numbers."""
    for number in range(count):
        (path := directory / f"rank-0-{number}.beat").write_bytes(b"")
        if uid is not None:
            os.chown(path, uid, uid)


def test_a_directory_full_of_names_hides_no_record_that_was_read_before(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_names, "MOST_OF_USER", 16)
    scan = HeartbeatScan((str(directory),))
    scan.read()
    write_record(directory, 9, 50, 9)
    assert scan.read().heartbeats
    flood(directory, 100)
    looks = [scan.read() for _ in range(5)]
    assert [len(look.heartbeats) for look in looks] == [1] * 5
    assert f"{directory} holds 101 records of uid {os.geteuid()}, of which 16 are read at a time" in looks[-1].reason


@pytest.mark.skipif(os.geteuid() != 0, reason="files of another user need root")
def test_one_users_names_do_not_hide_anothers_records(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_names, "MOST_OF_USER", 16)
    scan = HeartbeatScan((str(directory),))
    scan.read()
    flood(directory, 100, uid=64211)
    for rank in range(4):
        write_record(directory, 90 + rank, 50, 9)
    assert len(scan.read().heartbeats) == 4


def test_among_ones_own_names_a_new_record_is_found_in_time(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_names, "MOST_OF_USER", 16)
    scan = HeartbeatScan((str(directory),))
    scan.read()
    flood(directory, 100)
    write_record(directory, 9, 50, 9)
    assert any(scan.read().heartbeats for _ in range(100))


def make_bad(directory: Path, kind: str) -> str:
    path = directory / "rank-9-9.beat"
    if kind == "link":
        path.symlink_to(directory / "rank-1-50.beat")
        return "rank-9-9.beat: a symbolic link; not followed"
    if kind == "fifo":
        os.mkfifo(path)
        return "rank-9-9.beat: not a regular file; not opened"
    if kind == "truncated":
        path.write_bytes(record_bytes(9, 9, 9)[:100])
        return "rank-9-9.beat: 100 bytes are no record"
    if kind == "empty":
        path.write_bytes(b"")
        return "rank-9-9.beat: 0 bytes are no record"
    if kind == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 30)
        return "rank-9-9.beat: 1073741824 bytes, more than"
    path.write_bytes(b"garbage!" * (layout.RECORD_BYTES // 8))
    return "rank-9-9.beat: not a record of stallwatch"


@pytest.mark.parametrize("kind", ["link", "fifo", "truncated", "empty", "huge", "garbage"])
def test_bad_file_is_one_message_and_hides_nothing(scan: HeartbeatScan, directory: Path, kind: str) -> None:
    write_record(directory, 1, 50, 9)
    expected = make_bad(directory, kind)
    looks = [scan.read() for _ in range(3)]
    assert [len(look.heartbeats) for look in looks] == [1, 1, 1]
    assert all(look.up for look in looks)
    assert all(look.reason.startswith(f"1 ignored: {expected}") for look in looks)
    assert [look.errors_total for look in looks] == [1, 1, 1]
    (directory / "rank-9-9.beat").unlink()
    assert scan.read().reason == ""


def test_torn_record_keeps_its_last_value_and_is_complained_of_when_it_stays(
    scan: HeartbeatScan, directory: Path
) -> None:
    path = write_record(directory, 1, 50, 9, step=5)
    scan.read()
    with path.open("r+b") as file:
        file.seek(layout.WORD["step"] * 8)
        file.write((6).to_bytes(8, "little"))  # the checksum does not know of it
    first = scan.read()
    assert first.heartbeats[0].step == 5
    assert first.reason == ""
    later = [scan.read() for _ in range(6)][-1]
    assert later.heartbeats[0].step == 5
    assert "checksum" in later.reason


def test_rejected_record_is_skipped_until_another_file_takes_its_name(scan: HeartbeatScan, directory: Path) -> None:
    write_record(directory, 1, 50, 9)
    (heartbeat,) = scan.read().heartbeats
    scan.reject(heartbeat, "written by uid 5, but process 50 runs as 6")
    looks = [scan.read() for _ in range(3)]
    assert [look.heartbeats for look in looks] == [(), (), ()]
    assert looks[-1].reason == "1 ignored: rank-1-50.beat: written by uid 5, but process 50 runs as 6"
    assert looks[-1].errors_total == 1
    write_record(directory, 1, 50, 9)
    assert len(scan.read().heartbeats) == 1


def test_everything_of_an_ended_process_is_removed_and_nothing_else(scan: HeartbeatScan, directory: Path) -> None:
    path = write_record(directory, 1, 50, 9)
    other = write_record(directory, 1, 501, 9)
    (directory / layout.facts_name(1, 50)).touch()
    (directory / layout.answer_name(1, 50, 3, "nccl")).touch()
    (directory / layout.facts_name(1, 50, "0123456789abcdef")).touch()
    scan.read()
    Path(layout.request_path(str(directory), 1, 50)).touch()
    scan.remove(str(path))
    scan.tidy()
    assert sorted(p.name for p in directory.iterdir()) == [".daemon", other.name]
    assert list((directory / ".daemon").iterdir()) == []


def test_a_node_that_is_busy_is_tidied_as_soon_as_another(
    scan: HeartbeatScan, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, removed = FakeClock(10**12), list[str]()

    def remove_slowly(directory: Path, records: Sequence[rank_files.Read]) -> None:
        clock.advance(60)  # and hardly any of it on a core
        removed.extend(record.name for record in records)

    path = write_record(directory, 1, 50, 9)
    scan.read()
    monkeypatch.setattr(heartbeats, "time", SimpleNamespace(monotonic=clock.seconds, thread_time=lambda: 0.0))
    monkeypatch.setattr(rank_files, "remove", remove_slowly)
    for _ in range(2):
        scan.remove(str(path))
        scan.tidy()
    assert removed == [path.name, path.name]


@pytest.mark.parametrize(("blocks", "files", "said"), [(0, 9, "no room left"), (9, 0, "no inode left")])
def test_a_directory_that_takes_no_more_files_says_so(
    scan: HeartbeatScan, directory: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, files: int, said: str
) -> None:
    assert scan.read().full == ""
    room = os.statvfs_result((4096, 4096, 100, blocks, blocks, 100, files, files, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda descriptor: room)
    look = scan.read()
    assert said in look.full
    assert said in look.reason


def test_no_directory_at_all_is_down(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    look = HeartbeatScan((str(tmp_path / "file/ranks"),)).read()
    assert not look.up
    assert "no rank directory can be read" in look.reason


def test_directories_are_read_beside_each_other(tmp_path: Path) -> None:
    scan = HeartbeatScan((str(tmp_path / "a"), str(tmp_path / "b")))
    scan.read()
    (tmp_path / "b").mkdir()
    write_record(tmp_path / "a", 0, 50, 9)
    write_record(tmp_path / "b", 1, 51, 9)
    assert [heartbeat.rank for heartbeat in scan.read().heartbeats] == [0, 1]


def test_directory_of_somebody_else_is_said_and_its_records_are_read(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    directory = tmp_path / "ranks"
    directory.mkdir()
    write_record(directory, 0, 100, 9)
    os.chown(directory, 65534, 65534)
    look = HeartbeatScan((str(directory),)).read()
    assert look.up
    assert "belongs to uid 65534" in look.reason
    assert len(look.heartbeats) == 1


def test_who_watches_for_himself_reads_his_own_records_alone(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    scan = HeartbeatScan((str(tmp_path),), user=65534)
    write_record(tmp_path, 0, 100, 9)
    os.chown(write_record(tmp_path, 1, 101, 9), 65534, 65534)
    assert [heartbeat.rank for heartbeat in scan.read().heartbeats] == [1]


def test_a_daemon_without_rights_is_for_its_user_in_directories_that_all_share(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tuple(map(str, DEFAULT_DIRECTORIES))
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    monkeypatch.setattr(heartbeats, "any_permitted", lambda: False)
    assert heartbeats.only_user(shared) == 1001
    assert heartbeats.only_user(("/srv/ranks",)) is None  # somebody has said that these are to be watched
    monkeypatch.setattr(heartbeats, "any_permitted", lambda: True)  # of stallwatch-privileged.service
    assert heartbeats.only_user(shared) is None


def test_directory_that_we_may_not_make_is_no_problem_where_another_serves(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    scan = HeartbeatScan((str(tmp_path / "file/ranks"), str(tmp_path / "b"), str(tmp_path / "c")))
    assert scan.read().reason == ""
    assert not (tmp_path / "c").exists()
    (tmp_path / "c").mkdir()  # a hook's own choice, made later
    scan.read()
    assert (tmp_path / "c/.daemon").is_dir()


def test_directory_that_was_removed_is_made_again(scan: HeartbeatScan, directory: Path) -> None:
    (directory / ".daemon").rmdir()
    directory.rmdir()
    assert scan.read().up
    assert (directory / ".daemon").is_dir()


class Reads:
    """Counts what is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.bytes = 0
        read = os.pread

        def counted(descriptor: int, count: int, offset: int) -> bytes:
            data = read(descriptor, count, offset)
            self.count, self.bytes = self.count + 1, self.bytes + len(data)
            return data

        monkeypatch.setattr(os, "pread", counted)


def test_what_has_not_changed_is_not_read_again(
    scan: HeartbeatScan, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_names, "SETTLED_NS", 0)
    for number in range(20):
        with (directory / f"rank-0-{number}.beat").open("wb") as file:
            file.truncate(1 << 20)  # sparse: nothing on disk, a megabyte to read
    good = write_record(directory, 1, 50, 9)
    reads = Reads(monkeypatch)
    first = scan.read()
    assert reads.bytes <= 3 * 21 * layout.RECORD_BYTES
    reads.count = 0
    again = [scan.read() for _ in range(3)]
    assert reads.count == 0
    assert [look.heartbeats for look in again] == [first.heartbeats] * 3
    with good.open("r+b") as file:
        file.write(record_bytes(1, 50, 9, step=7))
    assert scan.read().heartbeats[0].step == 7
    assert reads.count == 1


def test_what_was_written_just_now_is_read_again_though_its_time_is_the_same(
    scan: HeartbeatScan, directory: Path
) -> None:
    path = write_record(directory, 1, 50, 9, step=5)
    now_ns = time.time_ns()
    os.utime(path, ns=(now_ns, now_ns))
    scan.read()
    with path.open("r+b") as file:
        file.write(record_bytes(1, 50, 9, step=7))
    os.utime(path, ns=(now_ns, now_ns))
    assert scan.read().heartbeats[0].step == 7


def test_one_users_records_cost_no_more_than_his_share(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_names, "MOST_OF_USER", 16)
    monkeypatch.setattr(record_names, "MOST_KEPT_OF_USER", 64)
    scan = HeartbeatScan((str(directory),))
    scan.read()
    for rank in range(100):
        write_record(directory, rank, 50, 9)
    reads = Reads(monkeypatch)
    seen = set()
    for _ in range(40):
        reads.count = 0
        seen |= {heartbeat.rank for heartbeat in scan.read().heartbeats}
        assert reads.count <= 16
    assert len(seen) > 16, "each has its turn"


def test_the_record_of_a_followed_rank_is_read_at_every_look(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_names, "MOST_OF_USER", 4)
    scan = HeartbeatScan((str(directory),))
    scan.read()
    path = write_record(directory, 7, 50, 9)
    scan.read()
    scan.speaking = frozenset({str(path)})
    for rank in range(100, 200):
        write_record(directory, rank, 50, 9)
    assert all(7 in {beat.rank for beat in scan.read().heartbeats} for _ in range(20))


def test_a_directory_of_many_names_is_listed_a_part_at_a_time(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_names, "MOST_ENTRIES", 10)
    scan = HeartbeatScan((str(directory),))
    scan.read()
    for number in range(95):
        (directory / f"other-{number}").touch()
    write_record(directory, 7, 50, 9)
    looks = [scan.read().heartbeats for _ in range(30)]
    assert looks[-1][0].rank == 7
    (directory / "rank-7-50.beat").unlink()
    assert scan.read().heartbeats == ()
    scan.close()
