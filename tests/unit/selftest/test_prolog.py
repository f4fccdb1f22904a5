"""The Slurm prolog that ships: only a proven bad node is drained."""

import os
import subprocess
from pathlib import Path

import pytest

PROLOG = Path(__file__).parents[3] / "deploy" / "slurm" / "prolog.sh"


def run(tmp_path: Path, body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    tool = tmp_path / "stallwatch"
    tool.write_text(f"#!/bin/sh\n{body}\n")
    tool.chmod(0o755)
    own = {
        "PATH": os.environ["PATH"],
        "STALLWATCH": str(tool),
        "STALLWATCH_PROLOG_REPORT": str(tmp_path / "report.json"),
    }
    return subprocess.run(
        ["sh", str(PROLOG)], env=own | environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(("tool_exit", "prolog_exit"), [(0, 0), (10, 1), (64, 0), (65, 0), (70, 0), (137, 0)])
def test_only_a_bad_node_ends_the_prolog_with_an_error(tmp_path: Path, tool_exit: int, prolog_exit: int) -> None:
    done = run(tmp_path, f"echo '{{\"ok\": null}}'; exit {tool_exit}")
    assert done.returncode == prolog_exit
    assert ("self-test" in done.stderr) == bool(prolog_exit)
    assert (tmp_path / "report.json").read_text() == '{"ok": null}\n'


def test_a_test_that_takes_too_long_lets_the_job_run(tmp_path: Path) -> None:
    assert run(tmp_path, "exec sleep 60", STALLWATCH_PROLOG_SECONDS="0.2").returncode == 0


def test_a_node_without_the_tool_lets_the_job_run(tmp_path: Path) -> None:
    assert run(tmp_path, "exit 10", STALLWATCH=str(tmp_path / "absent")).returncode == 0


def test_a_report_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "echo {}; exit 0", STALLWATCH_PROLOG_REPORT=str(tmp_path / "absent" / "report.json"))
    assert done.returncode == 0


def test_the_gpus_of_the_job_are_tested_by_the_training_interpreter(tmp_path: Path) -> None:
    run(
        tmp_path, 'echo "$CUDA_VISIBLE_DEVICES $*"', SLURM_JOB_GPUS="2,3", STALLWATCH_TRAINING_PYTHON="/venv/bin/python"
    )
    said = (tmp_path / "report.json").read_text()
    assert said.startswith("2,3 selftest --json ") and said.endswith(" --python /venv/bin/python\n")
