import logging

import pytest
from msgspec.structs import replace

from stallwatch.model.incident import NodeReport
from stallwatch.model.snapshot import SensorStatus
from stallwatch.outputs.log import LogOutput, line
from tests.unit.outputs.reports import diagnosis, incident, node_report, verdict


def test_one_line_for_each_step_of_an_incident(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stallwatch.incidents")
    output = LogOutput()
    suspect = incident(state="suspect", severity="none", report=None)
    for now in (suspect, suspect, incident(severity="warning"), incident(), incident(), incident(state="resolved")):
        output.publish(node_report(now))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "ERROR", "INFO"]
    assert "cause=not_entered culprits=2 | Rank 2 never entered" in caplog.messages[1]


def test_what_was_over_before_the_daemon_started_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stallwatch.incidents")
    LogOutput().publish(node_report(incident(state="resolved")))
    assert caplog.messages == []


def test_a_job_cannot_forge_a_line() -> None:
    written = line(incident(report=diagnosis(verdict(summary="x\nERROR forged \x1b[2J"))))
    assert "\n" not in written
    assert "ERROR forged \\x1b[2J" in written, "written as escapes: what differs stays two"
    assert "\x1b" not in written


def sensing(*statuses: SensorStatus) -> NodeReport:
    report = node_report()
    return replace(report, snapshot=replace(report.snapshot, sensors=statuses))


def status(reason: str, *, up: bool = False) -> SensorStatus:
    return SensorStatus("heartbeats", up, reason, 0.0, 0)


def test_what_a_sensor_complains_of_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stallwatch.sensors")
    output = LogOutput()
    ignored, well = status("1 ignored: x.beat: a symbolic link", up=True), status("", up=True)
    late = [status(f"no answer for {seconds} s") for seconds in range(10)]
    for now in (late[0], well, *late, ignored, ignored, ignored, *late[:2], ignored, well, well, well):
        output.publish(sensing(now))
    assert caplog.messages == [
        "sensor=heartbeats up=false | no answer for 2 s",
        "sensor=heartbeats up=true | 1 ignored: x.beat: a symbolic link",
        "sensor=heartbeats up=true | well again",
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]


def test_files_that_come_and_go_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stallwatch.sensors")
    output = LogOutput()
    for number in range(3000):
        number //= 3
        output.publish(sensing(status(f"1 ignored: x{number}.beat: a symbolic link", up=True)))
    assert len(caplog.messages) < 40
