"""What the daemon does not start with: exit code 64, what is wrong and where, and what to do. And what it does start
with all the same."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stallwatch.errors import EXIT_USAGE

SECONDS = 60.0


def stallwatch(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STALLWATCH_")}
    command = [sys.executable, "-m", "stallwatch.cli", *arguments]
    return subprocess.run(command, env=kept | environment, capture_output=True, text=True, timeout=SECONDS, check=False)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration that a daemon would start with."""
    path = tmp_path / "config.toml"
    lines = [f'{name}_directory = "{tmp_path / name}"' for name in ("rank", "state", "run")]
    path.write_text("\n".join(["[daemon]", *lines, "[http]", 'listen = "127.0.0.1:0"']) + "\n")
    return path


def refusal(config: Path, more: str = "", **environment: str) -> str:
    """What a daemon that must not start says. One that starts runs into the time-out."""
    config.write_text(config.read_text() + more)
    done = stallwatch("daemon", "--config", str(config), **environment)
    assert done.returncode == EXIT_USAGE, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_wrong_type_is_named_with_its_path(config: Path) -> None:
    said = refusal(config, '[stall]\nfloor_seconds = "soon"\n')
    assert "stall.floor_seconds" in said
    assert "config example" in said


def test_a_value_out_of_range_is_named_with_its_path(config: Path) -> None:
    assert "tick_seconds" in refusal(config, STALLWATCH_DAEMON_TICK_SECONDS="0")


def test_a_file_that_is_no_toml_is_refused(config: Path) -> None:
    assert "not TOML" in refusal(config, "this is not = = TOML\n")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = stallwatch("daemon", "--config", str(tmp_path / "none.toml"))
    assert (done.returncode, "none.toml" in done.stderr) == (EXIT_USAGE, True)


def test_a_port_in_use_is_refused_with_advice(config: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = refusal(config, STALLWATCH_HTTP_LISTEN=f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port}: Address already in use" in said
    assert "http.listen" in said
    assert f"ss -ltnp 'sport = :{port}'" in said


def test_a_state_directory_that_cannot_be_written_is_refused(config: Path, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file in the way")
    said = refusal(config)
    assert str(tmp_path / "state") in said
    assert "daemon.state_directory" in said


def test_a_webhook_file_that_cannot_be_read_is_refused(config: Path) -> None:
    assert "webhook.url_file" in refusal(config, '[webhook]\nurl_file = "/no/such/file"\n')


def test_an_unknown_key_is_refused_by_config_check_with_its_path(config: Path) -> None:
    config.write_text(config.read_text() + '[slack]\nwebhok_url = "https://example.org"\n')
    done = stallwatch("config", "check", str(config))
    assert done.returncode == EXIT_USAGE
    assert "slack.webhok_url" in done.stderr


def test_the_example_file_is_right_as_it_is(tmp_path: Path) -> None:
    example = tmp_path / "config.toml"
    example.write_text(stallwatch("config", "example").stdout)
    done = stallwatch("config", "check", str(example))
    assert (done.returncode, done.stdout) == (0, f"{example}: ok\n")
