"""Which Python runs the ranks."""

from pathlib import Path

import pytest

from stallwatch.errors import UsageError
from stallwatch.selftest import interpreter
from stallwatch.selftest.result import OwnFailure


def python(folder: Path, body: str) -> str:
    path = folder / "python3"
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="ascii")
    path.chmod(0o755)
    return str(path)


def test_the_wanted_one_is_taken_when_it_has_torch(tmp_path: Path) -> None:
    wanted = python(tmp_path, "exit 0")
    assert interpreter.find_python(wanted, {"PATH": "/usr/bin:/bin"}) == wanted


def test_the_wanted_one_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no torch in"):
        interpreter.find_python(python(tmp_path, "exit 3"), {"PATH": "/usr/bin:/bin"})


def test_one_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        interpreter.find_python(str(tmp_path / "absent"), {})


def test_one_that_does_not_start_is_our_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_FIND_SECONDS", 0.2)
    with pytest.raises(OwnFailure, match="did not start"):
        interpreter.find_python(python(tmp_path, "exec sleep 30"), {"PATH": "/usr/bin:/bin"})


def test_a_driver_that_does_not_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_COUNT_SECONDS", 0.2)
    gpus = interpreter.count_gpus(python(tmp_path, "exec sleep 30"), {"PATH": "/usr/bin:/bin"})
    assert "did not say" in gpus.problem


def test_gpus_are_counted_only_where_nccl_is(tmp_path: Path) -> None:
    assert interpreter.count_gpus(python(tmp_path, "echo '[2, true, false]'"), {}).count == 2
    assert interpreter.count_gpus(python(tmp_path, "echo '[2, false, false]'"), {}).count == 0


def test_a_node_that_lost_its_gpus_is_not_one_without(tmp_path: Path) -> None:
    lost = python(tmp_path, "echo '[0, true, true]'")
    assert "sees no GPU" in interpreter.count_gpus(lost, {}).problem
    assert not interpreter.count_gpus(lost, {"CUDA_VISIBLE_DEVICES": ""}).problem
    assert not interpreter.count_gpus(python(tmp_path, "echo '[0, false, false]'"), {}).problem  # a build for the CPU


def test_a_torch_that_cannot_be_imported_is_our_failure(tmp_path: Path) -> None:
    with pytest.raises(OwnFailure, match="libcudart"):
        interpreter.count_gpus(python(tmp_path, "echo 'ImportError: libcudart.so.12' >&2; exit 1"), {})


def test_the_ranks_are_given_this_package_and_nothing_beside_it(tmp_path: Path) -> None:
    folder = interpreter.link_to_package(tmp_path / "package")
    assert [path.name for path in folder.iterdir()] == ["stallwatch"]
    assert (folder / "stallwatch" / "selftest" / "rank.py").is_file()
