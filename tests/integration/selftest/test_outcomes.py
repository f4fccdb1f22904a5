"""What a job's end means, with ranks that only pretend: real processes, reports and exit codes, no torch in them."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from stallwatch.cli.app import run
from tests.integration.selftest.jobs import PROGRAMS, selftest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="the self-test asks for an interpreter that has torch"
)


def test_ranks_that_finish_are_all_right() -> None:
    report = selftest("scripted", ranks=2, backend="gloo")
    assert report.ok is True, report
    assert report.trial is not None
    assert [step.outcome for step in report.trial.steps] == ["ok"] * 6


def test_what_a_rank_does_after_its_last_word_changes_nothing() -> None:
    report = selftest("scripted", {"FAKE_END": "1:teardown:11"}, ranks=2, backend="gloo")
    assert report.ok is True, report


def test_a_killed_rank_is_the_culprit() -> None:
    report = selftest("scripted", {"FAKE_END": "1:signal:9"}, ranks=2, backend="gloo")
    assert report.trial is not None
    failure = report.trial.failure
    assert report.ok is False
    assert failure is not None
    assert (failure.kind, failure.culprits, failure.step) == ("died", (1,), "all_reduce")
    assert "killed by signal 9" in failure.summary


@pytest.mark.parametrize("ending", ["1:crash:IndexError: oops", "1:silent:5", "0:silent:0"])
def test_a_crash_of_ours_says_nothing_about_the_node(ending: str) -> None:
    report = selftest("scripted", {"FAKE_END": ending}, ranks=2, backend="gloo")
    assert report.ok is None
    assert f"rank {ending[0]}" in report.problem


def test_no_process_stays_when_a_rank_hangs() -> None:
    report = selftest("scripted", {"FAKE_END": "0:hang:"}, ranks=2, backend="gloo", step_seconds=1.0)
    assert report.trial is not None
    failure = report.trial.failure
    assert failure is not None
    assert failure.kind == "stalled"
    assert failure.culprits == (0,)
    assert not any(Path(f"/proc/{device.pid}").exists() for device in report.trial.devices)


def test_bisection_finds_the_setting_that_makes_it_pass() -> None:
    report = selftest("scripted", {"FAKE_NEEDS": "NCCL_SHM_DISABLE=1"}, ranks=2, backend="nccl", bisect=True)
    assert report.bisection is not None
    passing = [trial.change for trial in report.bisection.trials if trial.outcome == "passes"]
    assert passing == ["shared memory off (NCCL_SHM_DISABLE=1)"]
    assert "Shared memory is what breaks" in " ".join(report.bisection.conclusions)


def test_bisection_finds_the_gpu() -> None:
    report = selftest("scripted", {"FAKE_SICK": "1"}, ranks=3, backend="nccl", bisect=True)
    assert report.bisection is not None
    assert any("GPU 1 or its links" in line for line in report.bisection.conclusions), report.bisection.conclusions


def test_bisection_never_touches_nvls_but_to_switch_it_off() -> None:
    report = selftest(
        "scripted",
        {"FAKE_NEEDS": "NEVER=1", "NCCL_NVLS_ENABLE": "0"},
        ranks=2,
        backend="nccl",
        bisect=True,
    )
    assert report.bisection is not None
    assert all("NCCL_NVLS_ENABLE" not in trial.environment for trial in report.bisection.trials)


def _run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    program = str(PROGRAMS / "scripted.py")
    code = run(["selftest", "--python", sys.executable, "--ranks", "2", "--rank-program", program, *arguments])
    return code, capsys.readouterr().out


@pytest.mark.parametrize(("ending", "code"), [("", 0), ("1:exit:3", 10), ("1:crash:words", 70)])
def test_exit_code_for_a_prolog(
    ending: str, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if ending:
        monkeypatch.setenv("FAKE_END", ending)
    assert _run(["--json", "--backend", "gloo"], capsys)[0] == code


def test_json_of_a_failure(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_END", "1:exit:3")
    document = json.loads(_run(["--json", "--backend", "gloo"], capsys)[1])
    assert document["schema_version"] == 1
    assert document["ok"] is False
    assert document["trial"]["failure"]["culprits"] == [1]


def test_our_crash_reads_as_no_result(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_END", "1:crash:words")
    code, text = _run(["--backend", "gloo"], capsys)
    assert code == 70
    assert "says nothing about" in text
    assert "NOT OK" not in text


def test_a_python_without_torch_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n', encoding="ascii")
    bare.chmod(0o755)
    assert run(["selftest", "--python", str(bare)]) == 64
    assert "--python" in capsys.readouterr().err


def test_kept_folder_holds_reports_and_logs(tmp_path: Path) -> None:
    selftest("scripted", ranks=2, backend="gloo", keep=tmp_path / "kept")
    kept = {path.name for path in (tmp_path / "kept").rglob("rank-*") if path.is_file()}
    assert {"rank-0.jsonl", "rank-1.jsonl", "rank-0.log"} <= kept


def test_the_json_has_a_schema_that_names_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["selftest", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    document = json.loads(_run(["--json", "--backend", "gloo"], capsys)[1])
    assert set(schema["$defs"]["SelfTestReport"]["properties"]) == set(document)
