import json
import os
import tomllib
from pathlib import Path

import pytest

from stallwatch import config
from stallwatch.cli.app import run
from stallwatch.errors import UsageError
from stallwatch.node.disk import read_regular

Capture = pytest.CaptureFixture[str]


def check(tmp_path: Path, text: str, *more: str) -> int:
    file = tmp_path / "stallwatch.toml"
    file.write_text(text)
    return run(["config", "check", str(file), *more])


def test_a_right_file_is_ok(tmp_path: Path, capsys: Capture) -> None:
    assert check(tmp_path, '[http]\nlisten = "0.0.0.0:9477"\n') == 0
    assert "ok" in capsys.readouterr().out


def test_what_is_right_and_yet_says_nothing_is_told(tmp_path: Path, capsys: Capture) -> None:
    both = '[slack]\nwebhook_url = "https://hooks.slack.com/x"\n[alertmanager]\nurls = "http://am:9093"\n'
    assert check(tmp_path, both) == 0
    assert "[slack] is silent" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[slack]\nwebhok_url = "x"\n', "slack.webhok_url"),
        ('[slak]\nwebhook_url = "x"\n', "slak"),
        ('[http]\nlisten = "9477"\n', "http.listen"),
        ('[slack]\nwebhook_url = "not an address"\n', "slack.webhook_url"),
        ('[slack]\nminimum_severity = "loud"\n', "slack.minimum_severity"),
        ('[slack]\nwebhook_url_file = "/nowhere/url"\n', "slack.webhook_url_file"),
        ('[slack]\nbot_token = "xoxb"\n', "slack.channel"),
        ('[webhook]\nurl = "https://x"\nsigning_key_file = "/nowhere/key"\n', "webhook.signing_key_file"),
        ('[alertmanager]\nurls = "am:9093"\n', "alertmanager.urls"),
        ('[deadman]\nurl_file = "/nowhere/url"\n', "deadman.url_file"),
        ("[http\n", "not TOML"),
        ('[slack]\nchannel = "a"\n[slack]\n', "[slack] stands there twice (line 3)"),
    ],
)
def test_a_wrong_file_is_refused_with_the_path_of_what_is_wrong(
    tmp_path: Path, capsys: Capture, text: str, named: str
) -> None:
    assert check(tmp_path, text) == 64
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[tell]\nstorage_seconds = "soon"\n',
            "toml: tell.storage_seconds (line 2) takes a number, not text\n  By default it is 120.0",
        ),
        ("[tell]\nstorage_seconds = -1\n", "tell.storage_seconds (line 2) takes a number >= 0.0\n"),
        (
            "[tell]\nterminals = 3\n",
            "tell.terminals (line 2) takes true or false, not a whole number\n  By default it is false",
        ),
        ('[fleet]\nmode = "loud"\n', "fleet.mode (line 2) takes 'tell', 'shadow', 'off', not 'loud'\n"),
    ],
)
def test_what_a_key_takes_is_said_in_words(tmp_path: Path, capsys: Capture, text: str, said: str) -> None:
    assert check(tmp_path, text) == 64
    assert said in capsys.readouterr().err


def test_a_wrong_value_of_the_environment_is_named_by_its_variable() -> None:
    with pytest.raises(
        UsageError, match=r"^STALLWATCH_TELL_STORAGE_SECONDS \(tell\.storage_seconds\) takes a number, not text$"
    ):
        config.load(None, {"STALLWATCH_TELL_STORAGE_SECONDS": "soon"})


def test_a_missing_file_is_refused(capsys: Capture) -> None:
    assert run(["config", "check", "/nowhere/stallwatch.toml"]) == 64
    assert "/nowhere/stallwatch.toml" in capsys.readouterr().err


