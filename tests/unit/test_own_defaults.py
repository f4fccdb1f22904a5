"""Directories and a port of one's own, where a user may not write to those of a service."""

import os
from pathlib import Path

import pytest

from stallwatch import config
from stallwatch.config_sections import DaemonSection


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who is not root, and may not write below /run."""
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(Path(__file__)).st_uid)
    monkeypatch.setattr(config, "_is_root", lambda: False)
    monkeypatch.setattr(config, "_is_writable", lambda directory: False)


def home_of(tmp_path: Path) -> dict[str, str]:
    os.chown(tmp_path, os.stat(Path(__file__)).st_uid, -1)
    return {"HOME": str(tmp_path)}


@pytest.mark.usefixtures("user")
def test_a_user_has_directories_below_his_home_a_free_port_and_word_of_his_terminals(tmp_path: Path) -> None:
    found, _ = config.load(None, home_of(tmp_path))
    own = tmp_path / ".stallwatch" / os.uname().nodename
    assert Path(found.daemon.run_directory) == own / "run"
    assert Path(found.daemon.state_directory) == own / "state"
    assert found.http.listen == "127.0.0.1:0"
    assert found.tell.terminals


@pytest.mark.usefixtures("user")
def test_what_he_sets_counts_before_that(tmp_path: Path) -> None:
    said = {
        "STALLWATCH_DAEMON_RUN_DIRECTORY": "/elsewhere",
        "STALLWATCH_HTTP_LISTEN": "",
        "STALLWATCH_TELL_TERMINALS": "0",
    }
    found, _ = config.load(None, home_of(tmp_path) | said)
    assert (found.daemon.run_directory, found.http.listen, found.tell.terminals) == ("/elsewhere", "", False)


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize("environment", [{}, {"HOME": ""}, {"HOME": "/nowhere/at/all"}])
def test_without_a_home_the_defaults_are_a_service_s(environment: dict[str, str]) -> None:
    found, _ = config.load(None, environment)
    assert found.daemon == DaemonSection()


@pytest.mark.usefixtures("user")
def test_who_may_write_where_a_service_does_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "_is_writable", lambda directory: True)
    assert config.own_defaults(home_of(tmp_path)) == {}


@pytest.mark.usefixtures("user")
def test_what_was_in_force_elsewhere_is_not_mixed_with_own_directories(tmp_path: Path) -> None:
    found, _ = config.load(None, home_of(tmp_path), base={})
    assert found.daemon == DaemonSection()
