import sys
import tempfile
from pathlib import Path

import pytest

from stallwatch.clock import SystemClock
from stallwatch.config_sections import DiagnosisSection
from stallwatch.loop.judging import JudgeRun, JudgeState
from tests.unit.loop.fakes import node_clock

REPORT = (
    '{"schema_version":1,"tool_version":"0","incident_id":null,"training_job":null,"epoch":null,"captured_at":null,'
    '"deadline":null,"evidence_complete":true,"verdicts":[{"cause":"not_entered","culprits":[3],'
    '"confidence":"certain","summary":"rank 3"}]}'
)


def outcome(program: str, limits: DiagnosisSection | None = None) -> JudgeState:
    run = JudgeRun(limits or DiagnosisSection(), SystemClock(), [sys.executable, "-c", program])
    run.begin(Path("bundle"))
    run.wait(30)
    state = run.poll()
    assert state is not None
    return state


@pytest.mark.parametrize("code", [0, 10, 11, 12])
def test_the_report_is_read_whatever_the_verdict(code: int) -> None:
    state = outcome(f"import sys; print('''{REPORT}'''); sys.exit({code})")
    assert state.report is not None
    assert state.report.verdicts[0].culprits == (3,)


def test_a_crash_is_named_by_its_last_words() -> None:
    state = outcome("import sys; sys.exit('stallwatch: nothing could be read')")
    assert state.report is None
    assert "nothing could be read" in state.problem


def test_output_that_is_no_report_is_said() -> None:
    assert "no report" in outcome("print('hello')").problem


def test_the_bundle_comes_on_standard_input() -> None:
    assert outcome("import sys; sys.exit(sys.stdin.readline())").problem.endswith("bundle")


def test_memory_is_limited() -> None:
    limits = DiagnosisSection(memory_bytes=256 << 20)
    assert "MemoryError" in outcome("import sys; sys.stdin.read(); x = bytearray(1 << 30)", limits).problem


def test_a_child_past_its_deadline_is_ended() -> None:
    clock = node_clock()
    run = JudgeRun(DiagnosisSection(), clock, [sys.executable, "-c", "import time; time.sleep(600)"])
    clock.advance(600)
    assert run.poll() is None, "waiting for a bundle is no lateness"
    run.begin(Path("bundle"))
    assert run.poll() is None
    clock.advance(61)
    state = run.poll()
    assert state is not None
    assert "within 60 s" in state.problem
    run.wait(10)
    assert not run.alive


def test_what_the_child_started_is_ended_with_it(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "open(sys.stdin.readline().strip(), 'w').write(str(p.pid)); time.sleep(600)"
    )
    note = tmp_path / "pid"
    run = JudgeRun(DiagnosisSection(), node_clock(), [sys.executable, "-c", program])
    run.begin(note)
    while not (note.exists() and note.read_text()):
        assert run.poll() is None
    grandchild = int(note.read_text())
    run.cancel()
    while is_alive(grandchild):
        pass  # the kill is on its way; the test's own time limit bounds this


def test_the_real_child_judges_as_analyze_does(tmp_path: Path) -> None:
    (tmp_path / "bundle.json").write_text('{"world_size": 2}')
    (tmp_path / "ranks" / "0").mkdir(parents=True)
    look = '{"pid": 7, "state": null, "exit_code": 3, "exit_signal": null, "wchan": null, "threads": []}'
    (tmp_path / "ranks" / "0" / "process.json").write_text(look)
    run = JudgeRun(DiagnosisSection(), SystemClock())
    run.begin(tmp_path)
    run.wait(60)
    state = run.poll()
    assert state is not None
    assert state.report is not None, state.problem


def test_a_child_that_ended_before_it_was_needed_is_said() -> None:
    run = JudgeRun(DiagnosisSection(), SystemClock(), [sys.executable, "-c", "raise SystemExit('no room')"])
    run.wait(30)
    assert not run.alive
    run.begin(Path("bundle"))
    state = run.poll()
    assert state is not None
    assert "no room" in state.problem


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_full_or_dead_temporary_directory_costs_no_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    assert outcome(f"print('''{REPORT}''')").report is not None


def test_it_is_told_once_that_a_bundle_will_come() -> None:
    run = JudgeRun(DiagnosisSection(), SystemClock(), [sys.executable, "-c", "import sys; sys.exit(sys.stdin.read())"])
    run.expect()
    run.expect()
    run.begin(Path("bundle"))
    run.wait(30)
    state = run.poll()
    assert state is not None
    assert repr(state.problem).endswith("bundle'")