def test_a_wrong_variable_is_refused_too(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("STALLWATCH_DAEMON_TICK_SECONDS", "soon")
    assert run(["config", "check"]) == 64
    assert "tick_seconds" in capsys.readouterr().err


def test_what_may_lie_in_a_file_instead_is_a_secret() -> None:
    """For why else should it? So nobody can forget to mark one."""
    keys = {(section, key) for section, key in config.environment_names().values()}
    beside_a_file = {(section, key) for section, key in keys if (section, f"{key}_file") in keys}
    assert beside_a_file == set(config.marked("secret")) - {("alertmanager", "urls")}


def test_the_effective_configuration_is_shown_without_secrets(tmp_path: Path, capsys: Capture) -> None:
    assert check(tmp_path, '[slack]\nwebhook_url = "https://hooks.slack.com/secret"\n', "--json") == 0
    shown = capsys.readouterr().out
    assert json.loads(shown)["slack"]["webhook_url"] == "<set>"
    assert "secret" not in shown


def test_the_example_is_toml_that_check_accepts_with_every_line_enabled(tmp_path: Path, capsys: Capture) -> None:
    assert run(["config", "example"]) == 0
    example = capsys.readouterr().out
    assert tomllib.loads(example)
    enabled = "\n".join(
        line[2:] if line.startswith("# ") and " = " in line.partition("(")[0] else line for line in example.splitlines()
    )
    assert check(tmp_path, enabled) == 0


def test_the_example_that_ships_is_the_one_that_is_printed() -> None:
    shipped = Path(__file__).parents[3] / "deploy" / "config.example.toml"
    printed = config.example()
    assert shipped.read_text(encoding="utf-8") == printed, "stallwatch config example > deploy/config.example.toml"


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ('[slack]\nwebhok_url = ""', "Instead of slack.webhok_url, is slack.webhook_url meant?"),
        ('[webhok]\nurl = ""', "Instead of webhok, is webhook meant?"),
        ("[drift]\nqqq = 1", "[drift] has every_seconds, seconds."),
        ("[nothing]\nlike = 1", "The sections are daemon, "),
    ],
)
def test_an_unknown_key_comes_with_what_may_be_meant(tmp_path: Path, key: str, advice: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(key)
    with pytest.raises(UsageError) as refusal:
        config.load(path, strict=True)
    assert advice in refusal.value.help


@pytest.mark.parametrize("kind", ["pipe", "directory", "gone", "bytes"])
def test_a_file_that_cannot_be_read_again_leaves_the_old_configuration_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "config.toml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "bytes":
        path.write_bytes(b"\xff\x00")
    with pytest.raises(UsageError, match=r"config\.toml"):
        config.load(path, read=read_regular)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[http]\n\n[slack]\n  webhok_url = "x"\n', ("slack.webhok_url (line 4)", "is slack.webhook_url meant?")),
        ("# [slak]\n[ slak ]\nx = 1\n", ("slak (line 2)", "is slack meant?")),
        ('slack.webhok_url = "x"\n', ("slack.webhok_url (line 1)", "is slack.webhook_url meant?")),
        ("[http]\nnonsense = 1\n", ("http.nonsense (line 2)", "[http] has listen")),
    ],
)
def test_an_unknown_key_has_its_line_and_what_may_be_meant_at_a_check_a_start_and_a_reload(
    tmp_path: Path, capsys: Capture, text: str, said: tuple[str, str]
) -> None:
    assert check(tmp_path, text) == 64
    refused = capsys.readouterr().err
    file = tmp_path / "stallwatch.toml"
    for read in (Path.read_bytes, read_regular):  # as the daemon reads it when it starts, and again
        _, (warning,) = config.load(file, {}, read=read)
        for words in said:
            assert words in refused and words in warning


def test_a_wrong_value_has_its_line(tmp_path: Path, capsys: Capture) -> None:
    assert check(tmp_path, '[http]\n\n[tell]\nstorage_seconds = "long"\n') == 64
    assert "tell.storage_seconds (line 4) takes a number" in capsys.readouterr().err
