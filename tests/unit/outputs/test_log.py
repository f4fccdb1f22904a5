import logging

import pytest

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
    assert "\x1b" not in written
