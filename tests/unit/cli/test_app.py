"""Exit codes are a contract with scripts."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from stallwatch.cli import app
from stallwatch.errors import Denied, UnusableInput, UsageError

ROOT = Path(__file__).parents[3]


def answering(monkeypatch: pytest.MonkeyPatch, result: object) -> None:
    """Put a subcommand in place that returns or raises `result`."""

    @click.command()
    def command() -> object:
        if isinstance(result, BaseException):
            raise result
        return result

    monkeypatch.setattr(app.LazyGroup, "get_command", lambda self, ctx, name: command)


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (None, 0),
        (0, 0),
        (11, 11),
        (UsageError("wrong", "do this"), 64),
        (click.UsageError("wrong"), 64),
        (UnusableInput("nothing", "give more"), 65),
        (Denied("no"), 70),
        (RuntimeError("boom"), 70),
        (KeyboardInterrupt(), 130),
    ],
    ids=repr,
)
def test_exit_code(monkeypatch: pytest.MonkeyPatch, result: object, code: int) -> None:
    answering(monkeypatch, result)
    assert app.run(["anything"]) == code


def test_an_error_says_what_to_do_next(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answering(monkeypatch, UsageError("the port is taken", "Choose another."))
    app.run(["anything"])
    assert capsys.readouterr().err == "stallwatch: the port is taken\n  Choose another.\n"


def test_our_own_crash_is_named_as_ours(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answering(monkeypatch, RuntimeError("boom"))
    app.run(["anything"])
    error = capsys.readouterr().err
    assert "own crash (RuntimeError: boom)" in error
    assert "Traceback" in error


@pytest.mark.parametrize("arguments", [["--no-such-option"], ["no-such-command"], ["analyze"], []])
def test_wrong_usage_is_64(arguments: list[str]) -> None:
    assert app.run(arguments) == 64


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["analyze", "--help"]])
def test_help_is_no_error(arguments: list[str]) -> None:
    assert app.run(arguments) == 0


@pytest.mark.parametrize("name", app.COMMANDS)
def test_every_listed_command_exists(name: str) -> None:
    module = importlib.import_module(f"stallwatch.cli.{name.replace('-', '_')}")
    assert isinstance(module.command, click.Command)


def test_help_ends_no_sentence_in_the_middle(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "..." not in shown.partition("Commands:")[2]
    assert "several node folders of one incident." in shown


def test_with_the_hook_alone_the_command_says_what_to_install() -> None:
    code = "import sys; sys.path.insert(0, 'monitor'); from stallwatch.cli import main; sys.exit(main())"
    bare = [sys.executable, "-I", "-S", "-c", code, "status"]  # without site-packages: nothing but the standard library
    done = subprocess.run(bare, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 69
    assert "pip install '.[daemon]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("word", "said"), [("incident", "Did you mean 'incidents'"), ("xyzzy", "No such command")])
def test_a_word_that_is_no_command_is_answered_with_what_may_be_meant(
    word: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run([word]) == 64
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["node-check", "--hours", "x"], "'x' is no number: write one such as"),
        (["node-check", "--hours", "nan"], "'nan' is no number"),
        (["node-check", "--hours", "-1"], "-1.0 is not in the range"),
        (["demo", "--ranks", "2.5"], "'2.5' is no whole number: write one such as"),
    ],
)
def test_what_is_no_number_is_refused_in_words(
    command: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(command) == 64
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("is_there", [True, False])
def test_where_only_the_hook_is_installed_the_nodes_own_command_answers(is_there: bool, tmp_path: Path) -> None:
    of_node = tmp_path / "node" / "bin" / "stallwatch"
    of_node.parent.mkdir(parents=True)
    of_node.write_text('#!/bin/sh\necho "the node: $* ${PYTHONPATH:-clean}"\nexit 7\n')
    of_node.chmod(0o755 if is_there else 0o644)
    code = (
        "import sys; sys.path.insert(0, 'monitor'); sys.modules['click'] = None; from stallwatch import cli; "
        f"cli._OF_NODE = {str(tmp_path / 'node')!r}; sys.argv[1:] = ['status', '--json']; sys.exit(cli.main())"
    )
    environment = os.environ | {"PYTHONPATH": "/nowhere"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=ROOT)
    if is_there:
        assert (done.returncode, done.stdout) == (7, "the node: status --json clean\n")
    else:
        assert done.returncode == 69
        assert "only the hook is installed here" in done.stderr
