import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from stallwatch.model.reading import Known
from stallwatch.sensors.host import HostSensor
from stallwatch.sensors.kernel_messages import KernelLogUnreadable, KernelMessages
from tests.builders.clock import FakeClock
from tests.builders.running_job import found, four, job_run, run

SECOND = 10**9


class FakeLog:
    def __init__(self, *lines: tuple[float | None, str]) -> None:
        self.lines = list(lines)

    def read(self) -> Iterator[tuple[float | None, str]]:
        while self.lines:
            yield self.lines.pop(0)


class Node:
    """A sensor over a log and folders of the test's own, 10,000 s after the boot."""

    def __init__(self, folder: Path, log: KernelMessages | KernelLogUnreadable) -> None:
        self.clock = FakeClock(10_000 * SECOND)
        self.opens = 0
        self.log = log
        (folder / "sys").mkdir(exist_ok=True)
        self.sensor = HostSensor(self.open, sys=str(folder / "sys"), monotonic_ns=self.clock.monotonic_ns)

    def open(self) -> KernelMessages:
        self.opens += 1
        if isinstance(self.log, KernelLogUnreadable):
            raise self.log
        return self.log


XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
OFF_BUS = (
    "NVRM: The NVIDIA GPU 0000:3b:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)
OOM = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job,task_memcg=/job,"
    "task=python,pid=77,uid=0"
)
OOM_SECOND = "Memory cgroup out of memory: Killed process 77 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB"


def test_lines_that_mean_something_are_told_once(tmp_path: Path) -> None:
    log = FakeLog((9_999.0, "usb 1-1: new device"), (9_999.5, XID))
    node = Node(tmp_path, log)
    first = node.sensor.read().notices
    assert [(n.kind, n.xid, n.pci_bus_id, n.at_ns) for n in first] == [("xid", 79, "0000:3b:00", 9_999_500_000_000)]
    assert node.sensor.read().notices == first
    log.lines = [(10_000.0, "INFO: task python:123 blocked for more than 120 seconds.")]
    assert [(n.kind, n.pid) for n in node.sensor.read().notices] == [("xid", None), ("hung_task", 123)]


@pytest.mark.parametrize(("lines", "kind"), [(OFF_BUS, "off_bus"), ((OOM, OOM_SECOND), "oom_kill")])
def test_report_of_several_lines_is_one_notice_however_it_arrives(
    tmp_path: Path, lines: tuple[str, ...], kind: str
) -> None:
    log = FakeLog()
    node = Node(tmp_path, log)
    for line in lines:
        log.lines = [(10_000.0, line)]
        notices = node.sensor.read().notices
    assert [notice.kind for notice in notices] == [kind]
    assert notices[0].pci_bus_id == ("0000:3b:00" if kind == "off_bus" else None)


def test_fault_of_another_day_is_not_told(tmp_path: Path) -> None:
    log = FakeLog((9_000.0, XID), (9_500.0, XID))
    node = Node(tmp_path, log)
    assert len(node.sensor.read().notices) == 1
    node.clock.advance(200)
    assert node.sensor.read().notices == ()


def test_log_that_cannot_be_read_is_said_and_tried_again_later(tmp_path: Path) -> None:
    node = Node(tmp_path, KernelLogUnreadable("/dev/kmsg: Operation not permitted; it needs CAP_SYSLOG"))
    assert dict(node.sensor.read().missing)["kernel log"].endswith("it needs CAP_SYSLOG")
    node.sensor.read()
    assert node.opens == 1
    node.log = FakeLog((10_061.0, XID))
    node.clock.advance(61)
    after = node.sensor.read()
    assert "kernel log" not in dict(after.missing)
    assert len(after.notices) == 1


def test_network_that_does_not_answer_is_said_and_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, calls = threading.Event(), []

    def hang(sys: str) -> tuple[()]:
        calls.append(sys)
        release.wait(20)
        return ()

    monkeypatch.setattr("stallwatch.sensors.host.read_ports", hang)
    node = Node(tmp_path, FakeLog())
    node.sensor.read()
    for _ in range(4):
        node.clock.advance(11)
        sample = node.sensor.read()
    release.set()
    assert "has not answered for 44 s" in dict(sample.missing)["network ports"]
    assert sample.ports is None
    assert len(calls) == 1


def test_absent_files_are_unknown_and_said(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    sensor = HostSensor(
        lambda: FakeLog(), proc=str(tmp_path), sys=str(tmp_path / "sys"), shared_memory=str(tmp_path / "shm")
    )
    sample = sensor.read()
    assert (sample.open_files, sample.memory_available_bytes, sample.shared_memory_bytes) == (None, None, None)
    assert {"open files", "memory", "shared memory"} <= dict(sample.missing).keys()


@pytest.mark.parametrize(("allocated", "told"), [(50_000, False), (95_000, True)])
def test_handles_of_the_node_that_run_out_become_a_finding(tmp_path: Path, allocated: int, told: bool) -> None:
    files = tmp_path / "proc" / "sys" / "fs" / "file-nr"
    files.parent.mkdir(parents=True)
    files.write_text(f"{allocated}\t0\t100000\n")
    (tmp_path / "sys").mkdir()
    sensor = HostSensor(lambda: FakeLog(), proc=str(tmp_path / "proc"), sys=str(tmp_path / "sys"))
    node = [replace(shot, host=Known(sensor.read(), shot.at_ns)) for shot in job_run(four(), 90, tick_seconds=10.0)]
    reasons = {finding.reason for _, finding in found(run(node), "health", "confirmed")}
    assert (f"{allocated} of 100000 file handles of the node are open" in reasons) == told
