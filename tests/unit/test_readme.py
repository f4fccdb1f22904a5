"""The README says what the code does."""

import time
from pathlib import Path

import pytest

from stallwatch.cli.app import run
from tests.readme import README, rendered


def test_generated_parts_equal_the_code() -> None:
    text = README.read_text(encoding="utf-8")
    assert rendered(text) == text, "run `python -m tests.readme`"


def test_every_file_it_names_exists() -> None:
    root = README.parent
    package = root / "monitor" / "stallwatch"
    named = {
        word.strip("`(),;:.")
        for word in README.read_text(encoding="utf-8").split()
        if word.startswith("`") and "/" in word and word.rstrip("`(),;:.").endswith((".py", ".sh", ".toml"))
    }
    assert named
    missing = [path for path in sorted(named) if not ((root / path).exists() or (package / path).exists())]
    assert not missing


def test_the_example_of_replay_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block = next(one for one in README.read_text(encoding="utf-8").split("```\n") if " stallwatch replay tests/" in one)
    shown = [line for line in block.splitlines() if not line.startswith(("$", "[…]"))]
    (tmp_path / "sooner.toml").write_text("[tell]\nstorage_seconds = 5.0\nsettle_seconds = 0.0\n")
    (tmp_path / "tests").symlink_to(README.parent / "tests")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        assert run(["replay", "tests/replay/recorded-checkpoint", "--config", "sooner.toml"]) == 0
    finally:
        monkeypatch.undo()
        time.tzset()
    printed = capsys.readouterr().out
    for line in shown:
        assert f"\n{line.removesuffix(' […]')}" in f"\n{printed}"
