"""torch's recorder is turned on by the names that its version knows, and by no other: torch warns on every rank of a
name that it has replaced."""

import types
from pathlib import Path

import pytest

from stallwatch.hook import recorder_switch
from stallwatch.hook.recorder_switch import ENTRIES, NEW_NAME, OLD_NAME, turn_on


@pytest.fixture(autouse=True)
def no_torch_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_switch, "_loaded", lambda: None)


def _installed(folder: Path, version: str) -> list[str]:
    (folder / "torch").mkdir()
    (folder / "torch" / "version.py").write_text(f"from typing import Optional\n\n__version__ = '{version}'\n")
    return [str(folder / "absent"), str(folder)]


@pytest.mark.parametrize(("version", "old"), [("2.5.1+cu124", True), ("2.7.1", True), ("2.8.0", False), ("3.0", False)])
def test_the_old_name_is_set_only_for_a_torch_that_needs_it(tmp_path: Path, version: str, old: bool) -> None:
    environment: dict[str, str] = {}
    assert turn_on(environment, _installed(tmp_path, version))
    assert environment == {NEW_NAME: ENTRIES} | ({OLD_NAME: ENTRIES} if old else {})


def test_a_torch_that_is_loaded_counts_before_one_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_switch, "_loaded", lambda: types.SimpleNamespace(__version__="2.13.0+cpu"))
    environment: dict[str, str] = {}
    assert turn_on(environment, _installed(tmp_path, "2.5.1"))
    assert environment == {NEW_NAME: ENTRIES}


@pytest.mark.parametrize("version", ["", "unknown", "2", "git+abc"])
def test_a_version_that_cannot_be_read_gets_both_names(tmp_path: Path, version: str) -> None:
    environment: dict[str, str] = {}
    assert turn_on(environment, _installed(tmp_path, version))
    assert environment == {NEW_NAME: ENTRIES, OLD_NAME: ENTRIES}


def test_without_torch_both_names_are_set() -> None:
    environment: dict[str, str] = {}
    assert turn_on(environment, ["/nonexistent", ""])
    assert environment == {NEW_NAME: ENTRIES, OLD_NAME: ENTRIES}


def test_a_users_own_pipe_keeps_the_old_name_by_which_torch_makes_it(tmp_path: Path) -> None:
    environment = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/tmp/pipe"}
    assert turn_on(environment, _installed(tmp_path, "2.9.1"))
    assert environment[OLD_NAME] == ENTRIES


@pytest.mark.parametrize("name", [NEW_NAME, OLD_NAME])
def test_what_the_user_has_set_stays(name: str) -> None:
    environment = {name: "0"}
    assert not turn_on(environment, [])
    assert environment == {name: "0"}
