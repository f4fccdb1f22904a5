from pathlib import Path

import msgspec
import pytest

from stallwatch.model.snapshot import Heartbeat
from stallwatch.sensors.namespaces import PidTranslation
from tests.builders.records import decoded, record_bytes
from tests.unit.sensors.fake_proc import FakeProc


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    fake = FakeProc(tmp_path)
    namespaces = tmp_path / "self/ns"
    namespaces.mkdir(parents=True)
    (namespaces / "pid").touch()
    return fake


def heartbeat(pid: int, start: int, namespace: int) -> Heartbeat:
    return msgspec.structs.replace(decoded(record_bytes(0, pid, start)), pid_namespace=namespace)


def own_namespace(proc: FakeProc) -> int:
    return (proc.root / "self/ns/pid").stat().st_ino


def test_pid_of_our_own_namespace_is_itself(proc: FakeProc) -> None:
    proc.add(700, start=5)
    assert PidTranslation(str(proc)).find(heartbeat(700, 5, own_namespace(proc)), 0) == 700


def test_pid_that_was_used_again_is_not_the_writer(proc: FakeProc) -> None:
    proc.add(700, start=6)
    assert PidTranslation(str(proc)).find(heartbeat(700, 5, own_namespace(proc)), 0) is None


def test_pid_of_a_container_is_found_by_its_namespace_pids_and_start(proc: FakeProc) -> None:
    proc.add(7, start=1)
    proc.add(700, start=5, namespace_pids="700\t7")
    proc.add(800, start=9, namespace_pids="800\t7")
    assert PidTranslation(str(proc)).find(heartbeat(7, 5, 4242), 0) == 700
    assert PidTranslation(str(proc)).find(heartbeat(7, 9, 4242), 0) == 800


def test_search_is_not_repeated_at_every_read(proc: FakeProc) -> None:
    translation = PidTranslation(str(proc), search_seconds=5)
    assert translation.find(heartbeat(7, 5, 4242), 0) is None
    proc.add(700, start=5, namespace_pids="700\t7")
    assert translation.find(heartbeat(7, 5, 4242), int(4e9)) is None
    assert translation.find(heartbeat(7, 5, 4242), int(5e9)) == 700
