"""`stallwatch release-gpus` in a run directory of its own, with processes of the test's own."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallwatch.cli import release_gpus
from stallwatch.cli.app import run
from stallwatch.node import gpu_release
from stallwatch.node.gpu_release import Holder, released

OURS, THEIRS = Holder(11, "python3", True), Holder(12, "train", False)
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STALLWATCH_DAEMON_RUN_DIRECTORY", str(tmp_path))
    hold(monkeypatch, [])
    return tmp_path / gpu_release.FILE


def hold(monkeypatch: pytest.MonkeyPatch, *looks: list[Holder]) -> None:
    """Who holds a GPU, look by look; then as at the last one."""
    left = list(looks)

    def holders() -> Iterator[Holder]:
        return iter(left.pop(0) if len(left) > 1 else left[0])

    monkeypatch.setattr(gpu_release, "holders", holders)


def test_it_returns_once_nothing_of_ours_has_one_open_and_lists_others(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    hold(monkeypatch, [OURS, THEIRS], [THEIRS])
    assert run(["release-gpus", "--for", "10m"]) == 0
    found = released(file)
    assert found is not None
    assert 590 < found.seconds <= 600
    said = capsys.readouterr().out
    assert said.startswith("No process of stallwatch has a GPU open, until ")
    assert "pid 12 (train) has one open and is not ours" in said
    assert "pid 11" not in said


def test_zero_ends_it(file: Path, capsys: Capture) -> None:
    assert run(["release-gpus", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seconds"] == 900
    assert released(file) is not None
    assert run(["release-gpus", "--for", "0"]) == 0
    assert released(file) is None


def test_one_of_ours_that_does_not_let_go_is_an_error_with_its_pid(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    hold(monkeypatch, [OURS])
    monkeypatch.setattr(release_gpus, "_CLOSE_SECONDS", 0.0)
    assert run(["release-gpus"]) == 70
    said = capsys.readouterr().err
    assert "pid 11" in said
    assert "systemctl stop stallwatch" in said


def test_a_run_directory_that_cannot_be_written_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("STALLWATCH_DAEMON_RUN_DIRECTORY", str(tmp_path / "nowhere"))
    assert run(["release-gpus"]) == 64
    assert "Run it as root" in capsys.readouterr().err
